"""CLEVR's camera: it looks at the origin without roll, so its place is all there is to know."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

Vector = tuple[float, float, float]

CAMERA: Vector = (7.48113, -6.50764, 5.34367)
FOCAL = 35 / 32  # lens over sensor: the focal length in image widths
ASPECT = 480 / 320  # of the frame, whatever the number of pixels it is sampled with: a square
# image is the released picture squeezed, as every network that reads CLEVR at 224×224 sees it


def camera_axes(camera: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, up and forward of one camera, or of many: (..., 3) → three of (..., 3)."""
    place = np.asarray(camera, dtype=np.float64)
    forward = -place / np.linalg.norm(place, axis=-1, keepdims=True)
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right, axis=-1, keepdims=True)
    return right, np.cross(right, forward), forward


def project(camera: Vector, points: np.ndarray, width: int, height: int) -> np.ndarray:
    """(n, 3) world points → (n, 3) pixel x, pixel y, depth along the optical axis."""
    x, y, depth = np.stack(camera_axes(camera)) @ (points - np.asarray(camera)).T
    u, v = FOCAL * x / depth, FOCAL * ASPECT * y / depth
    return np.stack([width * (0.5 + u), height * (0.5 - v), depth], axis=1)


def fit_camera(points: np.ndarray, pixels: np.ndarray, width: int, height: int) -> Vector:
    """The camera that sees `points` at `pixels` (x, y, depth), by Gauss–Newton from the base one.

    Pixels are rounded to whole numbers but depths are exact, hence their weight.
    """
    weight = np.array([1.0, 1.0, 1e3])

    def residual(camera: np.ndarray) -> np.ndarray:
        seen = project(tuple(camera), points, width, height)
        return np.ravel((seen - pixels) * weight)

    location = np.asarray(CAMERA)
    for _ in range(10):
        now = residual(location)
        jacobian = np.stack(
            [(residual(location + step) - now) / 1e-5 for step in np.eye(3) * 1e-5], axis=1
        )
        location = location - np.linalg.lstsq(jacobian, now, rcond=None)[0]
    x, y, z = (float(c) for c in location)
    return x, y, z
