"""From the arguments of `macnet.train` to training data: datasets or the generated world."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np

from macnet.checkpoint import TrainedNetwork
from macnet.clevr.release import scenes_file
from macnet.clevr.scene import MAX_OBJECTS, MIN_OBJECTS
from macnet.clevr.world import World, check_families, check_num_objects
from macnet.data.block_encoder import check_vocabulary, world_texts
from macnet.data.dataset import Subset
from macnet.data.formats import CLEVR
from macnet.data.pack import contains_unk, pack_vocabulary
from macnet.data.sources import DiskDataset, GeneratedDataset, LoadOptions
from macnet.data.splits import find_questions
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError
from macnet.training.training_data import TrainingData

Location = str | PathLike[str]


WORLD_OPTIONS = (
    *("world_seed", "world_images", "world_val_images"),
    *("world_num_objects", "world_families"),
)
DISK_OPTIONS = (
    *("split", "val", "val_split", "images", "val_images", "vocabulary", "tokenizer", "min_count"),
    *("skip_missing", "replay", "replay_share"),
)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The arguments of `macnet.train` that choose data; they are described there."""

    split: str = "train"
    val: Location | None = None
    val_split: str | None = None
    images: Location | None = None
    val_images: Location | None = None
    vocabulary: Location | None = None
    tokenizer: str | None = None
    min_count: int | None = None
    skip_missing: bool = False
    replay: Location | None = None
    replay_share: float = 0.5
    world_seed: int = 1
    world_images: int | None = None
    world_val_images: int = 1000
    world_num_objects: tuple[int, int] = (MIN_OBJECTS, MAX_OBJECTS)
    world_families: tuple[str, ...] = ()
    subset_questions: float | None = None
    subset_images: float | None = None
    fresh_questions: bool = False
    validate_on: int | None = None

    def __post_init__(self) -> None:
        for name in ("min_count", "validate_on"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"`{name}` is {value}; it must be at least 1")
        check_num_objects(self.world_num_objects, "world_num_objects")
        check_families(self.world_families, "world_families")
        if not 0 < self.replay_share < 1:
            raise InputError(f"`replay_share` is {self.replay_share}; it must lie between 0 and 1")
        if self.subset_questions is not None and self.subset_images is not None:
            raise InputError("`subset_questions` and `subset_images` are given; choose one")
        if self.subset_questions is not None and self.fresh_questions:
            raise InputError(
                "`subset_questions` is given, but `fresh_questions` replaces all of them; give "
                "`subset_images`, or leave out one of the two"
            )

    def check_unused(self, names: Collection[str], why: str) -> None:
        """Check that options which mean nothing now are as they are by default."""
        for field in fields(self):
            if field.name in names and getattr(self, field.name) != field.default:
                raise InputError(f"`{field.name}` is given, but {why}")


def open_training_data(
    data: Location | None,
    options: DataOptions,
    load: LoadOptions,
    *,
    seed: int = 0,
    start: TrainedNetwork | None = None,
) -> TrainingData:
    """The dataset, or the generated world if `data` is None; in the words of `start`, if given."""
    if data is None:
        options.check_unused(DISK_OPTIONS, "there is no `data`")
        training_data = _open_world(options, start, load)
    else:
        options.check_unused(WORLD_OPTIONS, f"{data} is what to learn from")
        training_data = _open_disk(Path(data), options, start, load)
    return _take_subsets(training_data, options, seed)


def _open_world(
    options: DataOptions, start: TrainedNetwork | None, load: LoadOptions
) -> TrainingData:
    if options.fresh_questions and options.world_images is None:
        raise InputError(
            "`fresh_questions` is given, but all questions about a world without an end are new; "
            "give `world_images`, or leave it out"
        )
    words = Vocabulary.build(world_texts()) if start is None else start.vocabulary
    val = GeneratedDataset(
        options.world_seed,
        "val",
        options.world_val_images,
        options.world_num_objects,
        options.world_families,
    )
    validated = val.open(words, load)
    if options.world_images is None:
        return TrainingData(val.world(load.size), validated)
    train = replace(val, split="train", count=options.world_images)
    return TrainingData(train.open(words, load), validated, fresh_questions=options.fresh_questions)


def _open_disk(
    data: Path, options: DataOptions, start: TrainedNetwork | None, load: LoadOptions
) -> TrainingData:
    split, images, val_images = options.split, _path(options.images), _path(options.val_images)
    _, format = find_questions(data, split)
    if data.is_file() and options.val is None:
        raise InputError(f"{data}: it holds one split only; give `val`, the data to validate on")
    if val_images is None and images is not None and images.is_file():
        raise InputError(
            f"`images` is {images}, features of one split; give `val_images`, the features of the "
            "images to validate on"
        )
    for name in ("vocabulary", "tokenizer"):
        if start is not None and getattr(options, name):
            raise InputError(f"`{name}` is given, but {start.path} has a vocabulary of its own")
    fresh = options.fresh_questions
    if fresh and format is not CLEVR:
        raise InputError(
            f"`fresh_questions` is given, but {data} has the format {format.name}; only questions "
            "as CLEVR's can be generated"
        )
    if fresh and not (scenes := scenes_file(data, split)).is_file():
        raise InputError(
            f"`fresh_questions` is given, but there is no file {scenes}, which would say what is "
            "in the images"
        )
    known = options.vocabulary if start is None else start.vocabulary  # it may grow by the data's
    words = pack_vocabulary(data, split, load.cache, known, options.tokenizer, options.min_count)
    if fresh:  # a small dataset may lack words of questions that it could have had
        words = words.extended(world_texts(), min_count=1)
        check_vocabulary(words)  # of answers it has those that it was given
    learned = [
        DiskDataset(path, split, images, options.skip_missing).open(
            words, load, training=True, with_scenes=fresh and path == data
        )
        for path in (data, _path(options.replay))
        if path is not None
    ]
    # Only now is it known whether <UNK> occurs in training, and so means something.
    if any(contains_unk(d.questions.tokens[d.selected]) for d in learned):
        words = replace(words, unk_learned=True)
    train, *old = (replace(dataset, vocabulary=words) for dataset in learned)
    val = DiskDataset(
        _path(options.val) or data,
        options.val_split or format.validation_split(split),
        val_images or images,
        options.skip_missing,
        train.format.question_types,
    ).open(words, load)
    training_data = TrainingData(train, val, *(old and (old[0], options.replay_share)))
    return replace(training_data, fresh_questions=fresh)


def _path(given: Location | None) -> Path | None:
    return None if given is None else Path(given)


def _take_subsets(training_data: TrainingData, options: DataOptions, seed: int) -> TrainingData:
    train, val = training_data.train, training_data.val
    by: Literal["question", "image"] = "image" if options.subset_questions is None else "question"
    share = options.subset_images if by == "image" else options.subset_questions
    if share is not None:
        if isinstance(train, World):
            raise InputError(f"`subset_{by}s` is given, but a world without an end has no share")
        train = train.subset(Subset(by, share, seed))
    if options.validate_on is not None:
        _, counts = np.unique(val.image_rows[val.selected], return_counts=True)
        images = max(1, options.validate_on // counts.max())
        val = val.subset(Subset("image", min(1, images / len(counts)), seed))
    return replace(training_data, train=train, val=val)
