"""Vectors of tensors: three coordinates, each a tensor of n values.

Kept apart rather than stacked, so that a compiler can fuse whole formulas into one kernel; tables
of vectors are (3, n) tensors, of which `pick` takes columns.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Vec:
    __slots__ = ("x", "y", "z")

    def __init__(self, x: Tensor, y: Tensor, z: Tensor) -> None:
        self.x, self.y, self.z = x, y, z

    def __add__(self, other: Vec) -> Vec:
        return Vec(self.x + other.x, self.y + other.y, self.z + other.z)

    def __sub__(self, other: Vec) -> Vec:
        return Vec(self.x - other.x, self.y - other.y, self.z - other.z)

    def times(self, factor: Tensor | float) -> Vec:  # `*` with a tensor would not compile
        return Vec(self.x * factor, self.y * factor, self.z * factor)

    def stacked(self) -> Tensor:
        """(3, n)."""
        return torch.stack([self.x, self.y, self.z])


def dot(a: Vec, b: Vec) -> Tensor:
    return a.x * b.x + a.y * b.y + a.z * b.z


def cross(a: Vec, b: Vec) -> Vec:
    return Vec(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x)


def unit(v: Vec) -> Vec:
    return v.times(dot(v, v).clamp(min=1e-12).rsqrt())


def where(condition: Tensor, a: Vec, b: Vec) -> Vec:
    pairs = (a.x, b.x), (a.y, b.y), (a.z, b.z)
    return Vec(*(torch.where(condition, p, q) for p, q in pairs))


def at(row: Tensor, index: Tensor) -> Tensor:
    """A row's values at an index; a single value is left to broadcast.

    (On a CPU, `index_select` is several times faster than square brackets.)
    """
    return row if row.shape[0] == 1 else row.index_select(0, index)


def pick(table: Tensor, index: Tensor) -> Vec:
    """Columns of a table of vectors."""
    return Vec(*(at(row, index) for row in table))
