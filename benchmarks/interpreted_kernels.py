"""How well the renderer's Triton kernels agree with torch, on a CPU, in Triton's interpreter.

    python benchmarks/interpreted_kernels.py --out results/render_kernels_interpreted.json

It shows that the formulas are the same, and nothing about speed: on a GPU, `benchmarks/render.py`
compares and times what was compiled. Triton must be installed.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from macnet.clevr.render import render
from macnet.clevr.scene import sample_scenes
from macnet.clevr.scene_array import scenes_to_array
from record import keep

SCRIPT = Path(__file__).parent.parent / "tests" / "clevr" / "interpreted_render.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="96x64")
    parser.add_argument("--scenes", type=int, default=24)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))
    rngs = [random.Random(f"kernel {i}") for i in range(args.scenes)]
    scenes = scenes_to_array(sample_scenes(rngs))
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "scenes.npy", Path(folder) / "made.npz"
        np.save(given, scenes)
        subprocess.run(
            [sys.executable, str(SCRIPT), str(given), str(width), str(height), str(made)],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            check=True,
        )
        kernels = np.load(made)
        images, objects, visible = (kernels[k] for k in ("images", "objects", "visible"))
    expected = render(scenes, width, height)
    levels = np.abs(images.astype(int) - expected.images.numpy().astype(int))
    keep(
        args.out,
        "images rendered by interpreted Triton kernels beside those of the torch renderer, fast",
        size=args.size,
        scenes=args.scenes,
        psnr=round(10 * float(np.log10(255**2 / np.mean(levels**2))), 1),
        largest_difference=int(levels.max()),
        share_of_values_that_differ=float(f"{(levels > 0).mean():.2e}"),
        mask_pixels_that_differ=int((objects != expected.objects.numpy()).sum()),
        visible_counts_that_differ=int((visible != expected.visible.numpy()).sum()),
    )


if __name__ == "__main__":
    main()
