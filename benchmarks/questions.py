"""How many questions are asked a second, on one core and over processes.

    python benchmarks/questions.py --images 2000 --out results/questions_speed.json

Scenes are placed beforehand and their relations are not: what is timed is all it takes to turn
a placed scene into ten questions with programs and answers.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import time
from pathlib import Path

from macnet.clevr.questions import BLOCK, Asker
from macnet.clevr.scene import Scene, sample_scenes


def place(block: int, images: int) -> list[Scene]:
    rngs = [random.Random(f"scene {block} {i}") for i in range(images)]
    return sample_scenes(rngs, all_visible=lambda scenes: [True] * len(scenes))


def ask(block: int, scenes: list[Scene]) -> int:
    asker = Asker(random.Random(f"questions {block}"))
    return sum(len(asker.ask(scene)) for scene in scenes)


def measure(processes: int, blocks: list[list[Scene]]) -> dict[str, float]:
    """Processes are started and warmed before the clock: a dataset's workers live long."""
    if processes == 1:
        ask(0, blocks[0][:25])
        start, cpu = time.perf_counter(), time.process_time()
        questions = sum(ask(i, scenes) for i, scenes in enumerate(blocks))
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        per_cpu = questions / cpu_seconds
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            pool.starmap(ask, [(0, blocks[0][:25])] * processes, chunksize=1)
            start = time.perf_counter()
            questions = sum(pool.starmap(ask, enumerate(blocks), chunksize=1))
            seconds = time.perf_counter() - start
        per_cpu = float("nan")
    row = {"processes": processes, "questions": questions, "seconds": round(seconds, 3)}
    row["questions_per_second"] = round(questions / seconds)
    if per_cpu == per_cpu:
        row["questions_per_cpu_second"] = round(per_cpu)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000, help="scenes to ask about")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=sorted({1, 2, os.cpu_count() or 1})
    )
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    args = parser.parse_args()

    blocks = [place(start, BLOCK) for start in range(0, args.images, BLOCK)]
    rows = [measure(processes, blocks) for processes in args.processes]
    print(f"{'processes':>9}  {'questions':>9}  {'seconds':>8}  {'questions/s':>11}")
    for row in rows:
        print(
            f"{row['processes']:>9}  {row['questions']:>9}  {row['seconds']:>8.2f}"
            f"  {row['questions_per_second']:>11,}"
        )
    if args.out:
        record = {
            "what": "questions asked about placed scenes, ten an image",
            "command": f"python benchmarks/questions.py --images {args.images}",
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "rows": rows,
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
