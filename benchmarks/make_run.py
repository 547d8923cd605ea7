"""What `make run` shows a new user, and how long it takes: in fresh clones of the last commit.

    python benchmarks/make_run.py --out results/small_cpu.json

Timed is everything, the installation included, several times. Seed 0 is that of `make run`; with
the others, the two networks are trained again on the last clone's world, to see how much is chance.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from record import COMMIT, keep

ROOT = Path(__file__).parent.parent
TRAINED = ("mac", "lstm")


def timed_make_run(clone: Path) -> tuple[float, dict[str, float], list[str]]:
    """Seconds of `make run`, of each of its commands, and the commands that train."""
    start = last = time.monotonic()
    name, seconds, trains = "install", dict[str, float](), []
    with subprocess.Popen(["make", "run"], cwd=clone, stdout=subprocess.PIPE, text=True) as make:
        assert make.stdout is not None
        for line in make.stdout:
            if line.startswith(".venv/bin/macnet "):  # make says what it is about to do
                now = time.monotonic()
                seconds[name] = round(seconds.get(name, 0) + now - last, 1)
                last, name = now, line.split()[1]
                if name == "train":
                    trains.append(_whole_command(line, make.stdout))
                    name += " " + TRAINED[len(trains) - 1]
    if make.returncode:
        raise SystemExit(f"make run failed with {make.returncode}")
    end = time.monotonic()
    seconds[name] = round(end - last, 1)
    return end - start, seconds, trains


def _whole_command(line: str, following: Any) -> str:
    while line.endswith("\\\n"):
        line = line[:-2] + next(following)
    return line


def held_out_accuracy(clone: Path, run: str) -> dict[str, Any]:
    """Accuracy on 2,000 images of the same kind of world that nothing was chosen by."""
    macnet, world = str(clone / ".venv" / "bin" / "macnet"), "out/held_out"
    like = json.loads((clone / "out" / "world" / "world.json").read_text())
    generate = [macnet, "generate", world, "--val", "2000", "--seed", str(like["seed"] + 1)]
    generate += ["--size", like["size"], "--num-objects", *map(str, like["num-objects"])]
    generate += ["--families", *like["families"]]
    report = f"{run}.json"
    evaluate = [macnet, "evaluate", run, world, "--cache", "out/cache", "--json", report]
    for command in (generate, evaluate):
        subprocess.run(command, cwd=clone, check=True, stdout=subprocess.DEVNULL)
    overall = json.loads((clone / report).read_text())["results"]["overall"]
    return {"held_out": round(100 * overall["accuracy"], 2), "held_out_questions": overall["total"]}


def accuracy_of(run: Path) -> dict[str, Any]:
    """The best validation accuracy of a run, by question type, and its seconds."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    best = [line for line in lines if line["kind"] == "validation" and line["best"]][-1]
    percents = {name: round(100 * value, 2) for name, value in best["accuracy"].items()}
    return {**percents, "training_seconds": round(lines[-1]["seconds"], 1)}


def _row(clone: Path, run: str) -> dict[str, Any]:
    return accuracy_of(clone / run) | held_out_accuracy(clone, run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2], help="besides seed 0")
    parser.add_argument("--repeats", type=int, default=3, help="fresh clones to run it in")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    totals = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.repeats):
            clone = Path(folder) / f"macnet-{number}"
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
            subprocess.run(["git", "checkout", "--quiet", COMMIT], cwd=clone, check=True)
            total, parts, trains = timed_make_run(clone)
            totals.append(round(total, 1))
        rows = {name: {"0": _row(clone, f"out/{name}")} for name in TRAINED}
        for seed in args.seeds:
            for name, command in zip(TRAINED, trains, strict=True):
                again = command.replace(f"--out out/{name} ", f"--out out/{name}{seed} ")
                again += f" --seed {seed}"
                subprocess.run(shlex.split(again), cwd=clone, check=True, stdout=subprocess.DEVNULL)
                rows[name][str(seed)] = _row(clone, f"out/{name}{seed}")
        shipped = json.loads((clone / "out" / "shipped.json").read_text())["results"]["overall"]
        world = json.loads((clone / "out" / "world" / "world.json").read_text())
        val = clone / "out" / "world" / "questions" / "CLEVR_val_questions.json"
        questions = len(json.loads(val.read_text())["questions"])
    keep(
        args.out,
        "`make run` in fresh clones: a small MAC and an LSTM, which sees no image, learn an "
        "easier world; accuracy (%) on its validation questions, by seed",
        seconds_of_make_run=sorted(totals),
        seconds_of_parts_of_the_last=parts,
        world=world,
        validation_questions=questions,
        **rows,
        shipped={"Overall": round(100 * shipped["accuracy"], 2), "questions": shipped["total"]},
        note="the best epoch was chosen by the validation questions, and by such questions also "
        "the world and the fields of small_mac.toml, in some 40 tries; held out are questions "
        "about 2,000 images of another seed, by which nothing was chosen",
    )


if __name__ == "__main__":
    main()
