"""Pictures moved and lit anew."""

from __future__ import annotations

import pytest
import torch

from macnet.models.recipe import Recipe
from macnet.training.augment import augment


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


@pytest.mark.parametrize("change", [{"shift": 3}, {"jitter": 0.2}, {"shift": 1, "jitter": 0.1}])
def test_images_stay_uint8(change: dict[str, float]) -> None:
    seen = augment(images(), Recipe(**change))  # type: ignore[arg-type]
    assert seen.shape == images().shape
    assert seen.dtype == torch.uint8
