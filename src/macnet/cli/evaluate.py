"""The command that evaluates."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from macnet.cli.opening import Drawn, Means, OnDisk, find_again
from macnet.cli.options import (
    PLAIN,
    Device,
    File,
    Folder,
    Number,
    Somewhere,
    Workers,
    choose_cache,
    choose_device,
    choose_share_of_workers,
    refuse_given,
)
from macnet.errors import InputError

if TYPE_CHECKING:
    from macnet.data.dataset import Dataset, Subset
    from macnet.training.checkpoint import Trained

FEW_IMAGES = 500  # which a CPU draws and asks about in minutes, for intervals of about a percent


@dataclass(frozen=True)
class Asked:
    """What is asked, if not what the run was validated on: of DATA, or of the generated world."""

    split: str = "val"
    """Of either; of CoGenT, valA or valB."""
    images: Somewhere = None
    """Where the images are, if not in DATA: a folder, or a file of features (.h5)."""
    skip_missing: bool = False
    """Leave out questions of DATA about images that are not there."""
    world_images: Number = None
    """Instead of DATA, so many generated images; 500 without RUN, and for --attention."""
    world_seed: int = 1
    """Another seed is another world."""


def evaluate(
    run: Annotated[Path | None, tyro.conf.arg(metavar="[RUN]", help_behavior_hint="")] = None,
    data: Annotated[Path | None, tyro.conf.arg(metavar="[DATA]", help_behavior_hint="")] = None,
    /,
    *,
    question: Annotated[Asked, *PLAIN],
    attention: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")
    ] = False,
    occlusion: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")
    ] = False,
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
    """Measure how often a trained network is right.

    Overall and by kind of question, with 95% intervals; by program length and family; which
    answers it takes for which. On CLEVR the paper's numbers for the same network stand beside.

    Args:
        run: Folder of a run, or its best.safetensors; what comes with macnet if not given.
        data: A dataset, or a questions file (.h5). If not given, what the run was validated on, or
            without RUN a part of that which takes a minute.
        attention: Measure instead, in the generated world, if it looks at what it is asked about.
        occlusion: Measure also by how much is hidden of what is asked about; DATA must have scenes.
        json_file: A file to write all numbers to.
        predictions: A file to write the answers to, one a line, in the order of the questions.
        precision: Of products; if not given as in training, but on a CPU float32.
        cache: Of packed arrays; $MACNET_CACHE or ~/.cache/macnet if not given.
        device: Where the network runs; auto takes a GPU if there is one.
        workers: Processes that decode images; as many as there are cores if not given.
    """
    import numpy as np

    from macnet.data.questions import UNKNOWN
    from macnet.evaluation.accuracy import measure
    from macnet.evaluation.answering import Answering
    from macnet.evaluation.occlusion import by_occlusion, most_hidden, show_occlusion
    from macnet.evaluation.paper import find_published
    from macnet.evaluation.report import show, write_predictions
    from macnet.explain.model import shipped
    from macnet.parallel import is_first, together
    from macnet.training.checkpoint import open_trained

    if run is not None and data is None and (run / "questions").is_dir():
        run, data = None, run  # a dataset alone is for the network that comes with macnet
    is_shipped, run = run is None, run or shipped()
    device, workers = choose_device(device), choose_share_of_workers(workers)
    if attention:
        given = {"predictions": predictions, "precision": precision, "cache": cache}
        _refuse_beside_attention(data, question, **given, occlusion=occlusion or None)
        _watch(run, question, json_file, device, workers)
        return
    with together(device) as own:
        trained = open_trained(run)
        if precision is None:
            recipe = trained.about.get("recipe")
            low = isinstance(recipe, dict) and recipe.get("precision") == "bfloat16"
            precision = "bfloat16" if low and device != "cpu" else "float32"
        network = trained.network()  # refused before anything is packed, if it must be
        size = trained.fit.width, trained.fit.height
        means = Means(choose_cache(cache), size, str(own), workers)
        place, rules = _place(trained, data, question, is_shipped=is_shipped)
        who = "the network that comes with macnet" if is_shipped else str(trained.path)
        _announce(f"{who} is asked {place}, on {device}{_all_of(trained, place)}")
        dataset = _opened(trained, place, rules, means)
        seen = np.unique(dataset.questions.images[dataset.chosen]).tolist()
        _announce(f"{len(dataset):,} questions about {len(seen):,} images")
        known = bool((dataset.answers != UNKNOWN).any())
        if not known and predictions is None:
            raise InputError(
                f"{dataset.name}: its questions come without answers; write down the network's "
                "with --predictions FILE"
            )
        hidden = most_hidden(dataset, place.scenes(seen, means), own) if occlusion else None
        network = network.to(own)
        with Answering(dataset, device=own, precision=precision) as answering:
            start = time.monotonic()
            answers = answering(trained.system, network, name=trained.path)
            seconds = time.monotonic() - start
        if not is_first():
            return
    results = measure(dataset, answers) if known else None
    by_hidden = None if hidden is None else by_occlusion(dataset, answers, hidden)
    if predictions is not None:
        predictions.parent.mkdir(parents=True, exist_ok=True)
        write_predictions(predictions, answers, dataset.vocabulary.answers)
        print(f"{predictions}: {len(answers):,} answers")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        _write_all(
            json_file,
            trained,
            run=str(run.resolve()),
            data=dataset.about,
            device=device,
            precision=precision,
            questions=len(dataset),
            seconds=seconds,
            questions_per_second=len(dataset) / seconds,
            results=results and results.to_record(),
            **({} if by_hidden is None else {"occlusion": by_hidden.to_record()}),
        )
    if results is not None:  # last, for who reads only its first lines ends all
        paper = find_published(trained.row, trained.share)
        show(results, row=trained.system.row, what=dataset.name, paper=paper)
        if by_hidden is not None:
            show_occlusion(by_hidden)


def _write_all(path: Path, trained: Trained, *, run: str, **numbers: object) -> None:
    from macnet.disk import write_json

    about = trained.about
    network = {"preset": about["preset"], "row": trained.row, "share": trained.share}
    write_json(path, {"run": run, **network, "step": about.get("step"), **numbers})
    print(f"{path}: all of the numbers")


def _refuse_beside_attention(data: Path | None, asked: Asked, **given: object) -> None:
    if data is not None:
        raise InputError(
            f"{data}: it does not tell where its objects are; give --attention without DATA, for "
            "it is measured in the generated world"
        )
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name} is given, but --attention has no use for it")
    here = ("split", "world_images", "world_seed")
    refuse_given(asked, "--attention is measured in the generated world", but=here)


def _watch(run: Path, asked: Asked, json_file: Path | None, device: str, workers: int) -> None:
    """What `evaluate` does for --attention."""
    from macnet.clevr.world import World
    from macnet.explain.agreement import measure
    from macnet.explain.findings import show
    from macnet.explain.pointing import observe, watchable, with_random_weights
    from macnet.parallel import is_first, together
    from macnet.training.checkpoint import open_trained

    with together(device) as own:
        if not is_first():  # it takes so little that it is not shared out
            return
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
    trained = open_trained(run)
    networks = watchable(trained).to(own), with_random_weights(trained).to(own)
    world = World(asked.world_seed, width=trained.fit.width, height=trained.fit.height)
    images = FEW_IMAGES if asked.world_images is None else asked.world_images
    _announce(
        f"{run} is watched at {images:,} images of {asked.split} of the generated world "
        f"{world.seed}, on {device}"
    )
    start = time.monotonic()
    truth, watched = observe(
        networks,
        trained.vocabulary,
        world,
        images=images,
        split=asked.split,
        device=own,
        workers=workers,
        name=trained.path,
    )
    found = measure(truth, *watched)
    what = f"{asked.split} of the generated world {world.seed}"
    if json_file is not None:
        _write_all(
            json_file,
            trained,
            run=str(run.resolve()),
            data={"questions": what, "world": asdict(world)},
            device=device,
            seconds=time.monotonic() - start,
            attention=found.to_record(),
        )
    show(found, row=trained.system.row, what=what)


def _place(
    trained: Trained, data: Path | None, asked: Asked, *, is_shipped: bool
) -> tuple[OnDisk | Drawn, list[Subset]]:
    """Where the questions are, and which part of them is asked."""
    from macnet.data.splits import find_split

    about, images = trained.about["data"]["val"], asked.world_images
    if images is None and is_shipped:
        images = FEW_IMAGES
    if data is not None:
        of_data = ("split", "images", "skip_missing")
        refuse_given(asked, f"{data} is what to evaluate on", but=of_data)
        found = find_split(data, asked.split, asked.images).images
        _refuse_blind(trained, pixels=not found.is_file(), where=str(found))
        return OnDisk(data, asked.split, asked.images, asked.skip_missing), []
    if images is not None:
        refuse_given(asked, "there is no DATA", but=("split", "world_images", "world_seed"))
        _refuse_blind(trained, pixels=True, where="the generated world")
        return Drawn(asked.world_seed, asked.split, images), []
    if "place" in about:
        refuse_given(asked, "there is neither DATA nor --world-images")
        return find_again(about)
    raise InputError(f"{trained.path}: it does not tell what it was validated on; give DATA")


def _announce(line: str) -> None:
    """What is to be done, before minutes are spent on it; on stderr, for it is no result."""
    from macnet.parallel import is_first

    if is_first():
        print(line, file=sys.stderr, flush=True)


def _all_of(trained: Trained, place: OnDisk | Drawn) -> str:
    """How to ask all that a network was validated on, where this is the beginning of it."""
    whole = trained.about["data"]["val"].get("place")
    if isinstance(place, Drawn) and isinstance(whole, dict):
        count = whole.get("count", 0)
        if whole == {**vars(place), "count": count} and place.count < count:
            return f"; --world-images {count} asks all that it was validated on"
    return ""


def _opened(
    trained: Trained, place: OnDisk | Drawn, rules: Sequence[Subset], means: Means
) -> Dataset:
    """In the words of the network, and as it looks at images."""
    dataset = place.open(trained.vocabulary, means)
    for rule in rules:
        dataset = dataset.subset(rule)
    fit, shape = trained.fit, dataset.images.shape[1:]
    if shape != (fit.height, fit.width, fit.channels):
        raise InputError(
            f"{dataset.about['images']}: images are {shape[1]}x{shape[0]}x{shape[2]}, but "
            f"{trained.path} learned from {fit.width}x{fit.height}x{fit.channels}"
        )
    return dataset


def _refuse_blind(trained: Trained, *, pixels: bool, where: str) -> None:
    """Before anything is packed: a network of features cannot look at pictures, nor the reverse."""
    if trained.fit.pixels and not pixels:
        raise InputError(f"{where}: these are features, but {trained.path} learned from pictures")
    if pixels and not trained.fit.pixels:
        raise InputError(
            f"{where}: these are pictures, but {trained.path} learned from features; give a "
            "file of them as --images"
        )
