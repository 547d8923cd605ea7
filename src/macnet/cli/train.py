"""The command that trains: `macnet.train`, and what is printed before and after."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from functools import partial
from textwrap import indent
from typing import TYPE_CHECKING, Any

from macnet.cli.from_library import Option, make_command
from macnet.cli.options import read_size
from macnet.cli.overrides import choose

if TYPE_CHECKING:
    from macnet.training.train import Run
    from macnet.training.trainer import Trainer

MANY_WEIGHTS = 5_000_000  # of which a CPU would take days to learn anything
ADVANCED = (
    *("val_split", "val_images", "vocabulary", "tokenizer", "min_count", "skip_missing"),
    *("replay_share", "world_seed", "world_val_images", "world_num_objects", "world_families"),
    *("subset_images", "fresh_questions", "save_every", "capture", "model", "recipe_changes"),
)
"""Arguments that only `--help-all` shows."""
METAVARS = {
    **{"ablation": "ROW", "out": "RUN", "cache": "DIR", "overrides": "FILE", "vocabulary": "FILE"},
    **{"subset_questions": "SHARE", "subset_images": "SHARE", "save_every": "SECONDS"},
    **{"device": "auto|cpu|cuda", "programs": "NUMBER|all"},
    **{"world_num_objects": "MIN MAX", "world_families": "GROUP [GROUP ...]"},
}


PRESET = "The network and its configuration, one of the presets above."
SIZE = "Width and height of images in pixels."
NO_CAPTURE = "Do not capture steps as a CUDA graph, which is slower, to look for errors."


def train(data: Any = None, /) -> None:
    """Train a network, and validate it as it learns.

    A run that was stopped, even killed, goes on when the same command is given with --resume. At
    the end the best network is evaluated; `macnet evaluate RUN` does it again, or on other data.
    See `macnet train --help-all` for all options, with --model.* and --recipe.* for single fields.
    """


def command(arguments: Sequence[str], *, brief: bool) -> type:
    """`train`, with the flags and defaults that follow from what these arguments choose.

    `brief`: only with the options that a short help shows.
    """
    from macnet.cli.main import with_flags
    from macnet.training import train as library

    chosen = choose(arguments)
    size = "{}x{}".format(*library.image_size(chosen.start))
    options = {
        **{name: Option(metavar=metavar) for name, metavar in METAVARS.items()},
        "data": Option(metavar="[DATA]"),
        "preset": Option(type=str, metavar="NAME", default=chosen.preset, help=PRESET),
        "model": Option(type=type(chosen.model), default=chosen.model),
        "recipe": Option(type=str, metavar="NAME"),
        "recipe_changes": Option("recipe", type=type(chosen.recipe), default=chosen.recipe),
        "start": Option("from", metavar="RUN"),
        "size": Option(type=str, metavar="WIDTHxHEIGHT", default=size, help=SIZE),
        "capture": Option(help=NO_CAPTURE),
    }
    hidden = ("on_start", *(ADVANCED if brief else ()))
    translate = partial(with_flags, given=["train"])
    preset_given = any(word.partition("=")[0] == "--preset" for word in arguments)
    doc = _help(chosen.preset if preset_given else None)
    return make_command(library.train, _train, doc, translate, options, hidden)


def _help(preset: str | None) -> str:
    """The description of the preset's system, if one is given; of `train`; of all presets."""
    from macnet.models.registry import SYSTEMS, find_preset

    # The parser joins the lines of a paragraph, except those that are indented.
    about = ""
    if preset is not None:
        system = find_preset(preset).system
        about = f"{system.label}\n\n{indent(system.description, '  ')}\n\n"
    presets = {k: v for system in SYSTEMS.values() for k, v in system.summaries.items()}
    width = max(map(len, presets))
    listed = "\n".join(f"  {name:{width}}  {summary}" for name, summary in presets.items())
    return f"{about}{inspect.getdoc(train)}\n\nPresets:\n{listed}"


