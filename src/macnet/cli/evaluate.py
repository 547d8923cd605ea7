"""The command that evaluates."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from macnet.cli.options import (
    PLAIN,
    Device,
    Families,
    File,
    Folder,
    Number,
    NumObjects,
    Somewhere,
    Workers,
    check_not_given,
)
from macnet.errors import InputError

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class Questions:
    """Questions other than those the run was validated on: of DATA, or of the generated world."""

    split: str = "val"
    """The split of either; of CoGenT, valA or valB."""
    images: Somewhere = None
    """Where the images are, if not in DATA: a folder, or a file of features (.h5)."""
    skip_missing: bool = False
    """Leave out questions of DATA about images that are missing."""
    world_images: Number = None
    """Instead of DATA, this number of generated images; 500 without RUN, and for --attention."""
    world_seed: int = 1
    """The seed of the generated world."""


@dataclass(frozen=True)
class EasierWorld:
    """With --attention: a world that is easier than CLEVR's."""

    world_num_objects: NumObjects = (3, 10)
    """Smallest and largest number of objects in a scene."""
    world_families: Families = ()
    """Only these groups of question families, such as zero_hop and one_hop."""


def evaluate(
    run: Annotated[Path | None, tyro.conf.arg(metavar="[RUN]", help_behavior_hint="")] = None,
    data: Annotated[Path | None, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = None,
    /,
    *,
    questions: Annotated[Questions, *PLAIN],
    world: Annotated[EasierWorld, *PLAIN],
    attention: Flag = False,
    occlusion: Flag = False,
    json_file: Annotated[File, tyro.conf.arg(name="json")] = None,
    predictions: File = None,
    precision: Annotated[
        Literal["float32", "bfloat16"] | None,
        tyro.conf.arg(metavar="float32|bfloat16", help_behavior_hint=""),
    ] = None,
    cache: Folder = None,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Measure the accuracy of a trained network.

    Overall and by kind of question, with 95% intervals; by program length and family; and which
    answers it confuses. On CLEVR the paper's numbers for the same network stand beside.

    Args:
        run: Folder of a run, or its best.safetensors; the shipped network if not given.
        data: A dataset, or a questions file (.h5). If not given, what the run was validated on; for
            the shipped network a part of that, which takes a minute.
        attention: Measure instead, in the generated world, if it attends to what is asked about.
        occlusion: Measure accuracy also by occlusion; DATA must have scenes.
        json_file: A file for all numbers.
        predictions: A file for the predicted answers, one a line, in the order of the questions.
        precision: Precision of products; if not given that of training, but on a CPU float32.
        cache: Folder for packed arrays; $MACNET_CACHE or ~/.cache/macnet if not given.
        device: Where the network runs; auto takes a GPU if there is one.
        workers: Processes that decode images; one per core if not given.
    """
    import macnet
    from macnet.evaluation.report import write_predictions
    from macnet.explain.attention import measure_attention
    from macnet.files import write_json
    from macnet.progress import is_first_process

    if run is not None and data is None and (run / "questions").is_dir():
        run, data = None, run  # a dataset alone is for the shipped network
    options: dict[str, Any] = {"device": device, "workers": workers, "log": _log}
    if attention:
        unused = {"predictions": predictions, "precision": precision, "cache": cache}
        _check_attention_options(data, questions, {**unused, "occlusion": occlusion or None})
        chosen = {k: v for k, v in vars(questions).items() if v is not None and k in WORLD_OPTIONS}
        report: Any = measure_attention(run, **chosen, **vars(world), **options)
    else:
        check_not_given(world, "only --attention has a use for it")
        report = macnet.evaluate(
            run,
            data,
            **vars(questions),
            occlusion=occlusion,
            precision=precision,
            cache=cache,
            need_answers=predictions is None,
            **options,
        )
    if not is_first_process():
        return
    if predictions is not None:
        predictions.parent.mkdir(parents=True, exist_ok=True)
        write_predictions(predictions, report.predictions, report.network.vocabulary.answers)
        print(f"{predictions}: {len(report.predictions):,} answers")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(json_file, report.to_record())
        print(f"{json_file}: all of the numbers")
    report.show()  # last, for a reader such as `head` may end the process


WORLD_OPTIONS = ("split", "world_images", "world_seed")


def _log(line: str) -> None:
    """On stderr, for it is no result."""
    from macnet.cli.main import with_flags

    print(with_flags(line, ["evaluate"]), file=sys.stderr, flush=True)


def _check_attention_options(
    data: Path | None, questions: Questions, unused: dict[str, object]
) -> None:
    if data is not None:
        raise InputError(
            f"{data}: it does not tell where its objects are; give --attention without DATA, for "
            "it is measured in the generated world"
        )
    for name, value in unused.items():
        if value is not None:
            raise InputError(f"--{name} is given, but --attention has no use for it")
    check_not_given(questions, "--attention is measured in the generated world", but=WORLD_OPTIONS)
