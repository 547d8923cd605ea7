"""Attention stays where the network put it, and shows as light."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explained import centred, shares
from macnet.explain.overlay import SIGMA, overlay_attention, upsample
from macnet.explain.reply import GridCenters

cells = st.integers(1, 16)
pixels = st.integers(16, 200)
seeds = st.integers(0, 1 << 16)


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    rows=cells,
    columns=cells,
    width=pixels,
    height=pixels,
    stride=st.sampled_from([1, 2, 8]),
)
def test_a_single_place_is_brightest_where_it_is_centred(
    data: st.DataObject, rows: int, columns: int, width: int, height: int, stride: int
) -> None:
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    places = np.zeros((rows, columns), np.float32)
    places[row, column] = 1
    centres = centred(rows, columns, stride)
    light = upsample(places, centres, width, height)
    assert light.shape == (height, width)
    assert light.max() == 1
    for found, cell, count, middles in (
        (light.max(1), row, rows, centres.rows),
        (light.max(0), column, columns, centres.columns),
    ):
        brightest = np.flatnonzero(found > 1 - 1e-6) + 0.5  # the middles of pixels
        length = len(found)
        at = middles[cell] * length
        # At the edge of the picture there is nothing to fade to: it stays bright to the border.
        low = 0 if cell == 0 else at - 1
        high = length if cell == count - 1 else at + 1
        assert low <= brightest.min() <= at + 1
        assert at - 1 <= brightest.max() <= high


@settings(max_examples=30, deadline=None)
@given(rows=cells, columns=cells, seed=seeds)
def test_each_pixel_is_a_mean_of_places_by_their_distance(
    rows: int, columns: int, seed: int
) -> None:
    places, (width, height) = shares(np.random.default_rng(seed), rows, columns), (19, 13)
    light = np.zeros((height, width))
    for y in range(height):
        for x in range(width):
            # From the first centre, in places: it is half a pixel, of eight to a place, inside.
            down = min(max((y + 0.5) / height * rows - 1 / 16, 0), rows - 1)
            across = min(max((x + 0.5) / width * columns - 1 / 16, 0), columns - 1)
            weights = [
                [
                    math.exp(-((down - r) ** 2 + (across - c) ** 2) / 2 / SIGMA**2)
                    for c in range(columns)
                ]
                for r in range(rows)
            ]
            light[y, x] = np.average(places, weights=np.array(weights))
    found = upsample(places, centred(rows, columns), width, height)
    assert np.allclose(found, light / light.max(), atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(rows=cells, columns=cells, seed=seeds)
def test_a_mirrored_thought_is_the_mirrored_map(rows: int, columns: int, seed: int) -> None:
    places = shares(np.random.default_rng(seed), rows, columns)
    down, across = centred(rows, columns)
    light = upsample(places, GridCenters(down, across), 60, 40)
    upside_down = upsample(places[::-1], GridCenters(1 - down[::-1], across), 60, 40)
    assert np.allclose(upside_down, light[::-1], atol=1e-5)
    mirrored = upsample(places[:, ::-1], GridCenters(down, 1 - across[::-1]), 60, 40)
    assert np.allclose(mirrored, light[:, ::-1], atol=1e-5)


def test_even_attention_is_even_light() -> None:
    assert np.allclose(upsample(np.full((8, 5), 1 / 40), centred(8, 5), 160, 90), 1, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=seeds)
def test_what_is_attended_more_is_lighter_and_more_colourful(seed: int) -> None:
    rng = np.random.default_rng(seed)
    colour = rng.integers(0, 256, 3, np.uint8)
    places = shares(rng, 6, 6)
    picture = np.broadcast_to(colour, (48, 48, 3))
    shaded = overlay_attention(picture, places, centred(6, 6)).astype(int).reshape(-1, 3)
    by_light = shaded[upsample(places, centred(6, 6), 48, 48).ravel().argsort()]
    assert (np.diff(by_light @ [0.299, 0.587, 0.114]) >= -1).all()  # but for rounding
    assert (np.diff(np.ptp(by_light, axis=1)) >= -1).all()
    # The strongest place has its own colour, lighter by a fifth if that is still a colour.
    most = min(1.2, 255 / max(colour.max(), 1))
    assert np.abs(by_light[-1] - most * colour).max() <= 0.51


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (700, 1), (3, 2)])
def test_any_picture_and_any_grid(size: tuple[int, int]) -> None:
    picture = np.full((*size, 3), 200, np.uint8)
    for grid in ((1, 1), (16, 16), (1, 9)):
        even = np.full(grid, 1 / math.prod(grid))
        assert overlay_attention(picture, even, centred(*grid)).shape == picture.shape
    assert (
        overlay_attention(picture, np.zeros((2, 2)), centred(2, 2)) == 80
    ).all()  # nothing attended, nothing lit
