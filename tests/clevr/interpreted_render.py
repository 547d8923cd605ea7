"""Render with the kernels on a CPU, in Triton's interpreter: the scenes and results are files.

    TRITON_INTERPRET=1 python interpreted_render.py SCENES.npy WIDTH HEIGHT OUT.npz

Kernels have to be interpreted from the start of a process, so tests run this one.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter  # type: ignore[import-not-found,unused-ignore]

from macnet.clevr.kernels import launch

patch_tensor = interpreter._patch_lang_tensor


def patch_for_new_numpy(tensor: Any, scope: Any) -> None:
    """Let `range` take a scalar of a kernel: Triton 3.6 asks NumPy for what 2.4 no longer does."""
    patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def main(scenes_file: str, width: int, height: int, out: str) -> None:
    torch.set_num_threads(1)
    interpreter._patch_lang_tensor = patch_for_new_numpy
    warnings.simplefilter("ignore")  # lanes whose result is not used may overflow
    # An interpreted operation takes as long for many numbers as for few.
    tile = {"COLUMNS": 32, "ROWS": 16}
    launch.TILES = launch.TILES._replace(
        shadows=tile, bleed=tile, objects=tile, ground=tile, trace={"RAYS": 512}
    )
    scenes, cpu = np.load(scenes_file), torch.device("cpu")
    images, objects, visible = launch.render(scenes, width, height, cpu)
    counted = launch.count_visible(scenes, width, height, cpu)
    np.savez(out, images=images, objects=objects, visible=visible, counted=counted)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
