"""Augmentation of images: random shifts, and random changes of brightness and contrast."""

from __future__ import annotations

import torch
from torch import Tensor

from macnet.models.recipe import Recipe

MID_GRAY = 127.5


def augment(images: Tensor, recipe: Recipe) -> Tensor:
    """Change each of (N, H, W, 3) uint8 images at random; a CUDA graph may hold it."""
    if recipe.shift:
        images = _shift(images, recipe.shift)
    if recipe.jitter:
        images = _jitter(images, recipe.jitter)
    return images


def _shift(images: Tensor, most: int) -> Tensor:
    """Shift by up to so many pixels each way; the edge is repeated."""
    n, height, width, _ = images.shape
    device = images.device
    y, x = torch.randint(-most, most + 1, (2, n, 1), device=device)
    rows = (torch.arange(height, device=device) + y).clamp(0, height - 1)  # (n, height)
    columns = (torch.arange(width, device=device) + x).clamp(0, width - 1)
    index = torch.arange(n, device=device)[:, None, None]
    return images[index, rows[:, :, None], columns[:, None, :]]


def _jitter(images: Tensor, most: float) -> Tensor:
    """Change contrast by a factor, brightness by a summand."""
    contrast, brightness = torch.empty((2, len(images), 1, 1, 1), device=images.device).uniform_(
        -most, most
    )
    changed: Tensor = (images - MID_GRAY) * (1 + contrast) + MID_GRAY * (1 + brightness)
    return changed.round().clamp(0, 255).to(torch.uint8)
