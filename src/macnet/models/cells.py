"""Which cells of the knowledge base show which objects of a generated image."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from macnet.clevr.scene import MAX_OBJECTS
from macnet.models.encoders import PixelEncoder


def nearest_cells(height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """(height·width,): the cell of K that each pixel is nearest to; of two, the first."""

    def nearest(size: int, centers: range) -> Tensor:
        pixels = torch.arange(size, device=device)[:, None]
        places = torch.arange(centers.start, centers.stop, centers.step, device=device)
        return (pixels - places).abs().argmin(1)  # (size,)

    down, across = PixelEncoder.cell_centers(height, width)
    return (nearest(height, down)[:, None] * len(across) + nearest(width, across)).flatten()


def object_cells(objects: Tensor) -> Tensor:
    """(N, 10, L) bool, of masks (N, height, width): which cells show a pixel of each object.

    A mask has the index of the object at each pixel, and −1 for the ground.
    """
    n, height, width = objects.shape
    rows, cells = MAX_OBJECTS + 1, math.prod(map(len, PixelEncoder.cell_centers(height, width)))
    index = objects.flatten(1).long() % rows * cells  # the ground is the last row
    shown = torch.zeros(n, rows * cells, dtype=torch.bool, device=objects.device)
    shown.scatter_(1, index + nearest_cells(height, width, objects.device), True)
    return shown.view(n, rows, cells)[:, :MAX_OBJECTS]
