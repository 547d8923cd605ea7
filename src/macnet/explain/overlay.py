"""Attention over a grid of places, shown on the picture itself.

What is attended stands in the light and in its own colours, for colours are what is asked about;
the rest loses light and most of its colour. The cue is light, so that it reads the same to all
eyes. `page.html` shades its pictures by the same rule.
"""

from __future__ import annotations

import numpy as np

WIDTH = 0.55  # of the bell over a cell, in cells: wide enough to blend, too narrow to move a peak
LIT, UNLIT = 1.2, 0.4  # times the light of the picture, where attention is strongest and where none
COLOUR = 0.4  # that is left where there is none
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def spread(places: np.ndarray, width: int, height: int) -> np.ndarray:
    """(h, w) attention → a smooth (height, width) map, 1 where it is strongest.

    The centre of a cell keeps its place: nothing moves by half a cell, not even at the edges.
    Attention that is the same everywhere is light that is the same everywhere.
    """
    rows, columns = places.shape
    light = _weights(rows, height) @ places.astype(np.float32) @ _weights(columns, width).T
    strongest = light.max()
    spread: np.ndarray = light / strongest if strongest > 0 else light
    return spread


def shade(picture: np.ndarray, places: np.ndarray) -> np.ndarray:
    """A picture (H, W, 3) uint8 as attention (h, w) lights it."""
    height, width = picture.shape[:2]
    colours = picture.astype(np.float32)
    grey = (colours @ LUMA)[..., None]
    lit = colours * np.minimum(LIT, 255 / colours.max(-1, keepdims=True).clip(1))
    unlit = UNLIT * (COLOUR * colours + (1 - COLOUR) * grey)
    light = spread(places, width, height)[..., None]
    shaded: np.ndarray = np.rint(unlit + light * (lit - unlit)).astype(np.uint8)
    return shaded


def _weights(cells: int, pixels: int) -> np.ndarray:
    """(pixels, cells): the share of each cell in each pixel, by a bell over the cell's centre.

    Beyond the outermost centres all stays as it is there, or the edges would outshine them.
    """
    at = ((np.arange(pixels) + 0.5) * (cells / pixels) - 0.5).clip(0, cells - 1)
    bells = np.exp(-0.5 * ((at[:, None] - np.arange(cells)) / WIDTH) ** 2)
    weights: np.ndarray = (bells / bells.sum(1, keepdims=True)).astype(np.float32)
    return weights
