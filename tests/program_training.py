"""Small trainings of the systems that write programs, on data whose programs are valid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from macnet.data.dataset import Dataset
from macnet.data.question_arrays import program_ids, program_types
from macnet.training.plan import TrainingPlan
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from tiny_training import TINY, dataset, plan

NAMES = ["pg-ee", "n2nmn"]
STAGES = {"pg-ee": ["generator", "executor", "joint"], "n2nmn": ["cloning", "policy search"]}
PROGRAMS = (
    "exist filter_color[red] scene",
    "exist filter_color[blue] scene",
    "exist scene",
    "equal_integer count scene count filter_color[red] scene",
)
"""Of the four texts of tiny_training."""
CPU = torch.device("cpu")


def with_programs(part: Dataset, programs: tuple[str, ...] = PROGRAMS) -> Dataset:
    """The dataset with these programs, one for each question about an image."""
    width = max(1, *(len(text.split()) for text in programs))
    table = np.zeros((len(programs), width), np.uint8)
    for row, text in zip(table, programs, strict=True):
        ids = program_ids(text.split())
        row[: len(ids)] = [*ids]
    given = np.tile(table, (len(part) // len(programs), 1))
    return replace(
        part, questions=replace(part.questions, programs=given, types=program_types(given))
    )


def training_data(programs: tuple[str, ...] = PROGRAMS) -> TrainingData:
    return TrainingData(with_programs(dataset(), programs), with_programs(dataset(4, 1), programs))


def small_plan(name: str, **changes: Any) -> TrainingPlan:
    """The published recipe, but for its batches: half an epoch, of three steps."""
    return plan(name, TINY[name], **{"images": 2, "epochs": 0.5, "ema": 0, **changes})


def trainer(
    folder: Path, made: TrainingPlan, data: TrainingData | None = None, **options: Any
) -> Trainer:
    return Trainer(folder, made, data or training_data(), device=CPU, **options)
