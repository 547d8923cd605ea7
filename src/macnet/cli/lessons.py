"""What `macnet train` lets a network learn from: the options that say it, and how it is opened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from macnet.cli.opening import Drawn, Means, OnDisk
from macnet.cli.options import (
    File,
    Folder,
    Number,
    Size,
    Somewhere,
    Tokenising,
    refuse_below_one,
    refuse_given,
    refuse_two_tokenisings,
)
from macnet.errors import InputError

if TYPE_CHECKING:
    from macnet.data.dataset import Dataset
    from macnet.data.vocab import Vocabulary
    from macnet.training.checkpoint import Trained
    from macnet.training.data import Lessons

Share = Annotated[float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="")]


# Sentences are of one line: `--help` would keep a break.
@dataclass(frozen=True)
class DataOptions:
    """Where DATA is given: CLEVR, CoGenT, CLEVR-Humans, a world made here, or a questions file."""

    split: str = "train"
    """To learn from; of CoGenT, trainA."""
    val_split: Annotated[str | None, tyro.conf.arg(metavar="STR", help_behavior_hint="")] = None
    """To validate on; if not given val, or valA beside trainA."""
    val: Somewhere = None
    """Another DATA to validate on, such as a second questions file (.h5)."""
    images: Somewhere = None
    """Where the images are, if not in DATA: a folder, or a file of features (.h5)."""
    val_images: Somewhere = None
    """Where those are that are validated on, if elsewhere."""
    vocabulary: File = None
    """A file of words, ours or a vocab.json. If not given, they are those of DATA, or of --from."""
    tokenising: Tokenising = None
    """How questions become words, if no vocabulary says so; mac if not given."""
    at_least: Number = None
    """Let the vocabulary grow by the words that occur so often in DATA's training split."""
    skip_missing: bool = False
    """Leave out questions about images that are not there."""
    mix: Somewhere = None
    """Another DATA, to be mixed in: what was learned from before, lest it be forgotten."""
    mix_share: float = 0.5
    """Of the batches, those that are mixed in."""


@dataclass(frozen=True)
class WorldOptions:
    """Where no DATA is given: the generated world."""

    world_seed: int = 1
    """Another seed is another world."""
    world_images: Number = None
    """Learn from so many images again and again. If not given, each is new, without an end."""
    world_val_images: int = 1000
    """Validate on so many images."""
    compile: bool = False
    """Compile what draws the endless world: that takes minutes, and then it draws faster."""


@dataclass(frozen=True)
class LessonOptions:
    """Of DATA or the world, whichever is learned from."""

    size: Size = "128x128"
    """To which pictures are brought, in pixels."""
    subset_questions: Share = None
    """Learn from a share of the questions, such as 0.1, as the paper does."""
    subset_images: Share = None
    """Learn from all questions about a share of the images."""
    validate_on: Number = None
    """Validate on so many questions at most, about images chosen at random."""
    cache: Folder = None
    """Of packed arrays, to be deleted at will; $MACNET_CACHE or ~/.cache/macnet if not given."""


def refuse_impossible(data: DataOptions, lesson: LessonOptions) -> None:
    refuse_below_one("--at-least", data.at_least)
    refuse_below_one("--validate-on", lesson.validate_on)
    if not 0 < data.mix_share < 1:
        raise InputError(f"--mix-share is {data.mix_share}; it must lie between 0 and 1")
    if lesson.subset_questions is not None and lesson.subset_images is not None:
        raise InputError("--subset-questions and --subset-images are given; choose one of the two")


def open_lessons(
    where: Path | None,
    data: DataOptions,
    world: WorldOptions,
    lesson: LessonOptions,
    *,
    start: Trained | None,
    means: Means,
    seed: int,
) -> Lessons:
    """From DATA or the world; in the words of the network that is started from, if there is one."""
    if where is None:
        refuse_given(data, "there is no DATA")
        lessons = _from_world(world, start, means)
    else:
        refuse_given(world, f"{where} is what to learn from")
        lessons = _from_data(where, data, start, means)
    return _parts_of(lessons, lesson, seed)


def _from_world(options: WorldOptions, start: Trained | None, means: Means) -> Lessons:
    from macnet.clevr.world import World
    from macnet.data.stream import language
    from macnet.data.vocab import Vocabulary
    from macnet.training.data import Lessons

    if options.compile and options.world_images is not None:
        raise InputError("--compile is for a world without an end; give no --world-images")
    words = Vocabulary.build(language()) if start is None else start.vocabulary
    seed, (width, height) = options.world_seed, means.size
    val = Drawn(seed, "val", options.world_val_images).open(words, means)
    if options.world_images is None:
        return Lessons(World(seed, width=width, height=height), val)
    return Lessons(Drawn(seed, "train", options.world_images).open(words, means), val)


