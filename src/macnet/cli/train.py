"""The command that trains."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from macnet.cli.lessons import (
    DataOptions,
    LessonOptions,
    WorldOptions,
    open_lessons,
    refuse_impossible,
    tell,
)
from macnet.cli.opening import Means
from macnet.cli.options import (
    PLAIN,
    Device,
    File,
    Workers,
    choose_cache,
    choose_device,
    choose_share_of_workers,
    read_size,
)
from macnet.cli.overrides import choose
from macnet.errors import InputError

if TYPE_CHECKING:
    import torch

    from macnet.data.dataset import Dataset
    from macnet.training.recipes import Recipe
    from macnet.training.trainer import Trainer

MANY_WEIGHTS = 5_000_000  # of which a CPU would take days to learn anything


# Sentences are of one line: `--help` would keep a break.
@dataclass(frozen=True)
class NetworkOptions:
    """What is trained, and how: a preset, then what changes it, in this order."""

    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = "paper"
    """paper, pixels, small, reference, reference-recurrent, all MAC; q-type, lstm or cnn-lstm."""
    ablation: Annotated[str | None, tyro.conf.arg(metavar="ROW", help_behavior_hint="")] = None
    """A row of the paper's table 2 by its label, such as "w/ memory gate"."""
    recipe: Annotated[str, tyro.conf.arg(metavar="NAME")] = "paper"
    """paper is the paper's, filled in where it is silent; fast is for a modern GPU, in bfloat16."""
    overrides: File = None
    """A .toml or .json with tables `model` and `recipe`; flags for single fields overrule it."""
    start: Annotated[
        Path | None, tyro.conf.arg(name="from", metavar="RUN", help_behavior_hint="")
    ] = None
    """A run, or its best.safetensors, to start from: its network and its words."""


@dataclass(frozen=True)
class RunOptions:
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
    where: Annotated[Path | None, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = None,
    /,
    *,
    network: Annotated[NetworkOptions, *PLAIN],
    data: Annotated[DataOptions, *PLAIN],
    world: Annotated[WorldOptions, *PLAIN],
    lesson: Annotated[LessonOptions, *PLAIN],
    run: Annotated[RunOptions, *PLAIN],
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
    from macnet.training.run import has_learned, refuse_held
    from macnet.training.trainer import Plan, Trainer

    refuse_impossible(data, lesson)
    if not run.save_every >= 0:
        raise InputError(f"--save-every is {run.save_every}; it must be a number from 0")
    if not 0 <= run.seed < 1 << 32:
        raise InputError(f"--seed is {run.seed}; it must be a whole number from 0, below 2^32")
    device, workers = choose_device(run.device), choose_share_of_workers(run.workers)
    with together(device) as own:
        if is_first() and not run.resume and has_learned(run.out):
            refuse_held(run.out)  # before hours are spent on packing
        means = Means(choose_cache(lesson.cache), read_size(lesson.size), str(own), workers)
        start = None if network.start is None else open_trained(network.start)
        lessons = open_lessons(where, data, world, lesson, start=start, means=means, seed=run.seed)
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
        first = is_first()
        if first:
            _tell_network(trainer, network.recipe, own)
            tell(lessons)
        learned = trainer.train(resume=run.resume)
    if first and not learned:
        print(f"{run.out}: this run is finished already; nothing to do")
    if first:
        _show_best(run.out, lessons.val, own, recipe)


def command(arguments: Sequence[str]) -> partial[None]:
    """`train`, with the flags and defaults that follow from what these arguments choose."""
    chosen = choose(arguments)
    return partial(
        train,
        network=NetworkOptions(preset=chosen.preset),
        lesson=LessonOptions() if chosen.size is None else LessonOptions(size=chosen.size),
        model=chosen.model,
        recipe=chosen.recipe,
    )


def _tell_network(trainer: Trainer, recipe: str, device: torch.device) -> None:
    """Print what is trained, as it will be built, and how; the first line of a run.

    A warning follows where days of a CPU are about to be spent.
    """
    from macnet.clevr.world import World
    from macnet.models.registry import find_preset
    from macnet.training.checkpoint import build_on_meta
    from macnet.training.recipes import find_recipe

    plan, fit, train = trainer.plan, trainer.lessons.fit(), trainer.lessons.train
    system, published = find_preset(plan.preset)
    row = system.find_row(plan.model)
    preset = f"preset {plan.preset}"
    if row not in (None, system.row):
        preset += f", {row}"
    elif plan.model != system.fitted(published, fit):
        preset += " with changes"
    if plan.recipe != find_recipe(recipe, system.name):
        recipe += " with changes"
    weights = build_on_meta(system, plan.model, fit).parameters()
    size = sum(weight.numel() for weight in weights)
    images = f"features of {fit.channels}x{fit.height}x{fit.width}"
    if fit.pixels:
        images = f"pixels of {fit.width}x{fit.height}"
    print(
        f"training {system.row}: {preset}, {size:,} parameters, recipe {recipe}; images are "
        f"{images}",
        flush=True,
    )
    of_clevr = not isinstance(train, World) and train.about.get("origin") == "CLEVR"
    of_features = getattr(published, "image", None) == "features"
    if fit.pixels and of_clevr and of_features and plan.start is None:
        print(
            "The paper's MAC learns from ResNet-101 features of CLEVR's pictures, not from pixels; "
            "for its experiment make them with `macnet extract`, of train and of val, and give "
            "them as --images and --val-images.",
            flush=True,
        )
    if device.type == "cpu" and size > MANY_WEIGHTS:  # on stderr, for it is no result
        print(
            f"On a CPU, a network of {size / 1e6:.0f} million weights learns from a few questions "
            "a second; use a GPU, or --preset small, a MAC that two cores can train.",
            file=sys.stderr,
            flush=True,
        )


def _show_best(out: Path, val: Dataset, device: torch.device, recipe: Recipe) -> None:
    from macnet.evaluation.accuracy import measure
    from macnet.evaluation.answering import Answering
    from macnet.evaluation.paper import find_published
    from macnet.evaluation.report import show
    from macnet.training.checkpoint import open_trained
    from macnet.training.record import read_record
    from macnet.training.run import CURVE, RECORD

    best = open_trained(out)
    with Answering(val, device=device, precision=recipe.precision) as answering:
        network = best.network().to(device)
        answers = answering(best.system, network, show=False, name=best.path)
    results = measure(val, answers)
    seconds = max(line.get("seconds", 0.0) for line in read_record(out / RECORD))
    print(
        f"{out}: best validation accuracy {100 * results.overall.value:.2f}% ({len(val):,} "
        f"questions), {seconds:,.0f} s; curve in {out / CURVE}"
    )
    paper = find_published(best.row, best.share)
    show(results, row=best.system.row, what=val.name, paper=paper, errors=False)
