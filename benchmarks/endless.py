"""What the endless stream delivers: alone, and to a network that learns from it.

    python benchmarks/endless.py --workers 15 --out results/stream_speed_h200.json

Delivered are batches on the device: scenes placed, tested for hidden objects and rendered, ten
questions asked about each, their programs run, their words looked up. A validation set is made in
the same way, and packed on disk: its seconds count from when kernels are compiled, and include the
start of the workers. The network is trained by `training.step.Learner`, as in `macnet train`: once
on a batch that stays on the device, and once on the stream. What the stream costs is how much
slower steps follow each other than on the former. Each rate is measured several times, in turns.
Without CUDA, no network is trained.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from macnet.clevr.backend import fastest_backend
from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.render import all_visible, render
from macnet.clevr.scene import sample_scenes
from macnet.clevr.scene_array import scenes_to_array
from macnet.clevr.stream import BLOCKS_AHEAD
from macnet.clevr.world import World
from macnet.data.batches import Batch, BatchSource
from macnet.data.block_encoder import world_texts
from macnet.data.endless import EndlessBatches
from macnet.data.generated import pack_generated
from macnet.data.vocab import Vocabulary
from macnet.training.loop import READ_EVERY
from macnet.training.warm_up import RepeatedBatch
from record import keep
from step import build_learner


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def rate(run: Callable[[], object], seconds: float) -> float:
    """Calls a second."""
    run()
    wait()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        run()
        calls += 1
    wait()
    return calls / (time.perf_counter() - start)


def of_device(world: World, device: str, seconds: float) -> dict[str, float]:
    """Blocks of scenes that are rendered, and that are tested for hidden objects, in images/s."""
    scenes = scenes_to_array(sample_scenes([random.Random(i) for i in range(IMAGES_PER_BLOCK)]))
    size = world.width, world.height
    backend = fastest_backend(torch.device(device))
    rendered = rate(lambda: render(scenes, *size, device=device, backend=backend), seconds)
    tested = rate(lambda: all_visible(scenes, *size, device, backend=backend), seconds)
    return {
        "rendered_images_per_second": round(IMAGES_PER_BLOCK * rendered),
        "tested_scenes_per_second": round(IMAGES_PER_BLOCK * tested),
    }


def validation_set(world: World, vocabulary: Vocabulary, args: argparse.Namespace) -> float:
    """Seconds in which a validation set is made and packed."""
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        pack_generated(
            world,
            vocabulary,
            split="val",
            images=args.val_images,
            cache=Path(cache),
            device=args.device,
            workers=args.workers,
        )
        return time.perf_counter() - start


def learning(
    batches: EndlessBatches, vocabulary: Vocabulary, stock: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Questions/s of learning from a batch that stays, and from the stream."""
    batch = Batch(*(tensor.clone() for tensor in next(batches)))

    def learner(source: BatchSource) -> Callable[[], None]:
        own = build_learner(args.preset, vocabulary, batch, source)

        def read_every_few_steps() -> None:
            for _ in range(READ_EVERY["cuda"]):
                own.step(0, 1e-4)
            own.meters()

        return read_every_few_steps

    still, fed = learner(RepeatedBatch(batch)), learner(batches)
    steps: dict[str, list[float]] = {"on_a_batch_that_stays": [], "on_the_stream": []}
    for _ in range(args.repeats):
        steps["on_a_batch_that_stays"].append(rate(still, args.seconds / 2))
        # What was made ahead meanwhile is no measure.
        for _ in range(stock // READ_EVERY["cuda"] + 1):
            fed()
        steps["on_the_stream"].append(rate(fed, args.seconds))
    per_call = READ_EVERY["cuda"] * len(batch.answers)
    found: dict[str, Any] = {"preset": args.preset}
    for name, rates in steps.items():
        found[f"questions_per_second_{name}"] = sorted(round(per_call * r) for r in rates)
    medians = [statistics.median(rates) for rates in steps.values()]
    return {**found, "share_of_the_step": round(1 - medians[1] / medians[0], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="128x128")
    parser.add_argument("--images", type=int, default=64, help="in a batch, ten questions each")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--val-images", type=int, default=5000, help="of the validation set")
    parser.add_argument("--preset", default="pixels")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    world, vocabulary = World(seed=1, width=width, height=height), Vocabulary.build(world_texts())
    found: dict[str, Any] = {}

    def note(**numbers: Any) -> None:
        found.update(numbers)
        print(numbers, flush=True)

    on_cuda = args.device == "cuda"
    start = time.perf_counter()
    of_device(world, args.device, 0)
    note(seconds_of_the_first_rendering=round(time.perf_counter() - start, 1))
    note(**of_device(world, args.device, args.seconds / 4))
    made = sorted(validation_set(world, vocabulary, args) for _ in range(args.repeats))
    note(validation_images=args.val_images, validation_set_seconds=[round(s, 2) for s in made])
    start = time.perf_counter()
    with EndlessBatches(
        world, vocabulary, images=args.images, device=args.device, workers=args.workers
    ) as batches:
        next(batches)
        note(seconds_to_the_first_batch=round(time.perf_counter() - start, 1))
        # What was made ahead of time is no measure: it is taken first, and as much again.
        stock = 2 * IMAGES_PER_BLOCK * (4 + BLOCKS_AHEAD * args.workers) // args.images
        delivered = []
        for _ in range(args.repeats):
            for _ in range(stock):
                next(batches)
            delivered.append(args.images * rate(lambda: next(batches), args.seconds))
        rates = sorted(round(images * world.questions_per_image) for images in delivered)
        note(questions_per_second=rates)
        if on_cuda:
            note(learning=learning(batches, vocabulary, stock, args))
    keep(
        args.out,
        f"images with ten questions each that the endless stream delivers, on {args.device}",
        size=args.size,
        images_per_batch=args.images,
        workers=args.workers,
        **found,
    )


if __name__ == "__main__":
    main()
