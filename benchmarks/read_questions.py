"""How fast, and in how much memory, the 700,000 questions of a training set are read.

    python benchmarks/read_questions.py --scratch /tmp/read --out results/read_questions.json

The file is made once, by the generator: as many images as the release has, ten questions each,
with their programs. Each reader then reads it in fresh processes. Of the memory of one, what it
held before it read is subtracted, so that neither libraries nor the other readers count.

Most of `json`'s time in Python 3.11 goes to the garbage collector, hence a row without it. From
3.12 on, by its release notes, the collector does not interrupt C code: expect that row there.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.release import info_record, question_record, questions_file
from macnet.clevr.scene import sample_scenes
from macnet.clevr.world import World, generate_questions
from macnet.data.clevr_json import read_question_file
from macnet.files import atomic_file
from macnet.workers import pool
from record import keep


def make_file(path: Path, images: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with atomic_file(path) as file, pool(os.cpu_count() or 1) as executor:
        file.write(b'{"info":%s,"questions":[' % json.dumps(info_record("train")).encode())
        for records in executor.map(_ask_block, range(images // IMAGES_PER_BLOCK)):
            for record in records:
                file.write(b",\n" if count else b"\n")
                file.write(b'{"question_index":%d,' % count + record.removeprefix(b"{"))
                count += 1
        file.write(b"\n]}\n")


def _ask_block(block: int) -> list[bytes]:
    # Nobody looks at these scenes, so it does no harm if objects hide each other.
    indices = range(IMAGES_PER_BLOCK * block, IMAGES_PER_BLOCK * (block + 1))
    scenes = sample_scenes([random.Random(f"scene {i}") for i in indices])
    asked = generate_questions(World(seed=1), "train", block, scenes)
    return [
        json.dumps(question_record(question, "train", index), separators=(",", ":")).encode()
        for index, questions in zip(indices, asked, strict=True)
        for question in questions
    ]


def with_json(path: Path) -> list[Any]:
    with path.open(encoding="utf-8") as file:
        questions: list[Any] = json.load(file)["questions"]
    return questions


def with_json_uncollected(path: Path) -> list[Any]:
    """The collector looks at millions of dicts again and again, and finds no garbage."""
    gc.disable()
    return with_json(path)


def with_macnet(path: Path) -> list[Any]:
    return read_question_file(path).questions


READERS: dict[str, Callable[[Path], list[Any]]] = {
    "json": with_json,
    "json, garbage collector off": with_json_uncollected,
    "macnet": with_macnet,
}


def measure(reader: str, path: Path) -> tuple[float, float, int, int]:
    """Seconds by the clock and of the processor, bytes at the peak, and questions."""
    before, wall, cpu = _peak(), time.perf_counter(), time.process_time()
    questions = READERS[reader](path)
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    return *seconds, _peak() - before, len(questions)


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True, help="a folder for the file")
    parser.add_argument("--images", type=int, default=70_000, help="of ten questions each")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    args = parser.parse_args()

    path = questions_file(args.scratch / str(args.images), "train")
    if not path.exists():
        make_file(path, args.images)
    rows = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as fresh:
        for reader in READERS:
            futures = [fresh.submit(measure, reader, path) for _ in range(args.repeats)]
            seconds, cpu_seconds, peaks, counts = zip(*(f.result() for f in futures), strict=True)
            rows[reader] = {
                "seconds": round(min(seconds), 2),
                "cpu_seconds": round(min(cpu_seconds), 2),
                "peak_megabytes": round(min(peaks) / 1e6),
            }
    ours = rows.pop("macnet")
    keep(
        args.out,
        "questions with programs read from one file, best of several fresh processes",
        questions=counts[0],
        file_megabytes=round(path.stat().st_size / 1e6),
        repeats=args.repeats,
        macnet=ours,
        others={
            name: {
                **row,
                # Of the processor's time, whoever else keeps the cores busy.
                "times_as_long": round(row["cpu_seconds"] / ours["cpu_seconds"], 1),
                "times_the_memory": round(row["peak_megabytes"] / ours["peak_megabytes"], 1),
            }
            for name, row in rows.items()
        },
    )


if __name__ == "__main__":
    main()
