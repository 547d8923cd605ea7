"""CLEVR's camera: it looks at the origin without roll, so its location is its only parameter."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

Vector = tuple[float, float, float]

CAMERA: Vector = (7.48113, -6.50764, 5.34367)  # without jitter
FOCAL = 35 / 32  # focal length over sensor width
ASPECT = 480 / 320  # of the frame, whatever its number of pixels: a square image is the released
# image squeezed, as every network that reads CLEVR at 224×224 sees it


def camera_axes(camera: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors right, up and forward of cameras: (..., 3) → three of (..., 3)."""
    location = np.asarray(camera, dtype=np.float64)
    forward = -location / np.linalg.norm(location, axis=-1, keepdims=True)
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right, axis=-1, keepdims=True)
    return right, np.cross(right, forward), forward


def project(camera: Vector, points: np.ndarray, width: int, height: int) -> np.ndarray:
    """(n, 3) world points → (n, 3) pixel x, pixel y, depth along the optical axis."""
    x, y, depth = np.stack(camera_axes(camera)) @ (points - np.asarray(camera)).T
    u, v = FOCAL * x / depth, FOCAL * ASPECT * y / depth
    return np.stack([width * (0.5 + u), height * (0.5 - v), depth], axis=1)


def fit_camera(points: np.ndarray, pixels: np.ndarray, width: int, height: int) -> Vector:
    """Find the camera that projects `points` to `pixels` (x, y, depth), by Gauss–Newton.

    Pixels are rounded to whole numbers but depths are exact, hence their weight.
    """
    weight = np.array([1.0, 1.0, 1e3])

    def residual(camera: np.ndarray) -> np.ndarray:
        return np.ravel((project(tuple(camera), points, width, height) - pixels) * weight)

    location = np.asarray(CAMERA)
    for _ in range(10):
        error = residual(location)
        columns = [(residual(location + step) - error) / 1e-5 for step in np.eye(3) * 1e-5]
        location = location - np.linalg.lstsq(np.stack(columns, axis=1), error, rcond=None)[0]
    x, y, z = (float(c) for c in location)
    return x, y, z