def _from_data(where: Path, options: DataOptions, start: Trained | None, means: Means) -> Lessons:
    from macnet.data.pack import holds_unk
    from macnet.data.splits import find_questions
    from macnet.training.data import Lessons

    _, kind = find_questions(where, options.split)
    if kind == "community" and options.val is None:
        raise InputError(f"{where}: it holds one split only; say with --val what to validate on")
    if options.val_images is None and options.images is not None and options.images.is_file():
        raise InputError(
            f"--images is {options.images}, features of one split; say with --val-images where "
            "those are that are validated on"
        )
    words = _words(where, options, start, means.cache)

    def learned_from(data: Path) -> Dataset:
        place = OnDisk(data, options.split, options.images, options.skip_missing)
        return place.open(words, means, learn=True)

    learned = [learned_from(data) for data in (where, options.mix) if data is not None]
    # Known now: whether <UNK> is among what is learned, and means something where it is asked.
    if any(holds_unk(d.questions.tokens[d.chosen]) for d in learned):
        words = replace(words, unk_learned=True)
    train, *old = (replace(dataset, vocabulary=words) for dataset in learned)
    val = OnDisk(
        options.val or where,
        options.val_split or options.split.replace("train", "val"),
        options.val_images or options.images,
        options.skip_missing,
    ).open(words, means)
    return Lessons(train, val, old[0], options.mix_share) if old else Lessons(train, val)


def _words(where: Path, options: DataOptions, start: Trained | None, cache: Path) -> Vocabulary:
    """Of DATA or a file; or those of a checkpoint, which may grow by DATA's."""
    from macnet.data.clevr import read_questions
    from macnet.data.pack import pack_vocabulary
    from macnet.data.splits import find_questions

    given, tokenising, at_least = options.vocabulary, options.tokenising, options.at_least
    if start is None:
        refuse_two_tokenisings(given, tokenising)
        return pack_vocabulary(where, options.split, cache, given, tokenising or "mac", at_least)
    if given or tokenising:
        flag = "vocabulary" if given else "tokenising"
        raise InputError(f"--{flag} is given, but {start.path} has words of its own")
    if at_least is None:
        return start.vocabulary
    path, kind = find_questions(where, options.split)
    if kind == "community":
        raise InputError(f"{path}: it holds numbers, and no words to grow by; give no --at-least")
    questions = read_questions(path, kind=kind, split=options.split)
    return start.vocabulary.grown((q.question for q in questions), at_least=at_least)


def _parts_of(lessons: Lessons, options: LessonOptions, seed: int) -> Lessons:
    """What is learned from, of what there is, and what is validated on."""
    import numpy as np

    from macnet.clevr.world import World
    from macnet.data.dataset import Subset

    train, val = lessons.train, lessons.val
    by: Literal["question", "image"] = "image" if options.subset_questions is None else "question"
    share = options.subset_images if by == "image" else options.subset_questions
    if share is not None:
        if isinstance(train, World):
            raise InputError(f"--subset-{by}s is given, but a world without an end has no share")
        train = train.subset(Subset(by, share, seed))
    if options.validate_on is not None:
        _, asked = np.unique(val.rows[val.chosen], return_counts=True)
        images = max(1, options.validate_on // asked.max())
        val = val.subset(Subset("image", min(1, images / len(asked)), seed))
    return replace(lessons, train=train, val=val)


def tell(lessons: Lessons) -> None:
    """Print what is learned from."""
    import numpy as np

    from macnet.data.dataset import Dataset

    sets = {"learning from": lessons.train, "beside": lessons.old, "validated on": lessons.val}
    for what, dataset in sets.items():
        if isinstance(dataset, Dataset):
            left_out = dataset.about["left out"]
            images = len(np.unique(dataset.rows[dataset.chosen]))
            print(
                f"{what} {len(dataset):,} questions about {images:,} images; "
                f"{dataset.about['words']}"
                + (f"; {left_out:,} are left out, their images are not there" if left_out else ""),
                flush=True,
            )
        elif dataset is not None:
            print(f"{what} world {dataset.seed}, without an end", flush=True)
