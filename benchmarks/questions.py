"""Questions generated per second, and what each part of a stream worker's work takes per image.

    python benchmarks/questions.py --images 2000 --out results/questions_speed.json

Scenes are sampled beforehand, their relations are not: timed is all it takes to turn a sampled
scene into ten questions with texts, programs and answers, on one core and with several processes.
A worker of the endless stream also samples the scenes, but writes neither texts nor programs: it
encodes the questions as token ids.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import time
from itertools import pairwise
from pathlib import Path

from macnet.clevr.questions import IMAGES_PER_BLOCK, QuestionGenerator
from macnet.clevr.scene import Scene, sample_scenes
from macnet.clevr.scene_array import array_to_indices, scenes_to_array
from macnet.clevr.world import World
from macnet.data.block_encoder import BlockEncoder, world_texts
from macnet.data.vocab import Vocabulary
from macnet.workers import pool as worker_pool
from record import keep

PARTS = ("sample scenes", "index scenes", "generate questions", "encode questions")


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


def work(block: int, encode: BlockEncoder) -> list[float]:
    """CPU seconds of each part of a worker's work on a block, if no scene has to be resampled."""
    times = [time.process_time()]
    scenes = scenes_to_array(sample(block, IMAGES_PER_BLOCK))
    times.append(time.process_time())
    indices = array_to_indices(scenes)
    times.append(time.process_time())
    generator = QuestionGenerator(random.Random(f"questions {block}"))
    questions = [generator.instantiate(index) for index in indices]
    times.append(time.process_time())
    encode(questions)
    times.append(time.process_time())
    return [end - start for start, end in pairwise(times)]


def measure_worker(blocks: int) -> dict[str, float]:
    """Microseconds of CPU time per image, in a process as the stream starts them."""
    encode = BlockEncoder.for_world(World(seed=1), Vocabulary.build(world_texts()))
    with worker_pool(1) as executor:
        executor.submit(work, 0, encode).result()  # fills its tables
        times = [executor.submit(work, block, encode).result() for block in range(blocks)]
    images = blocks * IMAGES_PER_BLOCK
    parts = [sum(of_part) / images * 1e6 for of_part in zip(*times, strict=True)]
    return {
        **{name: round(part, 1) for name, part in zip(PARTS, parts, strict=True)},
        "all": round(sum(parts), 1),
        "questions_per_cpu_second": round(10 / sum(parts) * 1e6),
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
    worker = measure_worker(len(blocks))
    keep(
        args.out,
        "questions generated about sampled scenes, ten per image",
        rows=rows,
        worker_microseconds_per_image=worker,
    )


if __name__ == "__main__":
    main()
