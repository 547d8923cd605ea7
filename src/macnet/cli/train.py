"""The command that trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from macnet.cli.datasets import Drawn, Means, OnDisk, refuse_two_tokenisings
from macnet.cli.options import (
    PLAIN,
    Device,
    File,
    Folder,
    Number,
    Size,
    Somewhere,
    Tokenising,
    Workers,
    choose_cache,
    choose_device,
    choose_share_of_workers,
    read_size,
    refuse_below_one,
    refuse_given,
)
from macnet.cli.overrides import choose
from macnet.errors import InputError

if TYPE_CHECKING:
    import torch

    from macnet.data.dataset import Dataset
    from macnet.data.vocab import Vocabulary
    from macnet.training.checkpoint import Trained
    from macnet.training.data import Lessons

Share = Annotated[float | None, tyro.conf.arg(metavar="SHARE")]


# Sentences are of one line: `--help` would keep a break.
@dataclass(frozen=True)
class Network:
    """What is trained, and how: a preset, then what changes it, in this order."""

    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "paper"
    """paper, reference or reference-recurrent, which are MAC; q-type, lstm or cnn-lstm."""
    ablation: Annotated[str | None, tyro.conf.arg(metavar="ROW")] = None
    """A row of the paper's table 2 by its label, such as "w/ memory gate"."""
    recipe: Annotated[str, tyro.conf.arg(metavar="NAME")] = "paper"
    """paper is as published; fast has large batches in bfloat16, for a modern GPU."""
    overrides: File = None
    """A .toml or .json with tables `model` and `recipe`; flags for single fields overrule it."""
    start: Annotated[Path | None, tyro.conf.arg(name="from", metavar="RUN")] = None
    """A run, or its best.safetensors, to start from: its network and its words."""


@dataclass(frozen=True)
class OfData:
    """Where DATA is given: CLEVR, CoGenT, CLEVR-Humans, a world made here, or a questions file."""

    split: str = "train"
    """To learn from; of CoGenT, trainA."""
    val_split: Annotated[str | None, tyro.conf.arg(metavar="STR")] = None
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
class OfWorld:
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
class OfLesson:
    """In either case."""

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


