"""How many questions are asked a second, on one core and over processes.

    python benchmarks/questions.py --images 2000 --out results/questions_speed.json

Scenes are placed beforehand and their relations are not: what is timed is all it takes to turn
a placed scene into ten questions with programs and answers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from pathlib import Path

from macnet.clevr.questions import BLOCK, Asker
from macnet.clevr.scene import Scene, sample_scenes
from record import keep


def place(block: int, images: int) -> list[Scene]:
    rngs = [random.Random(f"scene {block} {i}") for i in range(images)]
    return sample_scenes(rngs)


def ask(block: int, scenes: list[Scene]) -> tuple[int, float]:
    """Questions asked, and the seconds of processor time they took."""
    start = time.process_time()
    asker = Asker(random.Random(f"questions {block}"))
    questions = sum(len(asker.ask(scene)) for scene in scenes)
    return questions, time.process_time() - start


def measure(processes: int, blocks: list[list[Scene]]) -> dict[str, float]:
    """Processes are started and warmed before the clock: a dataset's workers live long."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.starmap(ask, [(0, blocks[0][:25])] * processes, chunksize=1)
        start = time.perf_counter()
        results = pool.starmap(ask, enumerate(blocks), chunksize=1)
        seconds = time.perf_counter() - start
    questions = sum(count for count, _ in results)
    return {
        "processes": processes,
        "questions": questions,
        "seconds": round(seconds, 3),
        "questions_per_second": round(questions / seconds),
        # Of the cores' own time, whoever else keeps them busy.
        "questions_per_cpu_second": round(questions / sum(cpu for _, cpu in results)),
    }


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
    keep(args.out, "questions asked about placed scenes, ten an image", rows=rows)


if __name__ == "__main__":
    main()