def _train(given: dict[str, Any]) -> None:
    from macnet.progress import is_first_process
    from macnet.training import train as library

    describe = partial(_describe, recipe_name=given["recipe"])
    # Model and recipe are what ablation, file and flags have made of the preset.
    made = {"recipe": given.pop("recipe_changes"), "ablation": None, "overrides": None}
    size = read_size(given["size"])
    run = library.train(**{**given, **made, "size": size}, on_start=describe)
    if is_first_process():
        _show(run)


def _describe(trainer: Trainer, recipe_name: str) -> None:
    """Print what is trained, as it will be built, how and on what.

    A warning follows where days of a CPU are about to be spent.
    """
    import numpy as np

    from macnet.checkpoint import build_on_meta
    from macnet.data.dataset import Dataset
    from macnet.models.registry import find_preset

    plan, data = trainer.plan, trainer.training_data
    data_spec = data.data_spec()
    system, published = find_preset(plan.preset)
    row = plan.row
    preset = f"preset {plan.preset}"
    label = system.label_with(plan.programs)
    if row not in (None, label):
        preset += f", {row}"
    elif plan.model != system.resolve(published, data_spec):
        preset += " with changes"
    if plan.recipe != system.training.find_recipe(recipe_name):
        recipe_name += " with changes"
    weights = build_on_meta(system, plan.model, data_spec).parameters()
    size = sum(weight.numel() for weight in weights)
    images = f"features of {data_spec.channels}x{data_spec.height}x{data_spec.width}"
    if data_spec.pixels:
        images = f"pixels of {data_spec.width}x{data_spec.height}"
    print(
        f"training {label}: {preset}, {size:,} parameters, recipe {recipe_name}; "
        f"images are {images}"
    )
    if (deviation := system.deviation(data_spec)) is not None:
        print(deviation)
    of_clevr = isinstance(data.train, Dataset) and data.train.metadata.get("origin") == "CLEVR"
    of_features = getattr(published, "image", None) == "features"
    if data_spec.pixels and of_clevr and of_features and plan.start is None:
        print(
            "The paper's MAC learns from ResNet-101 features of CLEVR's images, not from pixels; "
            "for its experiment make them with `macnet extract`, of train and of val, and give "
            "them as --images and --val-images."
        )
    sets = {"training on": data.train, "replaying": data.replay, "validating on": data.val}
    for what, dataset in sets.items():
        if isinstance(dataset, Dataset):
            left_out = dataset.metadata["left_out"]
            asked, words = f"{len(dataset):,} questions", dataset.metadata["words"]
            if data.fresh_questions and dataset is data.train:
                asked = "new questions in every epoch"
                words = "the paper's accuracies, of training on fixed questions, are not shown"
            print(
                f"{what} {asked} about "
                f"{len(np.unique(dataset.image_rows[dataset.selected])):,} images; {words}"
                + (f"; {left_out:,} are left out, their images are missing" if left_out else "")
            )
        elif dataset is not None:
            guided = (
                "; attention is guided to the objects that programs refer to, and the paper's "
                "accuracies, of training on answers alone, are not shown"
            )
            print(
                f"{what} the generated {dataset}, without an end"
                + (guided if plan.recipe.guide else "")
            )
    sys.stdout.flush()
    if trainer.device.type == "cpu" and size > MANY_WEIGHTS:  # on stderr, for it is no result
        print(
            f"On a CPU, a network of {size / 1e6:.0f} million weights learns from a few questions "
            "a second; use a GPU, or --preset small, a MAC that two cores can train.",
            file=sys.stderr,
            flush=True,
        )


def _show(run: Run) -> None:
    from macnet.evaluation.report import show
    from macnet.paper import find_published

    if run.was_finished:
        print(f"{run.folder}: this run is finished already; nothing to do")
    best, results = run.load(), run.results
    print(
        f"{run.folder}: best validation accuracy {100 * run.accuracy:.2f}% "
        f"({results.overall.total:,} questions), {run.seconds:,.0f} s; curve in {run.curve}"
    )
    paper, val = find_published(best.row, best.share), best.metadata["data"]["val"]["questions"]
    show(results, row=best.label, what=val, paper=paper, errors=False)
