"""A fixed generated set, as large as CLEVR's: accuracy of changes to the recipe, over seeds.

    python benchmarks/fixed_set.py --seeds 0 1 2 --real CLEVR --out results/fixed_set_h200.json \\
        --variant "fixed=" --variant "fresh questions=--fresh-questions"

A variant is a name and further flags of `macnet train`; `--common` has those of all. They learn
from the same images: those that the GPU's kernels have rendered or, with `--torch-renders NAME`,
the same scenes rendered by torch's functions, to see whether a network notices. Each run is a
process of its own, and is kept in `--folder`. It is evaluated on generated test images that nothing
was chosen by, and on the validation questions of a CLEVR on disk. With `--at-once N`, N runs share
the GPU, best by NVIDIA's MPS; their seconds then compare with nothing.

Where there is no GPU, a smaller network and an easier world show what to try first:

    OMP_NUM_THREADS=1 python benchmarks/fixed_set.py --at-once 2 --images 3000 \\
        --held-out-images 1500 --common "--preset small --recipe fast --size 64x64 …"

    python benchmarks/fixed_set.py --draw results/fixed_set_cpu.json docs/fixed_set.png
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from macnet.training.log import read_log
from record import keep

MACNET = [sys.executable, "-m", "macnet"]
TORCH_RENDERS = """
import sys
from macnet.clevr import stream
stream.fastest_backend = lambda *_: "torch"
from macnet.cli import main
sys.exit(main(sys.argv[1:]))
"""


def percent(accuracy: dict[str, float | None]) -> dict[str, float]:
    """In percent; an easier world has no questions of some types."""
    return {name: round(100 * value, 2) for name, value in accuracy.items() if value is not None}


def evaluate(run: Path, arguments: list[str]) -> dict[str, Any]:
    """Accuracy (%) of a run, overall with its 95% interval, and by question type."""
    report = run / "evaluation.json"
    command = [*MACNET, "evaluate", str(run), *arguments, "--json", str(report)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    results = json.loads(report.read_text())["results"]
    overall, types = results["overall"], results["groups"]
    return {
        **percent({"overall": overall["accuracy"]}),
        "interval": [round(100 * bound, 2) for bound in overall["interval"]],
        "questions": overall["total"],
        **percent({name: part["accuracy"] for name, part in types.items()}),
    }


def run(options: argparse.Namespace, name: str, flags: list[str], seed: int) -> dict[str, Any]:
    """One training, and its evaluations."""
    by_torch = name in options.torch_renders
    cache = ["--cache", str(options.folder / ("cache-torch" if by_torch else "cache"))]
    out = options.folder / f"{name.replace(' ', '-')}-{seed}"
    common = shlex.split(options.common)
    common += ["--world-images", str(options.images)]
    common += ["--world-val-images", str(options.held_out_images)]
    python = [sys.executable, "-c", TORCH_RENDERS] if by_torch else MACNET
    command = ["train", *common, *flags, *cache, "--seed", str(seed), "--out", str(out)]
    start = time.monotonic()
    subprocess.run([*python, *command], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    lines = read_log(out / "log.jsonl")
    validations = [line for line in lines if line["kind"] == "validation"]
    best = max(validations, key=lambda line: line["accuracy"]["overall"])
    steps = [line for line in lines if line["kind"] == "train"]
    test = ["--world-images", str(options.held_out_images), "--split", "test", *cache]
    found = {
        "variant": name,
        "seed": seed,
        "seconds_in_all": round(seconds, 1),
        "questions": validations[-1]["questions"],
        "curve": [round(100 * line["accuracy"]["overall"], 2) for line in validations],
        "best_validation": percent(best["accuracy"]),
        "training_accuracy_at_the_end": round(100 * steps[-1]["accuracy"], 2),
        "test": evaluate(out, test),
    }
    if options.real is not None:
        found[options.real.name] = evaluate(out, [str(options.real), *cache])
    return found


def by_variant(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The runs of each variant, one a seed."""
    found = defaultdict[str, list[dict[str, Any]]](list)
    for done in runs:
        found[done["variant"]].append(done)
    return found


def draw(record: Path, out: Path) -> None:
    """Validation accuracy of each variant in the course of training, averaged over its seeds."""
    variants = by_variant(json.loads(record.read_text())["runs"])
    curves = {
        name: [statistics.fmean(values) for values in zip(*(r["curve"] for r in runs), strict=True)]
        for name, runs in variants.items()
    }
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, curve in sorted(curves.items(), key=lambda item: -item[1][-1]):
        between = variants[name][0]["questions"] / 1000 / len(curve)
        at = [between * (k + 1) for k in range(len(curve))]
        axes.plot(at, curve, lw=1.6, label=name)
    axes.set(xlabel="thousands of questions learned from", xlim=(0, None))
    axes.set_ylabel("accuracy (%), validation questions")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--common", default="--preset pixels --recipe fast", metavar="FLAGS")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME=FLAGS")
    parser.add_argument("--torch-renders", action="append", default=[], metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="runs side by side")
    parser.add_argument("--images", type=int, default=70_000)
    parser.add_argument("--held-out-images", type=int, default=5_000)
    parser.add_argument("--real", type=Path, help="a CLEVR in the layout of the release")
    parser.add_argument("--folder", type=Path, help="for runs and caches; a temporary one if not")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("RECORD", "PNG"))
    options = parser.parse_args()
    if options.draw:
        return draw(*options.draw)
    named = (given.partition("=") for given in options.variant or ["fixed="])
    variants = {name: shlex.split(flags) for name, _, flags in named}
    order = [(name, seed) for seed in options.seeds for name in variants]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(options.at_once) as pool:
        options.folder = options.folder or Path(temporary)
        begun = [pool.submit(run, options, name, variants[name], seed) for name, seed in order]
        for done in as_completed(begun):
            runs.append(done.result())
            runs.sort(key=lambda found: order.index((found["variant"], found["seed"])))
            # After each run: what is measured is kept, even if the time is over.
            keep(
                options.out,
                "accuracy (%) of networks trained on a fixed generated set",
                train=f"macnet train {options.common} --world-images {options.images}",
                variants={name: shlex.join(flags) for name, flags in variants.items()},
                rendered_by_torch=options.torch_renders,
                runs_at_once=options.at_once,
                mean_test_accuracy={
                    name: round(statistics.fmean(done["test"]["overall"] for done in of_variant), 2)
                    for name, of_variant in by_variant(runs).items()
                },
                runs=runs,
            )


if __name__ == "__main__":
    main()
