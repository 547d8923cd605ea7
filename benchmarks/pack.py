"""How fast images are packed, what of that is decoding, and how soon a packed set opens.

    macnet generate WORLD --train 2000
    python benchmarks/pack.py WORLD --scratch /tmp/pack --out results/pack_speed.json

Packed are the images of a training split, at 128×128, by all cores. How much of it is decoding is
told by the processor time of one process: of all that packing does to a image, and of decoding
alone. Opened, by fresh processes, is a set of the size of CLEVR's training split; as nobody looks
at its images, they are 70,000 names of two small ones. With the 700,000 questions that
benchmarks/read_questions.py makes (--questions), these are packed and opened too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from macnet.clevr.images import open_image, read_image
from macnet.clevr.release import image_name, images_folder, questions_file
from macnet.data.pack import (
    CHUNK,
    pack_chunk,
    pack_images,
    pack_questions,
    pack_split,
    pack_vocabulary,
)
from macnet.data.pack_store import create_array
from macnet.data.splits import find_split
from record import keep

SIZE = (128, 128)
IMAGES = 70_000
OPEN = """
import sys, time
from pathlib import Path
from macnet.data.pack import pack_split, pack_vocabulary
from macnet.data.splits import find_split
root, cache = map(Path, sys.argv[1:])
start = time.perf_counter()
words = pack_vocabulary(root, "train", cache)
data = pack_split(find_split(root, "train"), cache, words, size=(128, 128))
print(time.perf_counter() - start, len(data.images), len(data))
"""


def decode_alone(paths: list[Path]) -> None:
    for path in paths:
        with open_image(path) as image:
            image.load()


def where_time_goes(paths: list[Path], scratch: Path) -> dict[str, float]:
    """Milliseconds of a core per image."""
    array = scratch / "some.npy"
    start = create_array(array, (len(paths), *SIZE[::-1], 3), np.dtype(np.uint8))
    stages: dict[str, Callable[[list[Path]], object]] = {
        "decoding": decode_alone,
        "decoding and resizing": lambda part: [read_image(path, *SIZE) for path in part],
        "all of it": lambda part: pack_chunk(array, start, 0, part, SIZE, ("PNG",)),
    }
    seconds = dict.fromkeys(stages, 0.0)
    for i in range(0, len(paths), CHUNK):
        for name, run in stages.items():  # in turn, so that whatever else goes on meets all
            begun = time.process_time()
            run(paths[i : i + CHUNK])
            seconds[name] += time.process_time() - begun
    array.unlink()
    return {name: round(1e3 * spent / len(paths), 3) for name, spent in seconds.items()}


def full_set(root: Path, questions: Path) -> None:
    """A folder as the release's, of the release's size."""
    folder = images_folder(root, "train")
    folder.mkdir(parents=True)
    questions_file(root, "train").parent.mkdir()
    os.link(questions, questions_file(root, "train"))
    for k in range(2):  # a file can have 65,000 names on some file systems
        Image.new("RGBA", (4, 4), (k, 0, 0, 255)).save(root / f"{k}.png")
    for i in range(IMAGES):
        os.link(root / f"{i % 2}.png", folder / image_name("train", i))


def measured(data: Path, scratch: Path, questions: Path | None, workers: int) -> dict[str, object]:
    split = find_split(data, "train")
    paths = list(split.format.image_files(split.images, split.name, ()).values())
    with Image.open(paths[0]) as image:
        size = "×".join(map(str, image.size))
    seconds = []
    for run in range(3):
        start = time.perf_counter()
        pack_images(paths, split.images, *SIZE, scratch / f"run {run}", workers, split.format)
        seconds.append(time.perf_counter() - start)
    numbers: dict[str, object] = {
        "images": len(paths),
        "size": size,
        "mean_kilobytes_of_a_file": round(
            statistics.mean(path.stat().st_size for path in paths) / 1e3, 1
        ),
        "workers": workers,
        "images_per_second": round(len(paths) / min(seconds), 1),
        "milliseconds_of_a_core_per_image": where_time_goes(paths[:1000], scratch),
    }
    if questions:
        root, cache = scratch / "clevr", scratch / "cache"
        full_set(root, questions)
        whole = find_split(root, "train")
        start = time.perf_counter()
        words = pack_vocabulary(root, "train", cache)
        pack_questions(whole, words, cache, training=True)
        numbers["seconds_to_pack_700000_questions"] = round(time.perf_counter() - start, 2)
        pack_split(whole, cache, words, size=SIZE, workers=workers)
        command = [sys.executable, "-c", OPEN, str(root), str(cache)]
        opened = [subprocess.check_output(command, text=True).split() for _ in range(3)]
        numbers["opened_images"], numbers["opened_questions"] = map(int, opened[0][1:])
        numbers["seconds_to_open"] = round(min(float(row[0]) for row in opened), 3)
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--questions", type=Path, help="700,000 of them, on the scratch's disk")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        numbers = measured(args.data, Path(scratch), args.questions, args.workers)
    keep(args.out, "images packed by all cores, and a packed training set opened", **numbers)


if __name__ == "__main__":
    main()
