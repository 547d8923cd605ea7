"""What a network learns from and is validated on: datasets, or the generated world itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from macnet import parallel
from macnet.clevr.world import World
from macnet.data.batches import Batches, Source
from macnet.data.dataset import Dataset, Subset
from macnet.data.mixture import Mixture, positions
from macnet.data.questions import UNKNOWN
from macnet.data.stream import EndlessBatches
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError
from macnet.models.registry import Fit
from macnet.training.recipes import Recipe

USUAL = {"images": 64, "questions": 10}  # in a batch, of recipes that come with macnet
EPOCH = 700_000  # questions of an endless world that count as one: as many as CLEVR has


@dataclass(frozen=True)
class Lessons:
    """Sets that go together: in the words of one vocabulary, with images of one shape."""

    train: Dataset | World
    """A world is drawn as it is learned from, each image once."""
    val: Dataset
    old: Dataset | None = None
    """What the network has learned from before, to be mixed in: it forgets less."""
    share: float = 0.0
    """Of batches that are old."""

    def __post_init__(self) -> None:
        for dataset in (self.val, self.train, self.old):
            if isinstance(dataset, Dataset):
                _refuse_unfit(dataset, like=self.val)
        if isinstance(self.train, World):
            drawn = self.train.height, self.train.width, 3
            seen = self.val.images.shape[1:]
            if self.val.images.dtype.kind != "u" or drawn != seen:
                raise InputError(
                    f"the world is drawn as {drawn}, but those images to be validated on are "
                    f"{seen} of {self.val.images.dtype}; they must be alike"
                )

    @property
    def vocabulary(self) -> Vocabulary:
        return self.val.vocabulary

    def fit(self) -> Fit:
        """What a network must fit to learn from these."""
        _, height, width, channels = self.val.images.shape
        words, answers = self.vocabulary.words, self.vocabulary.answers
        pixels = self.val.images.dtype.kind == "u"
        return Fit(len(words), len(answers), pixels, channels, height, width)

    def open(
        self,
        recipe: Recipe,
        subset: Subset | None,
        *,
        seed: int,
        device: torch.device,
        position: int,
        workers: int,
        compile: bool = False,
    ) -> Source:
        """Batches of this process, from the position on where an earlier run stopped."""
        train = self.check(recipe, subset)
        images = recipe.images // parallel.size()
        shard = parallel.rank(), parallel.size()

        def batches(dataset: Dataset, position: int) -> Batches:
            return Batches(
                dataset,
                images=images,
                questions=recipe.questions,
                seed=seed,
                device=device,
                shard=shard,
                position=position,
            )

        def main(position: int) -> Source:
            if isinstance(train, Dataset):
                return batches(train, position)
            return EndlessBatches(
                replace(train, questions_per_image=recipe.questions),
                self.vocabulary,
                images=images,
                device=device,
                workers=workers,
                shard=shard,
                position=position,
                compile=compile,
            )

        if self.old is None:
            return main(position)
        new, old = positions(position, self.share)
        return Mixture(main(new), batches(self.old, old), self.share)

    def check(self, recipe: Recipe, subset: Subset | None) -> Dataset | World:
        """What is learned from, or why it cannot be by this recipe, before anything is opened."""
        if recipe.images % parallel.size():
            raise InputError(
                f"recipe.images is {recipe.images}; it must be a multiple of the "
                f"{parallel.size()} processes that share a batch"
            )
        if (recipe.shift or recipe.jitter) and not self.fit().pixels:
            raise InputError(
                f"recipe.shift is {recipe.shift} and recipe.jitter {recipe.jitter}, but these are "
                "features; only pictures are moved and lit anew"
            )
        train = self.train
        if subset is not None:
            if isinstance(train, World):
                raise InputError("an endless world has no subset; make a dataset of it first")
            train = train.subset(subset)
        for dataset in (train, self.old):
            if isinstance(dataset, Dataset):
                _check_batch(recipe, dataset)
        return train

    def to_record(self) -> dict[str, Any]:
        """For whoever wants to know, and to see that a run goes on with the same."""
        train = asdict(self.train) if isinstance(self.train, World) else self.train.about
        old = None if self.old is None else {"share": self.share, **self.old.about}
        return {"train": train, "val": self.val.about, "old": old}


def steps_of_epoch(source: Source, recipe: Recipe) -> int:
    return source.steps or -(-EPOCH // (recipe.images * recipe.questions))


def _check_batch(recipe: Recipe, dataset: Dataset) -> None:
    """Whether a batch is larger than all there is, and would be filled up with repetitions.

    One of the usual size may be: a set for a first try is small, and the repetitions cost little.
    """
    dataset.refuse_empty()
    _, counts = np.unique(dataset.rows[dataset.chosen], return_counts=True)
    most, groups = int(counts.max()), int((-(-counts // recipe.questions)).sum())
    if recipe.questions > max(most, USUAL["questions"]):
        raise InputError(
            f"recipe.questions is {recipe.questions:,}, but {dataset.name} has {most:,} questions "
            "about an image at most; give no more than that"
        )
    if recipe.images > max(groups, USUAL["images"]):
        raise InputError(
            f"recipe.images is {recipe.images:,}, but {dataset.name} makes {groups:,} groups of "
            f"{recipe.questions} question(s) about an image in all; give no more than that"
        )


def _refuse_unfit(dataset: Dataset, like: Dataset) -> None:
    dataset.refuse_empty()
    if (dataset.answers == UNKNOWN).any():
        raise InputError(
            f"{dataset.name}: its questions have no answers, so nothing can be learned"
        )
    if dataset.vocabulary != like.vocabulary:
        raise InputError(f"{dataset.name}: it is in other words than {like.name}")
    if (
        dataset.images.shape[1:] != like.images.shape[1:]
        or dataset.images.dtype != like.images.dtype
    ):
        raise InputError(
            f"{dataset.name}: its images are {dataset.images.shape[1:]} of {dataset.images.dtype}, "
            f"those to be validated on {like.images.shape[1:]} of {like.images.dtype}"
        )
