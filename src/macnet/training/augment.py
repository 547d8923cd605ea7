"""Augmentation of images: random shifts, rotations, changes of brightness and contrast."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from macnet.models.recipe import Recipe

MID_GRAY = 127.5


def augment(images: Tensor, recipe: Recipe) -> Tensor:
    """Change each of (N, H, W, 3) uint8 images at random; a CUDA graph may hold it."""
    if recipe.shift:
        images = _shift(images, recipe.shift)
    if recipe.rotation:
        most = recipe.rotation
        angles = torch.empty(len(images), device=images.device).uniform_(-most, most)
        images = rotate(images, angles)
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


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn each image counterclockwise about its center by its own angle; the edge is repeated.

    Args:
        images: (N, H, W, 3) uint8.
        degrees: (N) float32.
    """
    _, height, width, _ = images.shape
    device = images.device
    cos, sin = (of(degrees.deg2rad())[:, None, None] for of in (torch.cos, torch.sin))
    y = torch.arange(height, device=device)[:, None] - (height - 1) / 2
    x = torch.arange(width, device=device) - (width - 1) / 2
    # Where each pixel comes from, as shares of half the image. `affine_grid` would compute this as
    # a product of matrices, in TF32 where that is allowed, and miss by hundredths of a pixel.
    across, down = (cos * x - sin * y) * (2 / width), (sin * x + cos * y) * (2 / height)
    grid = torch.stack([across, down], dim=-1)  # (N, H, W, 2)
    maps = images.permute(0, 3, 1, 2).float()
    turned = F.grid_sample(maps, grid, padding_mode="border", align_corners=False)
    return turned.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _jitter(images: Tensor, most: float) -> Tensor:
    """Change contrast by a factor, brightness by a summand."""
    contrast, brightness = torch.empty((2, len(images), 1, 1, 1), device=images.device).uniform_(
        -most, most
    )
    changed: Tensor = (images - MID_GRAY) * (1 + contrast) + MID_GRAY * (1 + brightness)
    return changed.round().clamp(0, 255).to(torch.uint8)
