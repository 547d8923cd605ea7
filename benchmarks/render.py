"""Images rendered per second, and the speedup from compiling the renderer's functions.

    python benchmarks/render.py --device cuda --size 224x224 --out results/render_speed_h200.json
    python benchmarks/render.py --device cpu --scenes 60 --out results/render_speed_cpu.json

Timed is all it takes from `Scene` objects to uint8 images on the device. "plain" is the same code
run eagerly; the ratio of the two is measured in one run, after a check that both render the same.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from macnet.clevr.render import render
from macnet.clevr.scene import Scene, sample_scenes
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


def compare(scenes: list[Scene], size: tuple[int, int], quality: str) -> None:
    """Check that compiled and eager images are equal up to rounding, but for a few pixels."""
    plain, fused = (render(scenes, *size, quality, "cuda", compile=c) for c in (False, True))
    levels = (plain.images.int() - fused.images.int()).abs()
    shares = (levels <= 2).float().mean().item(), (plain.objects == fused.objects).float().mean()
    if shares[0] < 0.995 or shares[1] < 0.999:
        raise SystemExit(f"compiled images differ: {shares[0]:.4f} of levels are near")


def measure_cuda(
    scenes: list[Scene], size: tuple[int, int], quality: str, repeats: int
) -> dict[str, Any]:
    def seconds(compile: bool) -> float:
        start = time.perf_counter()
        render(scenes, *size, quality, "cuda", compile=compile)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def rate(compile: bool) -> float:
        return len(scenes) / statistics.median(seconds(compile) for _ in range(repeats))

    first = seconds(compile=True)
    compare(scenes[:20], size, quality)
    seconds(compile=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = render(scenes, *size, quality, "cuda", compile=True)
    outputs = sum(column.numel() * column.element_size() for column in kept)
    # Concatenating the parts needs the outputs twice; everything beyond that is scratch memory.
    scratch = torch.cuda.max_memory_allocated() - before - 2 * outputs
    compiled = rate(compile=True)
    seconds(compile=False)
    plain = rate(compile=False)
    return {
        "images_per_second": round(compiled),
        "plain_images_per_second": round(plain),
        "compiled_over_plain": round(compiled / plain, 2),
        "first_call_seconds": round(first, 1),
        "scratch_gigabytes": round(scratch / 1e9, 2),
    }


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
        numbers |= measure_cuda(scenes, (width, height), args.quality, args.repeats)
    else:
        rate = measure_cpu(scenes, (width, height), args.quality, args.processes)
        numbers |= {"processes": args.processes, "images_per_second": round(rate, 1)}
    keep(args.out, f"images rendered per second, on {args.device}", **numbers)


if __name__ == "__main__":
    main()
