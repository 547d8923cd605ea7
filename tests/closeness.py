"""How far a result in low precision is from the exact one."""

from __future__ import annotations

from torch import Tensor


def off_by(found: Tensor, wanted: Tensor) -> float:
    """The norm of the difference, as a share of the norm of what is wanted."""
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm())
