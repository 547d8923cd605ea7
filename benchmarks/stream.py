"""How many images, with their questions, the endless stream delivers a second.

    python benchmarks/stream.py --size 128x128 --workers 15 --out results/stream_speed_h200.json

Timed is the whole of it: scenes placed, looked at for hidden objects, rendered, ten questions
asked about each, programs run. The questions come as (text, answer, family).
"""

from __future__ import annotations

import argparse
import operator
import os
import time
from pathlib import Path

import torch

from macnet.clevr.world import Stream, World
from record import keep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="128x128")
    parser.add_argument("--batch", type=int, default=1000, help="images")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    with Stream(
        World(seed=1, width=width, height=height),
        args.batch,
        device=args.device,
        workers=args.workers,
        encode=operator.attrgetter("text", "answer", "family"),
        compile=args.device == "cuda",
    ) as stream:
        for _ in range(3):  # compile, and let the workers get ahead
            next(stream)
        start = time.perf_counter()
        questions = 0
        for _ in range(args.batches):
            questions += sum(map(len, next(stream).questions))
        if args.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    keep(
        args.out,
        f"images and questions streamed a second, on {args.device}",
        size=args.size,
        images_per_batch=args.batch,
        workers=args.workers,
        images_per_second=round(args.batch * args.batches / seconds, 1),
        questions_per_second=round(questions / seconds, 1),
    )


if __name__ == "__main__":
    main()
