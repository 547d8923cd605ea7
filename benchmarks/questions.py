"""Questions generated per second, on one core and with several processes.

    python benchmarks/questions.py --images 2000 --out results/questions_speed.json

Scenes are sampled beforehand, their relations are not: timed is all it takes to turn a sampled
scene into ten questions with programs and answers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from pathlib import Path

from macnet.clevr.questions import IMAGES_PER_BLOCK, QuestionGenerator
from macnet.clevr.scene import Scene, sample_scenes
from record import keep


def sample(block: int, images: int) -> list[Scene]:
    rngs = [random.Random(f"scene {block} {i}") for i in range(images)]
    return sample_scenes(rngs)


def generate(block: int, scenes: list[Scene]) -> tuple[int, float]:
    """Number of questions generated, and the seconds of CPU time it took."""
    start = time.process_time()
    generator = QuestionGenerator(random.Random(f"questions {block}"))
    questions = sum(len(generator.generate(scene)) for scene in scenes)
    return questions, time.process_time() - start


def measure(processes: int, blocks: list[list[Scene]]) -> dict[str, float]:
    """Measure after the start of the processes and a warm-up: workers of a dataset live long."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.starmap(generate, [(0, blocks[0][:25])] * processes, chunksize=1)
        start = time.perf_counter()
        results = pool.starmap(generate, enumerate(blocks), chunksize=1)
        seconds = time.perf_counter() - start
    questions = sum(count for count, _ in results)
    return {
        "processes": processes,
        "questions": questions,
        "seconds": round(seconds, 3),
        "questions_per_second": round(questions / seconds),
        # Independent of other load on the machine.
        "questions_per_cpu_second": round(questions / sum(cpu for _, cpu in results)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000, help="number of scenes")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=sorted({1, 2, os.cpu_count() or 1})
    )
    parser.add_argument("--out", type=Path, help="JSON file to write the numbers to")
    args = parser.parse_args()

    blocks = [sample(start, IMAGES_PER_BLOCK) for start in range(0, args.images, IMAGES_PER_BLOCK)]
    rows = [measure(processes, blocks) for processes in args.processes]
    keep(args.out, "questions generated about sampled scenes, ten per image", rows=rows)


if __name__ == "__main__":
    main()
