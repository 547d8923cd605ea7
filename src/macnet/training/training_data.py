"""The data of a training run: datasets, or the endless generated world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import torch

from macnet import distributed
from macnet.clevr.families import families_of
from macnet.clevr.world import World
from macnet.data.batches import Batches, BatchSource
from macnet.data.dataset import Dataset, Subset
from macnet.data.endless import EndlessBatches
from macnet.data.fresh_questions import FreshQuestionBatches, question_groups
from macnet.data.question_arrays import UNKNOWN
from macnet.data.replay import ReplayMixture, source_positions
from macnet.data.spec import DataSpec
from macnet.data.vocab import PAD, PROGRAM_TOKENS, Vocabulary
from macnet.errors import InputError
from macnet.models.recipe import Recipe

Location = str | PathLike[str]

USUAL = {"images": 64, "questions": 10}  # in a batch of the recipes that come with macnet
EPOCH = 700_000  # questions of an endless world that count as an epoch, as many as CLEVR has


@dataclass(frozen=True)
class TrainingData:
    """Data to train and validate on, with one vocabulary and images of one shape."""

    train: Dataset | World
    """The data to train on; of a world, every image is rendered and used once."""
    val: Dataset
    """The data to validate on."""
    replay: Dataset | None = None
    """Data to mix in, from an earlier training, so that the network forgets less."""
    replay_share: float = 0.0
    """The share of batches that come from `replay`."""
    fresh_questions: bool = False
    """Whether every epoch has new questions about the images of `train`, in place of its own."""

    def __post_init__(self) -> None:
        for dataset in (self.val, self.train, self.replay):
            if isinstance(dataset, Dataset):
                _check_trainable(dataset, like=self.val)
        if isinstance(self.train, World):
            rendered = self.train.height, self.train.width, 3
            images = self.val.images
            if images.dtype.kind != "u" or rendered != images.shape[1:]:
                raise InputError(
                    f"the world is rendered as {rendered}, but the images to validate on are "
                    f"{images.shape[1:]} of {images.dtype}; they must be alike"
                )
        if self.fresh_questions and (isinstance(self.train, World) or self.train.scenes is None):
            raise InputError(
                "`fresh_questions` are about a dataset of which it is known what is in its images; "
                "this is none"
            )

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of all questions."""
        return self.val.vocabulary

    def data_spec(self) -> DataSpec:
        """The sizes of a network that is trained on this data."""
        return self.val.spec()

    def open(
        self,
        recipe: Recipe,
        subset: Subset | None,
        *,
        seed: int,
        device: torch.device,
        position: int,
        workers: int,
    ) -> BatchSource:
        """The batches of this process, from the position at which an earlier run stopped."""
        train = self.check(recipe, subset)
        images = recipe.images // distributed.size()
        shard = distributed.rank(), distributed.size()
        settings: dict[str, Any] = {
            **{"images": images, "questions": recipe.questions, "seed": seed},
            **{"device": device, "shard": shard},
        }
        new, old = position, 0
        if self.replay is not None:
            new, old = source_positions(position, self.replay_share)
        main: BatchSource
        if isinstance(train, Dataset) and self.fresh_questions:
            main = FreshQuestionBatches(train, position=new, workers=workers, **settings)
        elif isinstance(train, Dataset):
            main = Batches(train, position=new, **settings)
        else:
            main = EndlessBatches(
                replace(train, questions_per_image=recipe.questions),
                self.vocabulary,
                images=images,
                device=device,
                workers=workers,
                shard=shard,
                position=new,
                guided=recipe.guide > 0,
            )
        if self.replay is None:
            return main
        replayed = Batches(self.replay, position=old, **settings)
        return ReplayMixture(main, replayed, self.replay_share)

    def check(
        self, recipe: Recipe, subset: Subset | None, *, programs: bool = False
    ) -> Dataset | World:
        """The data to train on in a stage, if the recipe fits them; before anything is opened.

        `programs`: whether the stage learns from the programs of questions.
        """
        if recipe.images % distributed.size():
            raise InputError(
                f"`recipe.images` is {recipe.images}; it must be a multiple of the "
                f"{distributed.size()} processes that share a batch"
            )
        for name in ("shift", "rotation", "jitter"):
            if (value := getattr(recipe, name)) and not self.data_spec().pixels:
                raise InputError(
                    f"`recipe.{name}` is {value}, but the data are features; only images can be "
                    "augmented"
                )
        train = self.train
        if recipe.guide and not (isinstance(train, World) and self.replay is None):
            raise InputError(
                f"`recipe.guide` is {recipe.guide}, but a fixed dataset does not tell where its "
                "objects are; train on the endless generated world alone, or leave it out"
            )
        if isinstance(train, World) or self.fresh_questions:
            groups = train.families if isinstance(train, World) else question_groups(train)
            if recipe.questions > (most := len(families_of(groups))):
                raise InputError(
                    f"`recipe.questions` is {recipe.questions}; it must be {most} at most, because "
                    f"each question generated about an image is of another of {most} families"
                )
        if subset is not None:
            if isinstance(train, World):
                raise InputError("an endless world has no subset; give `world_images`")
            if self.replay is not None:
                raise InputError(
                    "a stage learns from a subset of the questions, but `replay` would add all of "
                    "its own; leave out one of `programs` and `replay`"
                )
            if self.fresh_questions:
                raise InputError(
                    "a stage learns from a subset of the questions, but `fresh_questions` replaces "
                    "all of them in every epoch; leave out one of `programs` and `fresh_questions`"
                )
            train = train.subset(subset)
        for dataset in (train, self.replay):
            if isinstance(dataset, Dataset):
                fresh = self.fresh_questions and dataset is train
                _check_batch(recipe, dataset, fresh=fresh)
                if programs and not fresh:
                    _check_programs(dataset)
        return train

    def steps_per_epoch(self, source: BatchSource, recipe: Recipe, subset: Subset | None) -> int:
        """Number of steps of an epoch; of an endless world, one of `EPOCH` questions.

        An epoch of a subset has as many steps as one of all questions, so that a stage is as long
        whatever number of programs it learns from.
        """
        if subset is not None and isinstance(self.train, Dataset):
            return -(-_count_groups(recipe, self.train)[1] // recipe.images)
        return source.steps or -(-EPOCH // (recipe.images * recipe.questions))

    def to_record(self) -> dict[str, Any]:
        """The metadata of the datasets, for the metadata of a run."""
        train = self.train.to_record() if isinstance(self.train, World) else self.train.metadata
        if self.fresh_questions:
            train = {**train, "fresh_questions": True}
        replay = self.replay and {"share": self.replay_share, **self.replay.metadata}
        return {"train": train, "val": self.val.metadata, "replay": replay}


def _check_batch(recipe: Recipe, dataset: Dataset, *, fresh: bool) -> None:
    """Check that a batch is not larger than the dataset, and so filled up with repetitions.

    A batch of the usual size may be: a dataset for a first try is small, and that costs little.
    """
    dataset.check_not_empty()
    most, groups = _count_groups(recipe, dataset, fresh=fresh)
    if recipe.questions > max(most, USUAL["questions"]):
        raise InputError(
            f"`recipe.questions` is {recipe.questions:,}, but {dataset.name} has {most:,} "
            "questions about an image at most; give no more than that"
        )
    usual = USUAL["images"] * USUAL["questions"] // recipe.questions
    if recipe.images > max(groups, USUAL["images"], usual):
        raise InputError(
            f"`recipe.images` is {recipe.images:,}, but {dataset.name} makes {groups:,} groups of "
            f"{recipe.questions} question(s) about an image in all; give no more than that"
        )


def _count_groups(recipe: Recipe, dataset: Dataset, *, fresh: bool = False) -> tuple[int, int]:
    """The most questions about an image, and the number of groups that batches are made of.

    Of `fresh` questions there are as many about each image as the recipe says.
    """
    _, counts = np.unique(dataset.image_rows[dataset.selected], return_counts=True)
    if fresh:
        counts[:] = recipe.questions
    return int(counts.max()), int((-(-counts // recipe.questions)).sum())


def _check_programs(dataset: Dataset) -> None:
    """Check that each selected question has a CLEVR program."""
    programs, tokens = dataset.questions.programs, dataset.format.program_tokens
    lacking = len(dataset)
    if programs.shape[1] and tokens == PROGRAM_TOKENS:
        lacking = int((programs[dataset.selected, 0] == PAD).sum())
    if lacking:
        raise InputError(
            f"{dataset.name}: training needs programs: {lacking:,} of {len(dataset):,} questions "
            "have no CLEVR program; train on questions that have one, or another preset"
        )


def _check_trainable(dataset: Dataset, like: Dataset) -> None:
    dataset.check_not_empty()
    if (dataset.answers == UNKNOWN).any():
        raise InputError(
            f"{dataset.name}: its questions have no answers, so it cannot be trained on"
        )
    if (dataset.answers < 0).all():
        raise InputError(f"{dataset.name}: the vocabulary has none of its answers")
    if dataset.format.question_types != like.format.question_types:
        raise InputError(f"{dataset.name}: its question types are not those of {like.name}")
    if dataset.vocabulary != like.vocabulary:
        raise InputError(f"{dataset.name}: its vocabulary is another than that of {like.name}")
    own, wanted = (f"{d.images.shape[1:]} of {d.images.dtype}" for d in (dataset, like))
    if own != wanted:
        raise InputError(f"{dataset.name}: its images are {own}, those to validate on {wanted}")
