"""Attention over a grid of cells, shown on the image itself.

What is attended to is bright and in its own colors, for colors are what is asked about; the rest is
dark and loses most of its color. The cue is brightness, so that it reads the same to all eyes.
`page.html` does the same in the browser.
"""

from __future__ import annotations

import numpy as np

from macnet.explain.reply import GridCenters

SIGMA = 0.55  # of a Gaussian over a cell, in cells: wide enough to blend, too narrow to move a peak
BRIGHT, DARK = 1.2, 0.4  # times the image's brightness, at the strongest attention and at none
SATURATION = 0.4  # that is left where there is none
PARAMETERS = {"sigma": SIGMA, "bright": BRIGHT, "dark": DARK, "saturation": SATURATION}
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def upsample(attention: np.ndarray, centers: GridCenters, width: int, height: int) -> np.ndarray:
    """(h, w) attention → a smooth (height, width) map, 1 where it is strongest.

    It is proportional to attention. A cell's peak is at its center, which is not the center of the
    cell of an even grid. Uniform attention gives a uniform map.
    """
    rows, columns = _weights(centers.rows, height), _weights(centers.columns, width)
    smooth = rows @ attention.astype(np.float32) @ columns.T
    strongest = smooth.max()
    scaled: np.ndarray = smooth / strongest if strongest > 0 else smooth
    return scaled


def overlay_attention(image: np.ndarray, attention: np.ndarray, centers: GridCenters) -> np.ndarray:
    """An image (H, W, 3) uint8 with attention (h, w) shown as brightness."""
    height, width = image.shape[:2]
    colors = image.astype(np.float32)
    gray = (colors @ LUMA)[..., None]
    bright = colors * np.minimum(BRIGHT, 255 / colors.max(-1, keepdims=True).clip(1))
    dark = DARK * (SATURATION * colors + (1 - SATURATION) * gray)
    share = upsample(attention, centers, width, height)[..., None]
    shaded: np.ndarray = np.rint(dark + share * (bright - dark)).astype(np.uint8)
    return shaded


def _weights(centers: np.ndarray, pixels: int) -> np.ndarray:
    """(pixels, cells): the weight of each cell in each pixel, a Gaussian around its center.

    Beyond the outermost centers weights stay constant, or the edges would outshine them.
    """
    apart = centers[1] - centers[0] if len(centers) > 1 else 1.0
    at = ((np.arange(pixels) + 0.5) / pixels).clip(centers[0], centers[-1])
    bells = np.exp(-0.5 * ((at[:, None] - centers) / (SIGMA * apart)) ** 2)
    weights: np.ndarray = (bells / bells.sum(1, keepdims=True)).astype(np.float32)
    return weights
