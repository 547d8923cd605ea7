"""Attention over a grid of places, shown on the picture itself.

What is attended stands in the light and in its own colours, for colours are what is asked about;
the rest loses light and most of its colour. The cue is light, so that it reads the same to all
eyes. `page.html` shades its pictures by the same rule.
"""

from __future__ import annotations

import numpy as np

from macnet.explain.reply import Centres

WIDTH = 0.55  # of the bell over a place, in places: wide enough to blend, too narrow to move a peak
LIT, UNLIT = 1.2, 0.4  # times the light of the picture, where attention is strongest and where none
COLOUR = 0.4  # that is left where there is none
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def spread(places: np.ndarray, centres: Centres, width: int, height: int) -> np.ndarray:
    """(h, w) attention → a smooth (height, width) map of light, 1 where it is strongest.

    It is the root of attention, or one strong place would leave all others in the dark alike.
    Light falls where a place is centred, which is not the middle of its cell in an even grid.
    Attention that is the same everywhere is light that is the same everywhere.
    """
    down, across = _weights(centres.down, height), _weights(centres.across, width)
    light = down @ places.astype(np.float32) @ across.T
    strongest = light.max()
    spread: np.ndarray = np.sqrt(light / strongest) if strongest > 0 else light
    return spread


def shade(picture: np.ndarray, places: np.ndarray, centres: Centres) -> np.ndarray:
    """A picture (H, W, 3) uint8 as attention (h, w) lights it."""
    height, width = picture.shape[:2]
    colours = picture.astype(np.float32)
    grey = (colours @ LUMA)[..., None]
    lit = colours * np.minimum(LIT, 255 / colours.max(-1, keepdims=True).clip(1))
    unlit = UNLIT * (COLOUR * colours + (1 - COLOUR) * grey)
    light = spread(places, centres, width, height)[..., None]
    shaded: np.ndarray = np.rint(unlit + light * (lit - unlit)).astype(np.uint8)
    return shaded


def _weights(centres: np.ndarray, pixels: int) -> np.ndarray:
    """(pixels, places): the share of each place in each pixel, by a bell over its centre.

    Beyond the outermost centres all stays as it is there, or the edges would outshine them.
    """
    apart = centres[1] - centres[0] if len(centres) > 1 else 1.0
    at = ((np.arange(pixels) + 0.5) / pixels).clip(centres[0], centres[-1])
    bells = np.exp(-0.5 * ((at[:, None] - centres) / (WIDTH * apart)) ** 2)
    weights: np.ndarray = (bells / bells.sum(1, keepdims=True)).astype(np.float32)
    return weights
