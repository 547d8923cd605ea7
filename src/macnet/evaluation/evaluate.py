"""Evaluation of a trained network on a dataset or on the generated world.

report = macnet.evaluate("runs/mac", "data/CLEVR_v1.0")
print(report.accuracy, report)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from macnet import devices
from macnet.checkpoint import RunLike, TrainedNetwork, load_trained
from macnet.clevr.world import CLEVR_SETTINGS
from macnet.data.dataset import Dataset, Subset
from macnet.data.question_arrays import UNKNOWN
from macnet.data.sources import DiskDataset, GeneratedDataset, LoadOptions, reopen
from macnet.data.splits import find_split
from macnet.distributed import is_rank_zero, process_group
from macnet.errors import InputError
from macnet.evaluation.accuracy import Proportion, Results, measure, to_json
from macnet.evaluation.occlusion import max_occlusion, measure_occlusion, show_occlusion
from macnet.evaluation.predict import Predictor
from macnet.evaluation.report import show, to_text
from macnet.paper import PublishedAccuracy, find_published

FEW_IMAGES = 500  # generated and answered on a CPU in minutes, for intervals of about a percent


@dataclass(frozen=True)
class Report:
    """The evaluation of a network on a dataset."""

    network: TrainedNetwork
    dataset: Dataset
    predictions: np.ndarray
    """(Q,) int16: ids of the predicted answers, in the order of the dataset's questions.

    UNKNOWN where a question is not evaluated.
    """
    results: Results | None
    """Accuracy and errors; None if no answers are known, as in a test split."""
    occlusion: dict[str, Proportion] | None
    """Accuracy by how much is hidden of the most hidden object asked about, if measured."""
    paper: PublishedAccuracy | None
    """The paper's accuracies of the same network, if it has any."""
    device: str
    precision: str
    seconds: float
    """Time for all predictions, without loading."""

    @property
    def accuracy(self) -> float | None:
        """Overall accuracy, from 0 to 1."""
        return None if self.results is None else self.results.overall.value

    def to_record(self) -> dict[str, Any]:
        """The report for JSON; predictions are not in it."""
        return {
            **self.network.to_record(),
            "data": self.dataset.metadata,
            "device": self.device,
            "precision": self.precision,
            "questions": len(self.dataset),
            "seconds": self.seconds,
            "questions_per_second": len(self.dataset) / self.seconds,
            "results": to_json(self.results),
            "occlusion": to_json(self.occlusion),
        }

    def show(self, console: Console | None = None) -> None:
        """Print the report as tables, by default to standard output."""
        row, name = self.network.label, self.dataset.name
        if self.results is not None:
            spec = self.network.data_spec
            note = self.network.system.deviation(spec) if self.paper else None
            show(self.results, row=row, what=name, paper=self.paper, note=note, console=console)
        if self.occlusion is not None:
            show_occlusion(self.occlusion, console)

    def __str__(self) -> str:
        return to_text(self.show)


