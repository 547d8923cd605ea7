"""Which tiles make the renderer's Triton kernels fastest: milliseconds of each kernel, by tile.

    python benchmarks/render_tiles.py --size 128x128 --scenes 2048

For each kernel, one setting of `launch.TILES` is changed at a time. The best belong into that
table; they are worth changing only if the gain is larger than the spread of the first rows, which
all measure the same.
"""

from __future__ import annotations

import argparse
from typing import Any

from macnet.clevr.kernels import launch
from macnet.clevr.scene_array import scenes_to_array
from record import keep
from render import sample, time_kernels

GRIDS = [(8, 4, 1), (8, 8, 1), (8, 8, 2), (16, 8, 1), (16, 8, 2), (16, 8, 4), (32, 8, 8)]
CHOICES: dict[str, list[Any]] = {
    "shadows": [{"COLUMNS": c, "ROWS": r, "num_warps": w} for c, r, w in GRIDS],
    "objects": [{"COLUMNS": c, "ROWS": r, "num_warps": w} for c, r, w in GRIDS],
    "ground": [{"COLUMNS": c, "ROWS": r, "num_warps": w} for c, r, w in GRIDS],
    "bleed": [
        {"COLUMNS": c, "ROWS": r, "num_warps": w}
        for c, r, w in [(32, 1, 1), (32, 4, 1), (32, 8, 2)]
    ],
    "smooth": [{"num_warps": w} for w in (1, 2, 4)],
    "trace": [{"RAYS": 32 * k, "num_warps": w} for k, w in [(1, 1), (2, 1), (2, 2), (4, 4)]]
    # Fewer registers mean more warps at once, and may mean spills.
    + [{"RAYS": 32, "num_warps": 1, "maxnreg": registers} for registers in (64, 80)],
    "pixels_per_program": [256, 512, 1024, 2048, 4096],
}
KERNELS = {
    "shadows": ["cast_shadows"],
    "objects": ["find_objects"],
    "ground": ["paint_ground"],
    "bleed": ["bleed_colors"],
    "smooth": ["smooth_shadows"],
    "trace": ["trace_bodies", "trace_outlines"],
    "pixels_per_program": ["trace_bodies", "trace_outlines"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="128x128")
    parser.add_argument("--scenes", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=CHOICES, default=list(CHOICES))
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    scenes = scenes_to_array(sample(args.scenes))
    chosen, found = launch.TILES, []

    def measure(name: str, choice: Any, kernels: list[str] | None = None) -> None:
        launch.TILES = chosen._replace(**{name: choice})
        time_kernels(scenes, (width, height), 1)  # compiled now
        times = time_kernels(scenes, (width, height), args.repeats)
        row = {"tile": f"{name} {choice}", **{k: times[k] for k in kernels or times}}
        print(row, flush=True)
        found.append(row)

    for _ in range(3):
        measure("trace", chosen.trace)
    for name in args.only:
        for choice in CHOICES[name]:
            with_stages = choice if isinstance(choice, int) else {**choice, "num_stages": 1}
            measure(name, with_stages, KERNELS[name])
    keep(None, "milliseconds of the renderer's kernels, by tile", size=args.size, found=found)


if __name__ == "__main__":
    main()
