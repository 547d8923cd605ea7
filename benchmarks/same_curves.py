"""Whether it matters to learning how the numbers are computed: curves of runs that should agree.

    python benchmarks/same_curves.py --cache CACHE --out results/same_curves_h200.json

The same small MAC learns the same questions in the same order: in bfloat16 and in float32, as a
captured graph and launched piece by piece. Dropout is off, so that all that differs is rounding; a
run from another seed shows how far apart curves are that differ in more. Differences are in
percentage points of validation accuracy.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from lessons import drawn_lessons
from macnet.configuration import changed
from macnet.models.config import NO_DROPOUT
from macnet.models.registry import find_preset
from macnet.training.data import Lessons
from macnet.training.recipes import find_recipe
from macnet.training.record import read_record
from macnet.training.trainer import Plan, Trainer
from record import keep

RUNS: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "float32": {"precision": "float32"},
    "bfloat16, not captured": {"capture": False},
    "bfloat16, another seed": {"seed": 1},
}


def curve(lessons: Lessons, args: argparse.Namespace, how: dict[str, Any]) -> dict[str, Any]:
    model = changed(find_preset("paper").config, {"d": args.d, "p": args.p, "dropout": NO_DROPOUT})
    recipe = changed(
        find_recipe("fast", "mac"),
        {
            "epochs": args.epochs,
            "validate": 0.5,
            "lr": 5e-4,
            "precision": how.get("precision", "bfloat16"),
        },
    )
    plan = Plan(preset="paper", model=model, recipe=recipe, seed=how.get("seed", 0))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            Path(folder) / "run",
            plan,
            lessons,
            device=torch.device(args.device),
            capture=how.get("capture", True),
        )
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
        record = read_record(Path(folder) / "run" / "log.jsonl")
    found = {"seconds": round(seconds, 1)}
    for kind, number in ("validation", lambda a: a["overall"]), ("train", float):
        lines = [line for line in record if line["kind"] == kind]
        found[kind] = [round(100 * number(line["accuracy"]), 2) for line in lines]
    found["loss"] = [round(line["loss"], 4) for line in record if line["kind"] == "train"]
    return found


def apart(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    differences = [abs(a - b) for a, b in zip(one["validation"], other["validation"], strict=True)]
    return {
        "largest_difference_of_accuracy": round(max(differences), 2),
        "at_the_end": round(differences[-1], 2),
        "mean_difference_of_loss": round(
            sum(abs(a - b) for a, b in zip(one["loss"], other["loss"], strict=True))
            / len(one["loss"]),
            4,
        ),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=int, default=8_000)
    parser.add_argument("--d", type=int, default=128)
    parser.add_argument("--p", type=int, default=4)
    parser.add_argument("--epochs", type=float, default=6)
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lessons = drawn_lessons(
        64, args.images, 2_000, cache=args.cache, device=args.device, workers=args.workers
    )
    found = {name: curve(lessons, args, how) for name, how in RUNS.items()}
    keep(
        args.out,
        f"the same training computed in several ways: d={args.d}, p={args.p}, 64×64, "
        f"{args.images:,} images, {args.epochs:g} epochs",
        apart={
            f"bfloat16 and {name}": apart(found["bfloat16"], other)
            for name, other in found.items()
            if name != "bfloat16"
        },
        curves=found,
    )
