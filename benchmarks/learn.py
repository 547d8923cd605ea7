"""From nothing to the paper's accuracy: seconds of `macnet train`, from its start as a process.

    python benchmarks/learn.py --seeds 0 1 2 --workers 15 --out results/learn_h200.json

Each run is a process of its own with empty caches, so that all is counted: imports, compiling, the
validation set of 50,000 questions, validations, checkpoints. The log of the run is watched, and a
validation counts when its line is there. Further arguments go to `macnet train`.

    python benchmarks/learn.py --draw results/learn_h200.json docs/learn.png
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from macnet.training.log import read_log
from record import keep

POLL_SECONDS = 0.02
THRESHOLDS = (0.90, 0.95, 0.98, 0.989, 0.99)
COMMAND = ["train", "--preset", "pixels", "--recipe", "fast", "--world-val-images", "5000"]


def run(seed: int, workers: int, further: list[str]) -> dict[str, Any]:
    """One run, watched."""
    with tempfile.TemporaryDirectory() as folder:
        out, caches = Path(folder) / "run", {"TRITON_CACHE_DIR": "triton", "MACNET_CACHE": "packs"}
        arguments = [*COMMAND, "--seed", str(seed), "--workers", str(workers), "--out", str(out)]
        environment = os.environ | {name: f"{folder}/{cache}" for name, cache in caches.items()}
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "macnet", *arguments, *further],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        log, seen = out / "log.jsonl", list[float]()
        while process.poll() is None:
            if log.exists():
                lines = log.read_bytes().count(b"\n")
                seen += [time.monotonic() - start] * (lines - len(seen))
            time.sleep(POLL_SECONDS)
        seconds = time.monotonic() - start
        if process.returncode:
            raise SystemExit(process.returncode)
        lines = list(zip(seen, read_log(log), strict=False))
    steps = [(when, line) for when, line in lines if line["kind"] == "train"]
    curve = [
        {
            "seconds": round(when, 1),
            "questions": line["questions"],
            "accuracy": line["accuracy"]["overall"],
        }
        for when, line in lines
        if line["kind"] == "validation"
    ]
    best = max(
        (line["accuracy"] for _, line in lines if line["kind"] == "validation"),
        key=lambda accuracy: accuracy["overall"],
    )
    reached = {
        str(level): next((p["seconds"] for p in curve if p["accuracy"] >= level), None)
        for level in THRESHOLDS
    }
    return {
        "seed": seed,
        "seconds_to_the_first_line_of_the_log": round(steps[0][0], 1),
        "steps_by_then": steps[0][1]["step"],
        "seconds_to_accuracy": reached,
        "seconds_in_all": round(seconds, 1),
        "questions": curve[-1]["questions"],
        "questions_per_second_median": round(
            statistics.median(line["questions_per_second"] for _, line in steps)
        ),
        "best": best,
        "curve": curve,
    }


def draw(record: Path, out: Path) -> None:
    """The curves of a record: the errors that are left, on a logarithmic scale, against seconds."""
    runs, shown = json.loads(record.read_text())["runs"], (70, 90, 95, 98, 98.9, 99.3)
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for of_run in runs:
        points = [(p["seconds"], 1 - p["accuracy"]) for p in of_run["curve"]]
        axes.plot(*zip(*points, strict=True), color="#0072B2", lw=1.2, marker="o", ms=3)
    first = statistics.median(of_run["seconds_to_the_first_line_of_the_log"] for of_run in runs)
    axes.axvspan(0, first, color="#E8E8E8", lw=0)
    axes.text(first / 2, 0.09, "imports, compiling", rotation=90, ha="center", va="center")
    axes.axhline(1 - 0.989, color="#D55E00", lw=1)
    reached = sorted(of_run["seconds_to_accuracy"]["0.989"] for of_run in runs)
    told = ", ".join(f"{seconds:.0f}" for seconds in reached)
    axes.text(first + 2, 0.0103, f"98.9%: {told} s", color="#D55E00", va="bottom")
    axes.set(xlabel="seconds since the start of the process", xlim=(0, None), yscale="log")
    axes.set_ylabel("accuracy (%), 50,000 generated questions")
    axes.set_yticks([1 - level / 100 for level in shown], [f"{level:g}" for level in shown])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("RECORD", "PNG"))
    args, further = parser.parse_known_args()
    if args.draw:
        return draw(*args.draw)
    runs = []
    for seed in args.seeds:
        runs.append(run(seed, args.workers, further))
        print({name: value for name, value in runs[-1].items() if name != "curve"}, flush=True)
    reached = [of_run["seconds_to_accuracy"]["0.989"] for of_run in runs]
    keep(
        args.out,
        "seconds from the start of the process to an accuracy on 50,000 generated validation "
        "questions, with empty caches",
        train=" ".join(["macnet", *COMMAND, *further]),
        workers=args.workers,
        seconds_to_the_papers_accuracy=reached,
        all_within=max(reached) if all(reached) else None,
        runs=runs,
    )


if __name__ == "__main__":
    main()
