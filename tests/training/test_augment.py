"""Pictures moved and lit anew."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from macnet.data.batches import Batch, GuidedBatch
from macnet.models.recipe import Recipe
from macnet.training.augment import augment, augment_batch, rotate


def images(n: int = 40) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(0, 256, (n, 9, 12, 3), dtype=torch.uint8)


def test_nothing_is_changed_unless_asked() -> None:
    seen = images()
    assert augment(seen, Recipe()) is seen


def test_each_image_is_shifted_as_a_whole_within_bounds() -> None:
    seen, moved = images(), augment(images(), Recipe(shift=2))
    found = set()
    for before, after in zip(seen, moved, strict=True):
        # The middle of each must lie somewhere within reach, and then so does all of it.
        fits = []
        for y in range(-2, 3):
            for x in range(-2, 3):
                rows = (torch.arange(9) + y).clamp(0, 8)
                columns = (torch.arange(12) + x).clamp(0, 11)
                if before[rows][:, columns].equal(after):
                    fits.append((y, x))
        assert len(fits) == 1
        found.add(fits[0])
    assert len(found) > 12  # of 25, in 40 draws
    assert {-2, 2} <= {y for y, _ in found}
    assert {-2, 2} <= {x for _, x in found}


def test_images_turn_counterclockwise_about_their_center() -> None:
    square = images()[:, :, :9].contiguous()
    quarters = torch.arange(40) % 4
    turned = rotate(square, 90.0 * quarters)
    for before, after, k in zip(square, turned, quarters.tolist(), strict=True):
        assert after.equal(before.rot90(k))
    assert rotate(images(), torch.zeros(40)).equal(images())
    assert rotate(images(), torch.full((40,), 180.0)).equal(images().flip(1, 2))


def test_a_rotation_interpolates_and_repeats_the_edge() -> None:
    """Against each pixel computed by itself, in an image that is not square."""
    (image,), degrees = images(1), 20.0
    (turned,) = rotate(image[None], torch.tensor([degrees]))
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    at = image.double()
    outside = 0
    for i, j in itertools.product(range(9), range(12)):
        y, x = i - 4, j - 5.5
        row, column = sin * x + cos * y + 4, cos * x - sin * y + 5.5
        outside += not (0 <= row <= 8 and 0 <= column <= 11)
        row, column = min(max(row, 0), 8), min(max(column, 0), 11)
        top, left = min(int(row), 7), min(int(column), 10)
        down, right = row - top, column - left
        upper, lower = ((1 - right) * at[r, left] + right * at[r, left + 1] for r in (top, top + 1))
        wanted = (1 - down) * upper + down * lower
        assert (turned[i, j] - wanted).abs().max() <= 0.5 + 1e-3
    assert outside > 10


def test_each_image_is_rotated_by_its_own_angle_within_bounds() -> None:
    """A line from the center outwards shows the angle."""
    size, most = 101, 30.0
    line = torch.zeros((60, size, size, 3), dtype=torch.uint8)
    line[:, 50, 60:] = 255
    torch.manual_seed(2)
    lit = augment(line, Recipe(rotation=most))[..., 0].double()
    y = 50 - torch.arange(size, dtype=torch.float64)[:, None]
    across, up = ((lit * place).sum((1, 2)) for place in (-y.T, y))
    angles = torch.atan2(up, across).rad2deg()
    assert angles.abs().max() < most + 0.5
    assert angles.min() < -most + 5
    assert angles.max() > most - 5
    assert len(angles.round(decimals=2).unique()) > 50


def test_brightness_and_contrast_change_within_bounds() -> None:
    grey = torch.arange(0, 256, dtype=torch.uint8)[None, None, :, None].expand(50, 1, 256, 3)
    torch.manual_seed(1)
    seen = augment(grey, Recipe(jitter=0.1))
    assert seen.dtype == torch.uint8
    lit = seen.double()
    slope = (lit[:, 0, 178, 0] - lit[:, 0, 77, 0]) / 101
    middle = (lit[:, 0, 127, 0] + lit[:, 0, 128, 0]) / 2
    assert 0.89 < slope.min() < 0.95
    assert 1.05 < slope.max() < 1.11
    assert 127.5 * 0.9 - 1 <= middle.min() < 122
    assert 133 < middle.max() <= 127.5 * 1.1 + 1


@pytest.mark.parametrize(
    "change",
    [
        {"shift": 3},
        {"rotation": 2.8},
        {"jitter": 0.2},
        {"shift": 1, "rotation": 180, "jitter": 0.1},
    ],
)
def test_images_stay_uint8(change: dict[str, float]) -> None:
    seen = augment(images(), Recipe(**change))  # type: ignore[arg-type]
    assert seen.shape == images().shape
    assert seen.is_contiguous()
    assert seen.dtype == torch.uint8


@pytest.mark.parametrize(
    "change", [{}, {"shift": 3}, {"rotation": 30}, {"shift": 2, "rotation": 10, "jitter": 0.02}]
)
def test_masks_follow_their_images(change: dict[str, float]) -> None:
    """An image in which every object has its own gray shows the mask, except between two grays."""
    coarse = torch.randint(-1, 10, (20, 4, 4), generator=torch.Generator().manual_seed(0))
    objects = coarse.to(torch.int8).repeat_interleave(8, 1).repeat_interleave(8, 2)
    grays = (20 * (objects + 1)).to(torch.uint8)[..., None].expand(-1, -1, -1, 3)
    none = torch.zeros(20, dtype=torch.int64)
    given = GuidedBatch.of(Batch(grays, *[none] * 6), objects, none + 3)
    recipe = Recipe(**change)  # type: ignore[arg-type]
    torch.manual_seed(1)
    found = augment_batch(given, recipe)
    assert isinstance(found, GuidedBatch)
    assert (found.objects.dtype, found.references) == (torch.int8, given.references)
    off = (found.images.float() / 20 - 1 - found.objects[..., None]).abs().amax(3)
    allowed = 0.25 if recipe.jitter else 0
    assert (off > allowed).float().mean() < (0.2 if recipe.rotation else 1e-9)
    assert torch.equal(found.objects, objects) == (not change)
    torch.manual_seed(1)
    plain = augment_batch(Batch(*given), recipe)
    assert not isinstance(plain, GuidedBatch)
    assert torch.equal(plain.images, found.images), "masks change nothing"
