"""Images rendered per second: by Triton kernels, and by torch.

    python benchmarks/render.py --device cuda --size 224x224 --out results/render_speed_h200.json
    python benchmarks/render.py --device cpu --scenes 60 --out results/render_speed_cpu.json

Timed is all it takes from an array of scenes, as a `Stream` has them, to uint8 images on the
device. The ratio to the torch renderer is measured in one run, after a check that both render the
same. The first call is timed with an empty cache of compiled kernels, and `kernel_milliseconds` are
those of each kernel for all scenes, by CUDA's events.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from macnet.clevr.backend import Backend
from macnet.clevr.render import all_visible, render
from macnet.clevr.scene import Scene, sample_scenes
from macnet.clevr.scene_array import scenes_to_array
from record import keep


def sample(count: int) -> list[Scene]:
    rngs = [random.Random(f"scene {i}") for i in range(count)]
    return sample_scenes(rngs)


def render_on_one_core(task: tuple[list[Scene], tuple[int, int], str]) -> None:
    torch.set_num_threads(1)
    render(*task[:1], *task[1], task[2], "cpu")


def measure_cpu(scenes: list[Scene], size: tuple[int, int], quality: str, processes: int) -> float:
    """Images per second over processes of one thread each, without their start."""
    shares = [(scenes[k::processes], size, quality) for k in range(processes)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(render_on_one_core, [(s[:1], z, q) for s, z, q in shares], chunksize=1)
        start = time.perf_counter()
        pool.map(render_on_one_core, shares, chunksize=1)
        return len(scenes) / (time.perf_counter() - start)


def compare(scenes: np.ndarray, size: tuple[int, int]) -> dict[str, float]:
    """Check that both backends render the same up to rounding, but for a few pixels."""
    torch_, triton = (
        render(scenes, *size, device="cuda", backend=backend) for backend in get_args(Backend)
    )
    levels = (torch_.images.int() - triton.images.int()).abs()
    near = (levels <= 2).float().mean().item()
    same = (torch_.objects == triton.objects).float().mean().item()
    error = levels.double().square().mean().item()
    psnr = 10 * math.log10(255**2 / max(error, 1e-9))
    if near < 0.995 or same < 0.999 or psnr < 45:
        raise SystemExit(f"images differ: {near:.4f} of levels are near, {psnr:.1f} dB")
    return {"psnr_to_torch": round(psnr, 1), "equal_objects": round(same, 6)}


def measure_backend(
    scenes: np.ndarray, size: tuple[int, int], quality: str, repeats: int, name: Backend
) -> dict[str, Any]:
    """Rates of one backend: the median, lowest and highest of several runs."""

    def seconds() -> float:
        start = time.perf_counter()
        render(scenes, *size, quality, "cuda", backend=name)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    first = seconds()
    alike = compare(scenes[:64], size) if name == "triton" else {}
    seconds()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = render(scenes, *size, quality, "cuda", backend=name)
    outputs = sum(column.numel() * column.element_size() for column in kept)
    # Torch concatenates parts, which needs the outputs twice; all beyond that is scratch memory.
    copies = 1 if name == "triton" else 2
    scratch = torch.cuda.max_memory_allocated() - before - copies * outputs
    del kept
    rates = sorted(len(scenes) / seconds() for _ in range(repeats))
    return {
        "images_per_second": round(statistics.median(rates)),
        "lowest": round(rates[0]),
        "highest": round(rates[-1]),
        "first_call_seconds": round(first, 1),
        "scratch_gigabytes": round(scratch / 1e9, 2),
        **alike,
    }


def time_kernels(scenes: np.ndarray, size: tuple[int, int], repeats: int) -> dict[str, Any]:
    """Median milliseconds of each kernel, and of building the tables on the host."""
    from macnet.clevr.kernels import launch, tables

    spent: dict[str, list[float]] = {}
    for _ in range(repeats):
        events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

        @contextmanager
        def timer(
            name: str, events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = events
        ) -> Iterator[None]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            yield
            end.record()
            events.append((name, start, end))

        launch.render(scenes, *size, torch.device("cuda"), timer)
        torch.cuda.synchronize()
        once: dict[str, float] = {}
        for name, start, end in events:
            once[name] = once.get(name, 0.0) + start.elapsed_time(end)
        begin = time.perf_counter()
        tables.build_table(scenes)
        once["build_table, on the host"] = 1e3 * (time.perf_counter() - begin)
        for name, milliseconds in once.items():
            spent.setdefault(name, []).append(milliseconds)
    return {name: round(statistics.median(times), 3) for name, times in spent.items()}


def measure_visibility(scenes: np.ndarray, size: tuple[int, int], repeats: int) -> dict[str, int]:
    """Scenes per second of the test whether all objects are visible, with its answer."""

    def rate(backend: Backend) -> float:
        all_visible(scenes, *size, "cuda", backend=backend)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            all_visible(scenes, *size, "cuda", backend=backend)
            times.append(time.perf_counter() - start)
        return len(scenes) / statistics.median(times)

    return {backend: round(rate(backend)) for backend in get_args(Backend)}


def measure_cuda(
    scenes: np.ndarray, size: tuple[int, int], quality: str, repeats: int
) -> dict[str, Any]:
    if quality != "fast":
        return {"torch": measure_backend(scenes, size, quality, repeats, "torch")}
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for name in get_args(Backend):
            numbers[name] = measure_backend(scenes, size, quality, repeats, name)
            print(name, numbers[name], flush=True)
        numbers["triton"]["kernel_milliseconds"] = time_kernels(scenes, size, repeats)
        numbers["visibility_tests_per_second"] = measure_visibility(scenes, size, repeats)
    rates = [numbers[name]["images_per_second"] for name in ("triton", "torch")]
    return {**numbers, "triton_over_torch": round(rates[0] / rates[1], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", default="480x320")
    parser.add_argument("--quality", default="fast")
    parser.add_argument("--scenes", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2, help="on a CPU")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    scenes = sample(args.scenes)
    numbers = {"size": args.size, "quality": args.quality, "scenes": args.scenes}
    if args.device == "cuda":
        numbers |= measure_cuda(
            scenes_to_array(scenes), (width, height), args.quality, args.repeats
        )
    else:
        rate = measure_cpu(scenes, (width, height), args.quality, args.processes)
        numbers |= {"processes": args.processes, "images_per_second": round(rate, 1)}
    keep(args.out, f"images rendered per second, on {args.device}", **numbers)


if __name__ == "__main__":
    main()
