"""3D vectors whose coordinates are separate tensors of n values each.

They are not stacked, so that each coordinate is computed only where it is needed. Tables of vectors
are (3, n) tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Vec:
    """n vectors: three tensors of shape (n,), or of any shapes that broadcast."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x: Tensor, y: Tensor, z: Tensor) -> None:
        self.x, self.y, self.z = x, y, z

    def __add__(self, other: Vec) -> Vec:
        return Vec(self.x + other.x, self.y + other.y, self.z + other.z)

    def __sub__(self, other: Vec) -> Vec:
        return Vec(self.x - other.x, self.y - other.y, self.z - other.z)

    def times(self, factor: Tensor | float) -> Vec:
        """Multiply by scalars."""
        return Vec(self.x * factor, self.y * factor, self.z * factor)

    @classmethod
    def unstack(cls, table: Tensor) -> Vec:
        """The rows of a (3, ...) tensor; the inverse of `stack`."""
        return cls(*table.unbind())

    def stack(self) -> Tensor:
        """The vectors as one tensor, (3, n)."""
        return torch.stack([self.x, self.y, self.z])


def dot(a: Vec, b: Vec) -> Tensor:
    """Dot products; those of x must have the shape of the result."""
    # In place, here and below: on a CPU, most of the time goes to moving numbers in and out.
    total = a.x * b.x
    total += a.y * b.y
    total += a.z * b.z
    return total


def cross(a: Vec, b: Vec) -> Vec:
    """Cross products."""
    return Vec(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x)


def normalize(v: Vec) -> Vec:
    """Unit vectors in the same directions."""
    return v.times(dot(v, v).clamp_(min=1e-12).rsqrt_())


def point_at(origin: Vec, direction: Vec, t: Tensor) -> Vec:
    """The points origin + t · direction."""
    point = direction.times(t)
    point.x += origin.x
    point.y += origin.y
    point.z += origin.z
    return point


def select(condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a where the condition is 1.0, b where it is 0.0; both must be finite.

    On a CPU this is several times faster than `torch.where`, which is not vectorized.
    """
    return torch.lerp(b, a, condition)


def select_vec(condition: Tensor, a: Vec, b: Vec) -> Vec:
    """`select` for vectors."""
    return Vec(*(select(condition, p, q) for p, q in ((a.x, b.x), (a.y, b.y), (a.z, b.z))))


def take(row: Tensor, index: Tensor) -> Tensor:
    """row[..., index], (..., n); a row of one value is returned as it is, to broadcast."""
    # On a CPU, `index_select` is several times faster than square brackets.
    return row if row.shape[-1] == 1 else row.index_select(-1, index)


def take_vec(table: Tensor, index: Tensor) -> Vec:
    """table[..., index] as vectors, of a (3, ..., m) table."""
    return Vec(*(take(row, index) for row in table.unbind()))
