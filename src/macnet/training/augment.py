"""Augmentation of images: random shifts, rotations, changes of brightness and contrast."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from macnet.data.batches import Batch, GuidedBatch
from macnet.models.recipe import Recipe

MID_GRAY = 127.5


def augment_batch(batch: Batch, recipe: Recipe) -> Batch:
    """Change each image of a batch at random; masks of its objects, if there are any, follow."""
    if not isinstance(batch, GuidedBatch):
        return batch._replace(images=augment(batch.images, recipe))
    images, objects = _augment([batch.images, batch.objects], recipe)
    return GuidedBatch.of(batch._replace(images=images), objects, batch.references)


def augment(images: Tensor, recipe: Recipe) -> Tensor:
    """Change each of (N, H, W, 3) uint8 images at random; a CUDA graph may hold it."""
    return _augment([images], recipe)[0]


def _augment(pictures: list[Tensor], recipe: Recipe) -> list[Tensor]:
    """The same for images and maybe masks (N, H, W), which move as their images do."""
    images = pictures[0]
    if recipe.shift:
        index = _shift_index(images, recipe.shift)
        pictures = [picture[index] for picture in pictures]
    if recipe.rotation:
        most = recipe.rotation
        angles = torch.empty(len(images), device=images.device).uniform_(-most, most)
        pictures = [rotate(picture, angles) for picture in pictures]
    if recipe.jitter:
        pictures = [_jitter(pictures[0], recipe.jitter), *pictures[1:]]
    return pictures


def _shift_index(images: Tensor, most: int) -> tuple[Tensor, ...]:
    """Where each pixel comes from in a shift by up to so many pixels; the edge is repeated."""
    n, height, width, _ = images.shape
    device = images.device
    y, x = torch.randint(-most, most + 1, (2, n, 1), device=device)
    rows = (torch.arange(height, device=device) + y).clamp(0, height - 1)  # (n, height)
    columns = (torch.arange(width, device=device) + x).clamp(0, width - 1)
    index = torch.arange(n, device=device)[:, None, None]
    return index, rows[:, :, None], columns[:, None, :]


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn each image counterclockwise about its center by its own angle; the edge is repeated.

    Args:
        images: (N, H, W, 3) uint8, or masks (N, H, W) of whole numbers, which are not interpolated.
        degrees: (N) float32.
    """
    is_mask, (height, width) = images.dim() == 3, images.shape[1:3]
    device = images.device
    cos, sin = (of(degrees.deg2rad())[:, None, None] for of in (torch.cos, torch.sin))
    y = torch.arange(height, device=device)[:, None] - (height - 1) / 2
    x = torch.arange(width, device=device) - (width - 1) / 2
    # Where each pixel comes from, as shares of half the image. `affine_grid` would compute this as
    # a product of matrices, in TF32 where that is allowed, and miss by hundredths of a pixel.
    across, down = (cos * x - sin * y) * (2 / width), (sin * x + cos * y) * (2 / height)
    grid = torch.stack([across, down], dim=-1)  # (N, H, W, 2)
    maps = (images[..., None] if is_mask else images).permute(0, 3, 1, 2).float()
    mode = "nearest" if is_mask else "bilinear"
    turned = F.grid_sample(maps, grid, mode, padding_mode="border", align_corners=False)
    turned = turned.round().to(images.dtype).permute(0, 2, 3, 1).contiguous()
    return turned[..., 0] if is_mask else turned


def _jitter(images: Tensor, most: float) -> Tensor:
    """Change contrast by a factor, brightness by a summand."""
    contrast, brightness = torch.empty((2, len(images), 1, 1, 1), device=images.device).uniform_(
        -most, most
    )
    changed: Tensor = (images - MID_GRAY) * (1 + contrast) + MID_GRAY * (1 + brightness)
    return changed.round().clamp(0, 255).to(torch.uint8)
