"""Learning curves of runs that differ only in how numbers are computed, and so should agree.

    python benchmarks/same_curves.py --cache CACHE --out results/same_curves_h200.json

The same small MAC is trained on the same questions in the same order: in bfloat16 and in float32,
as a captured graph and eagerly. Dropout is off, so that only rounding differs; a run from another
seed shows the differences between curves that differ in more. Differences are in percentage points
of validation accuracy.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from macnet.models.config import NO_DROPOUT
from macnet.training.log import read_log
from macnet.training.plan import make_plan
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from record import keep
from training_data import generated_training_data

RUNS: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "float32": {"precision": "float32"},
    "bfloat16, not captured": {"capture": False},
    "bfloat16, another seed": {"seed": 1},
}


def curve(
    training_data: TrainingData, args: argparse.Namespace, how: dict[str, Any]
) -> dict[str, Any]:
    plan = make_plan(
        model={"d": args.d, "p": args.p, "dropout": NO_DROPOUT},
        recipe="fast",
        recipe_changes={
            "epochs": args.epochs,
            "validate_every": 0.5,
            "lr": 5e-4,
            "precision": how.get("precision", "bfloat16"),
        },
        seed=how.get("seed", 0),
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            Path(folder) / "run",
            plan,
            training_data,
            device=torch.device(args.device),
            capture=how.get("capture", True),
        )
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
        log = read_log(Path(folder) / "run" / "log.jsonl")
    found = {"seconds": round(seconds, 1)}
    for kind, number in ("validation", lambda a: a["overall"]), ("train", float):
        lines = [line for line in log if line["kind"] == kind]
        found[kind] = [round(100 * number(line["accuracy"]), 2) for line in lines]
    found["loss"] = [round(line["loss"], 4) for line in log if line["kind"] == "train"]
    return found


def compare(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
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
    training_data = generated_training_data(
        64, args.images, 2_000, cache=args.cache, device=args.device, workers=args.workers
    )
    found = {name: curve(training_data, args, how) for name, how in RUNS.items()}
    keep(
        args.out,
        f"the same training computed in several ways: d={args.d}, p={args.p}, 64×64, "
        f"{args.images:,} images, {args.epochs:g} epochs",
        apart={
            f"bfloat16 and {name}": compare(found["bfloat16"], other)
            for name, other in found.items()
            if name != "bfloat16"
        },
        curves=found,
    )