@dataclass(frozen=True)
class OfRun:
    """The run itself."""

    out: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Its folder, for the record, the checkpoints and the learning curve."""
    resume: bool = False
    """Go on with the run that is in the folder; all else in the command must be as before."""
    seed: int = 0
    """Of the first weights, the order of questions, dropout and subsets."""
    device: Device = "auto"
    """auto takes a GPU if there is one; for several, start this command with torchrun."""
    workers: Workers = None
    """Processes that decode images or make the world; as many as there are cores if not given."""
    save_every: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 60.0
    """Between checkpoints; Ctrl-C saves too."""
    tensorboard: bool = False
    """Write for TensorBoard too."""
    no_capture: bool = False
    """Launch steps on a GPU piece by piece, which is slower, to look for errors."""


def train(
    where: Annotated[Path | None, tyro.conf.arg(metavar="[DATA]")] = None,
    /,
    *,
    network: Annotated[Network, *PLAIN],
    data: Annotated[OfData, *PLAIN],
    world: Annotated[OfWorld, *PLAIN],
    lesson: Annotated[OfLesson, *PLAIN],
    run: Annotated[OfRun, *PLAIN],
    model: Any = None,
    recipe: Any = None,
) -> None:
    """Train a network, and validate it as it learns.

    A run that was stopped, even killed, goes on when the same command is given with --resume. At
    the end the best network is shown; `macnet evaluate RUN` shows it again, or on other data.

    Args:
        where: A dataset, or a questions file (.h5). If not given, a world is made to learn from.
        model: Single fields of the network.
        recipe: Single fields of the recipe.
    """
    from macnet.parallel import is_first, together
    from macnet.training.checkpoint import open_trained
    from macnet.training.trainer import Plan, Trainer

    _refuse_impossible(data, lesson, run)
    device, workers = choose_device(run.device), choose_share_of_workers(run.workers)
    with together(device) as own:
        means = Means(choose_cache(lesson.cache), read_size(lesson.size), str(own), workers)
        start = None if network.start is None else open_trained(network.start)
        if where is None:
            refuse_given(data, "there is no DATA")
            lessons = _from_world(world, start, means)
        else:
            refuse_given(world, f"{where} is what to learn from")
            lessons = _from_data(where, data, start, means)
        lessons = _parts_of(lessons, lesson, run.seed)
        trainer = Trainer(
            run.out,
            Plan(preset=network.preset, model=model, recipe=recipe, seed=run.seed, start=start),
            lessons,
            device=own,
            workers=workers,
            save_every=run.save_every,
            tensorboard=run.tensorboard,
            capture=not run.no_capture,
            compile=world.compile,
        )
        if is_first():
            _tell(lessons)
        news, alone = trainer.train(resume=run.resume), is_first()
    if alone and not news:
        print(f"{run.out}: this run is finished already; nothing to do")
    if alone:
        _show_best(run.out, lessons.val, own, recipe.precision)


def command(arguments: Sequence[str]) -> Callable[..., None]:
    """`train`, with the flags and defaults that follow from what these arguments choose."""
    chosen = choose(arguments)
    return partial(
        train,
        network=Network(preset=chosen.preset),
        lesson=OfLesson() if chosen.size is None else OfLesson(size=chosen.size),
        model=chosen.model,
        recipe=chosen.recipe,
    )


def _refuse_impossible(data: OfData, lesson: OfLesson, run: OfRun) -> None:
    refuse_below_one("--at-least", data.at_least)
    refuse_below_one("--validate-on", lesson.validate_on)
    if not 0 < data.mix_share < 1:
        raise InputError(f"--mix-share is {data.mix_share}; it must lie between 0 and 1")
    if not run.save_every >= 0:
        raise InputError(f"--save-every is {run.save_every}; it must be a number from 0")
    if not 0 <= run.seed < 1 << 32:
        raise InputError(f"--seed is {run.seed}; it must be a whole number from 0, below 2^32")
    if lesson.subset_questions is not None and lesson.subset_images is not None:
        raise InputError("--subset-questions and --subset-images are given; choose one of the two")


# --- what is learned from ---------------------------------------------------------------------


def _from_world(options: OfWorld, start: Trained | None, means: Means) -> Lessons:
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


def _from_data(where: Path, options: OfData, start: Trained | None, means: Means) -> Lessons:
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

    def opened(data: Path, split: str, images: Path | None) -> Dataset:
        return OnDisk(data, split, images, options.skip_missing).open(words, means)

    val_split = options.val_split or options.split.replace("train", "val")
    train = opened(where, options.split, options.images)
    val = opened(options.val or where, val_split, options.val_images or options.images)
    if options.mix is None:
        return Lessons(train, val)
    old = opened(options.mix, options.split, options.images)
    return Lessons(train, val, old, options.mix_share)


def _words(where: Path, options: OfData, start: Trained | None, cache: Path) -> Vocabulary:
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
    texts = (question.question for question in read_questions(path, kind=kind))
    return start.vocabulary.grown(texts, at_least=at_least)


def _parts_of(lessons: Lessons, options: OfLesson, seed: int) -> Lessons:
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


# --- what is said -----------------------------------------------------------------------------


def _tell(lessons: Lessons) -> None:
    from macnet.data.dataset import Dataset

    sets = {"learning from": lessons.train, "beside": lessons.old, "validated on": lessons.val}
    for what, dataset in sets.items():
        if isinstance(dataset, Dataset):
            left_out = dataset.about["left out"]
            print(
                f"{what} {len(dataset):,} questions about {len(dataset.images):,} images; "
                f"{dataset.about['words']}"
                + (f"; {left_out:,} are left out, their images are not there" if left_out else ""),
                flush=True,
            )
        elif dataset is not None:
            print(f"{what} world {dataset.seed}, without an end", flush=True)


def _show_best(out: Path, val: Dataset, device: torch.device, precision: Any) -> None:
    from macnet.evaluation.accuracy import measure
    from macnet.evaluation.answering import Answering, name_of
    from macnet.evaluation.report import show
    from macnet.training.checkpoint import open_trained
    from macnet.training.record import read_record
    from macnet.training.run import CURVE, RECORD

    best = open_trained(out)
    with Answering(val, device=device, precision=precision) as answering:
        answers = answering(best.system, best.network().to(device), show=False)
    results = measure(val, answers)
    seconds = max(line.get("seconds", 0.0) for line in read_record(out / RECORD))
    print(
        f"{out}: best validation accuracy {100 * results.overall.value:.2f}% ({len(val):,} "
        f"questions), {seconds:,.0f} s; curve in {out / CURVE}"
    )
    show(results, row=best.system.row, what=name_of(val), errors=False)
