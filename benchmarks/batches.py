"""Questions per second that batches deliver from a packed set to the device, beside a DataLoader.

    python benchmarks/batches.py --out results/batches_speed_h200.json

The set has the size of CLEVR's training split: 70,000 images of ten questions each, as pictures of
128×128 and, a tenth of it, as features of 1024×14×14; what they hold is random, for nothing here
looks at it. "Plain" is what one would write first: a torch Dataset that gives one question with its
image, and a DataLoader with worker processes and pinned memory.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from macnet.data.batches import Batches
from macnet.data.dataset import Dataset
from macnet.data.pack_store import cached_pack, create_array, write_rows
from macnet.data.question_arrays import QuestionArrays
from macnet.data.vocab import SPECIALS, Vocabulary
from record import keep

LONGEST, STEPS = 46, 25  # words of a question, steps of a program
WORDS = Vocabulary((*SPECIALS, *(f"word {i}" for i in range(82))))


def packed(folder: Path, images: int, shape: tuple[int, ...], dtype: type) -> Dataset:
    rng = np.random.default_rng(1)

    def make(out: Path) -> dict[str, Any]:
        path = out / "images.npy"
        start = create_array(path, (images, *shape), np.dtype(dtype))
        some = rng.integers(0, 60, (100, *shape), dtype=np.uint8).astype(dtype)
        for first in range(0, images, len(some)):
            write_rows(path, start, first, some[: images - first])
        return {}

    array = cached_pack(folder, "images", {"shape": shape, "images": images}, make).arrays["images"]
    count = 10 * images
    lengths = rng.integers(6, 41, count).astype(np.uint16)
    tokens = rng.integers(4, len(WORDS), (count, LONGEST)).astype(np.uint16)
    tokens[np.arange(LONGEST) >= lengths[:, None]] = 0
    rows = np.repeat(np.arange(images, dtype=np.int32), 10)
    questions = QuestionArrays(
        tokens,
        lengths,
        rng.integers(0, 28, count).astype(np.int8),
        rng.integers(0, 13, count).astype(np.int8),
        rng.integers(4, 44, (count, STEPS)).astype(np.uint8),
        rows,
        np.full(count, -1, np.int8),
    )
    return Dataset(array, questions, rows, np.arange(count, dtype=np.int32), WORDS, {})


def delivered(batches: Batches, steps: int) -> float:
    """Questions per second, the first few steps not counted."""
    per_step = sum(len(batch.answers) for batch in islice(batches, 5)) / 5
    synchronise()
    start = time.perf_counter()
    for _ in islice(batches, steps):
        pass
    synchronise()
    return per_step * steps / (time.perf_counter() - start)


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Plain(torch.utils.data.Dataset[Any]):
    def __init__(self, data: Dataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        q = self.data.questions
        image = np.array(self.data.images[self.data.image_rows[i]])
        return image, q.tokens[i].astype(np.int64), int(q.lengths[i]), int(q.answers[i])


def plain(data: Dataset, batch: int, device: str, workers: int, steps: int) -> float:
    loader = DataLoader(
        Plain(data), batch, shuffle=True, num_workers=workers, pin_memory=device == "cuda"
    )
    batches = iter(loader)
    next(batches)
    steps = min(steps, len(loader) - 1)
    start = time.perf_counter()
    for columns in islice(batches, steps):
        for column in columns:
            column.to(device, non_blocking=True)
    synchronise()
    return batch * steps / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=70_000, help="in the set")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch, of ten questions")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="of the plain one")
    parser.add_argument("--folder", type=Path, help="for the set; a temporary one if not given")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name, images, shape, dtype in (
            ("pictures, 128×128", args.images, (128, 128, 3), np.uint8),
            ("features, 1024×14×14", args.images // 10, (14, 14, 1024), np.float16),
        ):
            data = packed(Path(folder), images, shape, dtype)
            rates = {}
            for kind, resident in (("resident", True), ("streamed", False)):
                start = time.perf_counter()
                with Batches(
                    data,
                    images=args.batch,
                    questions=10,
                    seed=1,
                    device=args.device,
                    resident=resident,
                ) as batches:
                    ready = time.perf_counter() - start
                    rates[kind] = delivered(batches, args.steps)
                rates[f"{kind}_seconds_to_begin"] = ready
            rates["plain"] = plain(data, 10 * args.batch, args.device, args.workers, 50)
            rows.append(
                {
                    "what": name,
                    "images": images,
                    "gigabytes": round(data.images.nbytes / 1e9, 2),
                    **{kind: round(rate, 2) for kind, rate in rates.items()},
                    "resident_over_plain": round(rates["resident"] / rates["plain"], 1),
                }
            )
    keep(
        args.out,
        f"questions per second delivered to {args.device} in batches of {args.batch} images × 10",
        steps=args.steps,
        plain_workers=args.workers,
        rows=rows,
    )


if __name__ == "__main__":
    main()
