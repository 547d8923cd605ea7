"""A training that takes a second: dark and bright images, and questions about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from macnet.checkpoint import BEST, LAST, read_checkpoint
from macnet.configuration import with_changes
from macnet.data.dataset import Dataset
from macnet.data.question_arrays import TYPES, TokenizedQuestion, collect, program_ids
from macnet.data.vocab import ANSWERS, Vocabulary
from macnet.models.registry import find_preset
from macnet.training import trainer as trainer_module
from macnet.training.log import read_log
from macnet.training.plan import TrainingPlan
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from tiny_networks import narrow

WORDS = ("is it bright", "is it dark", "yes or no yes", "yes or no no")
RIGHT = (("no", "yes"), ("yes", "no"), ("yes", "yes"), ("no", "no"))  # dark image, bright image
BETWEEN: list[list[str]] = [[], ["unique"], ["union"], ["intersect"]]
PROGRAMS = [program_ids(["exist", *between, "scene"]) for between in BETWEEN]  # of the four texts
EXIST = TYPES.index("exist")
SMALL = {
    "d": 16,
    "p": 2,
    "embedding": 8,
    "widths": (4, 6, 8),
    "blocks": (0, 1, 1),
    "dropout": dict.fromkeys(["words", "question", "image", "control", "memory", "output"], 0.1),
}
CALM = {**SMALL, "dropout": dict.fromkeys(SMALL["dropout"], 0.0)}  # type: ignore[call-overload]
TINY: dict[str, dict[str, Any]] = {  # of other systems
    "sa-mlp": {"embedding": 6, "units": 8, "hidden": 8, "attention_units": 8},
    "rn": {"object_channels": 4, "embedding": 6, "units": 8, "g": 8, "g_layers": 2, "f": 8},
    "film": {"embedding": 6, "units": 8, "channels": 6, "blocks": 2, "pooled": 8, "hidden": 8},
    "pg-ee": {
        **{"embedding": 6, "units": 8, "channels": 4, "pooled": 4, "hidden": 8},
        "program_length": 8,
    },
    "n2nmn": {"embedding": 6, "units": 8, "map_dim": 6, "training_steps": 5, "steps": 6},
}
QUICK = {"images": 4, "questions": 4, "epochs": 4, "lr": 3e-3, "ema": 0.9, "patience": 0}


@contextmanager
def small_and_quick(*, workers: bool = True) -> Iterator[None]:
    """Networks see pixels with few channels, and no curve is drawn, which takes its time.

    Without workers none is started, which would take a second each.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "draw_curve", lambda *_: None)
        narrow(patch)
        if not workers:
            patch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
        yield


def dataset(images: int = 12, seed: int = 0, vocabulary: Vocabulary | None = None) -> Dataset:
    rng = np.random.default_rng(seed)
    bright = rng.integers(0, 2, images)
    low = np.where(bright, 150, 0)[:, None, None, None]
    pictures = (low + rng.integers(0, 100, (images, 16, 16, 3))).astype(np.uint8)
    words = vocabulary or Vocabulary.build(WORDS)
    rows = [
        TokenizedQuestion(
            words.encode(text), ANSWERS.index(pair[bright[i]]), program, i, type=EXIST
        )
        for i in range(images)
        for text, pair, program in zip(WORDS, RIGHT, PROGRAMS, strict=True)
    ]
    questions = collect(rows)
    every = np.arange(len(rows), dtype=np.int32)
    metadata = {"questions": f"made of seed {seed}", "origin": "generated"}
    return Dataset(pictures, questions, questions.images, every, words, metadata)


def training_data(vocabulary: Vocabulary | None = None) -> TrainingData:
    return TrainingData(dataset(vocabulary=vocabulary), dataset(8, 1, vocabulary))


def plan(
    preset: str = "paper", model: dict[str, Any] | None = None, seed: int = 0, **recipe: Any
) -> TrainingPlan:
    named = find_preset(preset)
    small = SMALL if named.system.name == "mac" else {}
    return TrainingPlan(
        preset=preset,
        model=with_changes(named.config, small if model is None else model),
        recipe=with_changes(named.system.training.find_recipe("paper"), {**QUICK, **recipe}),
        seed=seed,
    )


def trainer(
    folder: Path, made: TrainingPlan | None = None, *, device: str = "cpu", **options: Any
) -> Trainer:
    return Trainer(folder, made or plan(), training_data(), device=torch.device(device), **options)


# --- what became of it -----------------------------------------------------------------------


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """To the bit."""
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def result(folder: Path) -> tuple[list[Tensor], list[dict[str, Any]]]:
    """All that a run has learned, in order of names, and its record without the time it took."""
    best, last = (read_checkpoint(folder / name).tensors for name in (BEST, LAST))
    tensors = {**{f"best/{name}": tensor for name, tensor in best.items()}, **last}
    lines = read_log(folder / "log.jsonl")
    for line in lines:
        line.pop("seconds")
        line.pop("questions_per_second", None)
    return [tensors[name] for name in sorted(tensors)], lines


def assert_equal(found: Path, wanted: Path) -> None:
    """Two runs have become the same, to the bit."""
    (tensors, lines), (theirs, their_lines) = result(found), result(wanted)
    assert lines == their_lines
    assert all(torch.equal(a, b) for a, b in zip(tensors, theirs, strict=True))
