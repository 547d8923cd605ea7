"""What the endless stream delivers: alone, and to a network that learns from it.

    python benchmarks/endless.py --workers 15 --out results/stream_speed_h200.json

Delivered are batches on the device: scenes placed, looked at for hidden objects and rendered, ten
questions asked about each, their programs run, their words looked up. The network is MAC as in
benchmarks/model.py but on pixels; its step is captured in a CUDA graph while the stream is at work,
and fed by copying each batch into the graph's. What the stream costs is how much slower steps
follow each other than on a batch that stays. Without CUDA, only the stream itself is measured.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.render import all_visible, render
from macnet.clevr.scene import sample_scenes
from macnet.clevr.scene_array import scenes_to_array
from macnet.clevr.stream import BLOCKS_AHEAD, BLOCKS_PER_RENDER
from macnet.clevr.world import World
from macnet.data.batches import Batch
from macnet.data.block_encoder import world_texts
from macnet.data.endless import EndlessBatches
from macnet.data.vocab import Vocabulary
from macnet.models.mac import MACNetwork
from macnet.models.presets import preset
from model import captured, training_step
from record import keep

IN_FLIGHT = 4  # steps that may be handed to the GPU before one of them is waited for


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
    """Scenes a second that are rendered, and that are looked at for hidden objects."""
    count = IMAGES_PER_BLOCK * BLOCKS_PER_RENDER[device]
    scenes = scenes_to_array(sample_scenes([random.Random(i) for i in range(count)]))
    size = world.width, world.height
    compile = device == "cuda"
    rendered = rate(lambda: render(scenes, *size, device=device, compile=compile), seconds)
    looked_at = rate(lambda: all_visible(scenes, *size, device), seconds)
    return {
        "drawn_images_per_second": round(count * rendered),
        "scenes_looked_at_per_second": round(count * looked_at),
    }


def kernel_seconds(run: Callable[[], object]) -> float:
    """How long kernels ran, whoever started them, during one call; they may overlap."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        wait()
    return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6


def learning(
    batches: EndlessBatches, vocabulary: Vocabulary, stock: int, d: int, p: int, seconds: float
) -> dict[str, Any]:
    network = MACNetwork(
        preset("paper", image="pixels", d=d, p=p),
        vocabulary=len(vocabulary),
        answers=len(vocabulary.answers),
    ).cuda()

    def taken(batch: Batch) -> Sequence[torch.Tensor]:
        # One image in some thousands has too few questions: let fillers be answered somehow.
        return batch.images, batch.questions, batch.answers.clamp(min=0)

    still = tuple(tensor.clone() for tensor in taken(next(batches)))
    replay = captured(training_step(network, network, still))
    # The thread's queue is full by now, and it rests.
    alone = rate(replay, seconds / 2)

    handed: deque[torch.cuda.Event] = deque()
    waited = 0.0

    def fed() -> None:
        nonlocal waited
        before = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - before
        for tensor, new in zip(still, taken(batch), strict=True):
            tensor.copy_(new)
        replay()
        handed.append(torch.cuda.Event())
        handed[-1].record()
        if len(handed) > IN_FLIGHT:
            handed.popleft().synchronize()

    for _ in range(stock):
        fed()
    waited = 0.0
    process_group = rate(fed, seconds)
    images, questions = len(still[0]), len(still[2])
    return {
        "questions_per_second_on_a_batch_that_stays": round(questions * alone),
        "questions_per_second": round(questions * process_group),
        "images_per_second": round(images * process_group),
        "share_of_the_step": round(1 - process_group / alone, 3),
        "share_of_time_without_a_batch": round(waited / seconds, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="128x128")
    parser.add_argument("--images", type=int, default=64, help="in a batch, ten questions each")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--p", type=int, default=12)
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
    note(seconds_to_compile=round(time.perf_counter() - start, 1) if on_cuda else None)
    note(**of_device(world, args.device, args.seconds / 4))
    with EndlessBatches(
        world,
        vocabulary,
        images=args.images,
        device=args.device,
        workers=args.workers,
        compile=on_cuda,
    ) as batches:
        start = time.perf_counter()
        next(batches)
        note(seconds_to_the_first_batch=round(time.perf_counter() - start, 1))
        # What was made ahead of time is no measure: it is taken first, and as much again.
        stock = (
            2
            * IMAGES_PER_BLOCK
            * (BLOCKS_PER_RENDER[args.device] + BLOCKS_AHEAD * args.workers)
            // args.images
        )
        for _ in range(stock):
            next(batches)
        delivered = args.images * rate(lambda: next(batches), args.seconds)
        note(
            images_per_second=round(delivered),
            questions_per_second=round(delivered * world.questions_per_image),
        )
        if on_cuda:
            count = 2 * BLOCKS_PER_RENDER[args.device] * IMAGES_PER_BLOCK // args.images
            busy = kernel_seconds(lambda: [next(batches) for _ in range(count)])
            note(gpu_milliseconds_per_1000_images=round(busy / count / args.images * 1e6, 1))
            note(learning=learning(batches, vocabulary, stock, args.d, args.p, args.seconds))
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
