"""Scenes as one table of numbers, which is all that the kernels know about them.

A row per scene, in float32, so that one transfer brings everything to the device:

    camera    12    origin, right, up and forward, as in `shapes.Cameras`
    count      1    number of bodies
    brush      8    how scattered rays are tilted along and across: 3 pairs, then 1
    lights  4 × 9   location, strength, half a side, penumbra, color
    bodies 10 × 13  x, y, radius, 1 / radius, bounding radius, cos, sin, core, is a cylinder,
                    color, is metal
"""

from __future__ import annotations

import math

import numpy as np

from macnet.clevr.camera import ASPECT, FOCAL, camera_axes
from macnet.clevr.kernels.constants import constant
from macnet.clevr.light import COLOR, HALF_SIDE, PENUMBRA, SUN, WATTS
from macnet.clevr.quality import QUALITIES
from macnet.clevr.scene import MATERIALS, MAX_OBJECTS, RADIUS, SHAPES, SIZES
from macnet.clevr.scene_array import object_mask
from macnet.clevr.shapes import BOUNDING_RADIUS, CORE, CYLINDER
from macnet.clevr.surface import ALBEDO, brush_pattern

# Scattered rays of a metal that is seen directly, and in a reflection.
BRUSHED_RAYS = (QUALITIES["fast"].brushed_rays, 1)

_CAMERA, _LIGHT, _BODY = 12, 9, 13
_COUNT = _CAMERA
_BRUSH = _COUNT + 1
_LIGHTS = _BRUSH + 2 * sum(BRUSHED_RAYS)
_BODIES = _LIGHTS + _LIGHT * len(WATTS)
WIDTH = _BODIES + _BODY * MAX_OBJECTS

# The same for kernels.
COUNT_AT, BRUSH_AT, LIGHTS_AT, BODIES_AT = map(constant, (_COUNT, _BRUSH, _LIGHTS, _BODIES))
LIGHT_SIZE, BODY_SIZE, ROW_SIZE = map(constant, (_LIGHT, _BODY, WIDTH))
RAYS_SEEN, RAYS_REFLECTED = map(constant, BRUSHED_RAYS)

_BY_SIZE = np.array([RADIUS[s] for s in SIZES])
_BY_SHAPE = np.array([(BOUNDING_RADIUS[s], CORE[s]) for s in SHAPES])  # (3, 2)


def build_table(scenes: np.ndarray) -> np.ndarray:
    """(s,) of SCENE_DTYPE → (s, WIDTH) float32, as the module says."""
    table = np.zeros((len(scenes), WIDTH), np.float32)
    origin = scenes["camera"]
    right, up, forward = camera_axes(origin)
    axes = origin, right / (2 * FOCAL), up / (2 * FOCAL * ASPECT), forward
    table[:, :_CAMERA] = np.concatenate(axes, axis=1)
    table[:, _COUNT] = scenes["num_objects"]
    table[:, _BRUSH:_LIGHTS] = np.concatenate([brush_pattern(k) for k in BRUSHED_RAYS]).ravel()

    lights = table[:, _LIGHTS:_BODIES].reshape(len(scenes), -1, _LIGHT)  # a view
    lights[:, :-1, :3], lights[:, -1, :3] = scenes["lamps"], SUN
    # A lamp faces the origin, hence its distance from there.
    far = np.linalg.norm(lights[..., :3].astype(np.float64), axis=-1)  # (s, 4)
    lights[..., 3] = np.array(WATTS) / math.pi / far
    lights[..., 4], lights[..., 5], lights[..., 6:] = HALF_SIDE, PENUMBRA, COLOR

    bodies = table[:, _BODIES:].reshape(len(scenes), MAX_OBJECTS, _BODY)  # a view
    x, y, yaw = np.moveaxis(scenes["poses"], -1, 0)  # (s, 10) each
    size, paint, material, shape = np.moveaxis(scenes["attributes"], -1, 0)
    radius, (bound, core) = _BY_SIZE[size], np.moveaxis(_BY_SHAPE[shape], -1, 0)
    metal = material == MATERIALS.index("metal")
    solid = x, y, radius, 1 / radius, bound * radius, np.cos(yaw), np.sin(yaw), core
    for k, column in enumerate((*solid, shape == CYLINDER)):
        bodies[..., k] = column
    bodies[..., 9:12], bodies[..., 12] = ALBEDO[paint], metal
    bodies *= object_mask(scenes)[..., None]
    return table
