"""Pictures, as they might have been taken: a little aside, a little lighter or darker."""

from __future__ import annotations

import torch
from torch import Tensor

from macnet.training.recipes import Recipe

MIDDLE = 127.5


def augmented(pictures: Tensor, recipe: Recipe) -> Tensor:
    """Each of (N, H, W, 3), bytes, in its own way; a CUDA graph may hold it."""
    if recipe.shift:
        pictures = _moved(pictures, recipe.shift)
    if recipe.jitter:
        pictures = _relit(pictures, recipe.jitter)
    return pictures


def _moved(pictures: Tensor, most: int) -> Tensor:
    """By up to so many pixels each way; the edge is repeated."""
    n, height, width, _ = pictures.shape
    device = pictures.device
    y, x = torch.randint(-most, most + 1, (2, n, 1), device=device)
    rows = (torch.arange(height, device=device) + y).clamp(0, height - 1)  # (n, height)
    columns = (torch.arange(width, device=device) + x).clamp(0, width - 1)
    which = torch.arange(n, device=device)[:, None, None]
    return pictures[which, rows[:, :, None], columns[:, None, :]]


def _relit(pictures: Tensor, most: float) -> Tensor:
    """Contrast by a factor, brightness by a summand."""
    contrast, brightness = torch.empty(
        (2, len(pictures), 1, 1, 1), device=pictures.device
    ).uniform_(-most, most)
    seen: Tensor = (pictures - MIDDLE) * (1 + contrast) + MIDDLE * (1 + brightness)
    return seen.round().clamp(0, 255).to(torch.uint8)
