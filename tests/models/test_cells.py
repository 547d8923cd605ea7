"""Which cells show which objects: those that the pixels of an object are nearest to."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.clevr.scene import MAX_OBJECTS
from macnet.models.cells import nearest_cells, object_cells
from macnet.models.encoders import PixelEncoder
from macnet.models.presets import preset


def test_a_place_is_where_its_convolutions_are_centred() -> None:
    height, width = 40, 24
    torch.manual_seed(0)
    trunk: Any = PixelEncoder(preset("pixels", d=8)).eval()
    rows, columns = map(len, PixelEncoder.cell_centers(height, width))
    pictures = torch.zeros(height, height, width, 3, dtype=torch.uint8)
    pictures[range(height), range(height), width // 2] = 255  # one white pixel in each
    with torch.inference_mode():
        maps = trunk.features(torch.cat([pictures, torch.zeros_like(pictures[:1])]))
    felt = (maps[:-1] != maps[-1:]).any(1).any(2)  # (height, rows): does the row see the pixel?
    place = nearest_cells(height, width).view(height, width)
    middle = torch.arange(height).float()
    for row in range(1, rows - 1):
        seen = middle[felt[:, row]].mean()
        own = middle[(place // columns)[:, 0] == row].mean()
        assert seen == 8 * row
        assert abs(own - seen) <= 0.5
    # Every pixel is given to a place no farther from it than any other.
    centres = 8 * torch.arange(columns)
    for x, column in enumerate((place % columns)[0].tolist()):
        assert abs(x - centres[column]) == (x - centres).abs().min()
    assert place.unique().tolist() == list(range(rows * columns))


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_which_places_show_which_objects(data: st.DataObject) -> None:
    height, width = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 40)))
    seed = data.draw(st.integers(0, 99))
    masks = np.random.default_rng(seed).integers(-1, MAX_OBJECTS, (2, height, width))
    masks[0] = np.where(masks[0] < 7, -1, masks[0])
    shows = object_cells(torch.from_numpy(masks.astype(np.int8))).numpy()
    rows, columns = map(len, PixelEncoder.cell_centers(height, width))
    expected = np.zeros((2, MAX_OBJECTS, rows * columns), bool)
    for n, y, x in itertools.product(range(2), range(height), range(width)):
        if masks[n, y, x] >= 0:
            row, column = min((y + 3) // 8, rows - 1), min((x + 3) // 8, columns - 1)
            expected[n, masks[n, y, x], row * columns + column] = True
    assert (shows == expected).all()