def evaluate(
    run: RunLike = None,
    data: str | PathLike[str] | None = None,
    *,
    split: str = "val",
    images: str | PathLike[str] | None = None,
    skip_missing: bool = False,
    world_images: int | None = None,
    world_seed: int = 1,
    occlusion: bool = False,
    precision: Literal["float32", "bfloat16"] | None = None,
    cache: str | PathLike[str] | None = None,
    device: str = "auto",
    workers: int | None = None,
    need_answers: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Report:
    """Evaluate a network on a dataset; under torchrun, each process predicts its share.

    Args:
        run: The run, by its folder, a file of weights or a `Run`; None is the shipped network.
        data: The dataset, or a questions file (.h5). None is what the run was validated on, or
            `world_images` generated images.
        split: The split of either; of CoGenT, valA or valB.
        images: Where the images are, if not in `data`: a folder, or a file of features (.h5).
        skip_missing: Leave out questions of `data` about images that are missing.
        world_images: The number of generated images, of a world as easy as the one that it was
            validated in; by default 500 for the shipped network.
        world_seed: The seed of the generated world.
        occlusion: Measure accuracy also by occlusion; `data` must have scenes.
        precision: The precision of products; by default that of training, on a CPU float32.
        cache: The folder for packed arrays; $MACNET_CACHE or ~/.cache/macnet by default.
        device: auto, cpu, cuda or cuda:N.
        workers: The number of processes that decode images; by default one per core.
        need_answers: Fail before predicting if none of the questions has an answer.
        log: Called with lines that say what is evaluated, before the work begins.
    """
    device, workers = devices.choose_device(device), devices.choose_share_of_workers(workers)
    with process_group(device) as own:
        trained = load_trained(run)
        network = trained.network()  # before anything is packed, for it may be refused
        size = trained.data_spec.width, trained.data_spec.height
        options = LoadOptions(devices.choose_cache(cache), size, str(own), workers)
        if world_images is None and data is None and run is None:
            world_images = FEW_IMAGES
        source, subsets = _find_source(
            trained, data, split, images, skip_missing, world_images, world_seed
        )
        log = log if is_rank_zero() else lambda line: None
        who = "the network that comes with macnet" if run is None else str(trained.path)
        log(f"{who} is evaluated on {source}, on {device}{_hint_at_all(trained, source)}")
        dataset = reduce(Dataset.subset, subsets, source.open(trained.vocabulary, options))
        _check_image_size(trained, dataset)
        numbers = np.unique(dataset.questions.images[dataset.selected]).tolist()
        log(f"{len(dataset):,} questions about {len(numbers):,} images")
        has_answers = bool((dataset.answers != UNKNOWN).any())
        if need_answers and not has_answers:
            raise InputError(
                f"{dataset.name}: its questions come without answers, so only `predictions` can be "
                "made"
            )
        hidden = max_occlusion(dataset, source.scenes(numbers, dataset), own) if occlusion else None
        chosen = precision or _default_precision(trained, device)
        with Predictor(dataset, device=own, precision=chosen) as predictor:
            start = time.monotonic()
            predictions, programs = predictor(trained.system, network.to(own), name=trained.path)
            seconds = time.monotonic() - start
    return Report(
        network=trained,
        dataset=dataset,
        predictions=predictions,
        results=measure(dataset, predictions, programs) if has_answers else None,
        occlusion=None if hidden is None else measure_occlusion(dataset, predictions, hidden),
        paper=find_published(trained.row, trained.share),
        device=device,
        precision=chosen,
        seconds=seconds,
    )


def _default_precision(trained: TrainedNetwork, device: str) -> Literal["float32", "bfloat16"]:
    recipe = trained.metadata.get("recipe")
    low = isinstance(recipe, dict) and recipe.get("precision") == "bfloat16"
    return "bfloat16" if low and device != "cpu" else "float32"


def _find_source(
    trained: TrainedNetwork,
    data: str | PathLike[str] | None,
    split: str,
    images: str | PathLike[str] | None,
    skip_missing: bool,
    world_images: int | None,
    world_seed: int,
) -> tuple[DiskDataset | GeneratedDataset, list[Subset]]:
    """Where the questions are, and which part of them is evaluated."""
    given = {
        "split": split != "val",
        "images": images is not None,
        "skip_missing": skip_missing,
        "world_images": world_images is not None,
        "world_seed": world_seed != 1,
    }

    def check_unused(why: str, *used: str) -> None:
        for name in given:
            if given[name] and name not in used:
                raise InputError(f"`{name}` is given, but {why}")

    if data is not None:
        check_unused(f"{data} is what to evaluate on", "split", "images", "skip_missing")
        folder = Path(data)
        features = None if images is None else Path(images)
        found = find_split(folder, split, features).images
        _check_input_kind(trained, pixels=not found.is_file(), where=str(found))
        types = trained.metadata["data"]["val"].get("question_types")  # if they were collected
        return DiskDataset(folder, split, features, skip_missing, types), []
    if world_images is not None:
        check_unused("there is no `data`", "split", "world_images", "world_seed")
        _check_input_kind(trained, pixels=True, where="the generated world")
        # An easier world, if it was validated in one.
        source = trained.metadata["data"]["val"].get("source", {})
        easier = {name: source[name] for name in CLEVR_SETTINGS if name in source}
        return GeneratedDataset(world_seed, split, world_images, **easier), []
    if "source" in (metadata := trained.metadata["data"]["val"]):
        check_unused("there is neither `data` nor `world_images`")
        return reopen(metadata)
    raise InputError(f"{trained.path}: it does not say what it was validated on; give `data`")


def _hint_at_all(trained: TrainedNetwork, source: DiskDataset | GeneratedDataset) -> str:
    """How to evaluate on all that a network was validated on, if this is the first part of it."""
    whole = trained.metadata["data"]["val"].get("source")
    if isinstance(source, GeneratedDataset) and isinstance(whole, dict):
        count = whole.get("count", 0)
        if whole == {**source.to_record(), "count": count} and source.count < count:
            return f"; `world_images` {count} is all that it was validated on"
    return ""


def _check_image_size(trained: TrainedNetwork, dataset: Dataset) -> None:
    spec, shape = trained.data_spec, dataset.images.shape[1:]
    if shape != (spec.height, spec.width, spec.channels):
        raise InputError(
            f"{dataset.metadata['images']}: images are {shape[1]}x{shape[0]}x{shape[2]}, but "
            f"{trained.path} was trained on {spec.width}x{spec.height}x{spec.channels}"
        )


def _check_input_kind(trained: TrainedNetwork, *, pixels: bool, where: str) -> None:
    """Before anything is packed: a network of features cannot take images, nor the reverse."""
    if trained.data_spec.pixels and not pixels:
        raise InputError(f"{where}: these are features, but {trained.path} was trained on images")
    if pixels and not trained.data_spec.pixels:
        raise InputError(
            f"{where}: these are images, but {trained.path} was trained on features; give a file "
            "of them as `images`"
        )
