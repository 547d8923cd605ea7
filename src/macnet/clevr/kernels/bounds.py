"""Where the bodies of a scene can matter at all: 24 whole numbers for each of its 10 bodies.

The first 4 bound the pixels that may show it: the first column and row, and those after the last.
The next 4 × 4 bound, likewise, the texels of the shadow map that it may darken, for each light.
The last 4 are, for each light, the bodies that may stand before it, as bits.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from macnet.clevr.kernels.constants import (
    ANY_SIZE,
    LANES,
    MAP_HALF,
    MAX_OBJECTS,
    NUM_LIGHTS,
    SHADOW_MARGIN,
    constant,
)
from macnet.clevr.kernels.geometry import Vec, along, dot, load_body, load_vec, normalize, sub
from macnet.clevr.kernels.tables import COUNT_AT, LIGHT_SIZE, LIGHTS_AT, ROW_SIZE

_SCREEN, _RECTANGLE, _LIGHTS = 0, 4, 4
_SHADOWS = _SCREEN + _RECTANGLE
_OCCLUDERS = _SHADOWS + _RECTANGLE * _LIGHTS
WIDTH = _OCCLUDERS + _LIGHTS

# The same for kernels.
SCREEN_AT, SHADOWS_AT, OCCLUDERS_AT = map(constant, (_SCREEN, _SHADOWS, _OCCLUDERS))
RECTANGLE_SIZE, BOUNDS_SIZE = map(constant, (_RECTANGLE, WIDTH))


@triton.jit
def count_bodies(row_ptr):
    """Number of bodies of the scene with this row of the table."""
    return tl.load(row_ptr + COUNT_AT).to(tl.int32)


@triton.jit
def bodies_meeting(rectangles_ptr, count, left, top, right, bottom):
    """The bodies whose rectangle meets a tile, as bits; the first body's rectangle is given."""
    body = tl.arange(0, LANES)
    exists = body < count
    ptr = rectangles_ptr + body * BOUNDS_SIZE
    meets = (tl.load(ptr, mask=exists, other=right) < right) & exists
    meets &= tl.load(ptr + 1, mask=exists, other=bottom) < bottom
    meets &= tl.load(ptr + 2, mask=exists, other=left) > left
    meets &= tl.load(ptr + 3, mask=exists, other=top) > top
    return tl.sum(meets.to(tl.int32) << body, 0)


@triton.jit
def in_rectangle(rectangle_ptr, column, row):
    """Which cells lie in a rectangle."""
    inside = (column >= tl.load(rectangle_ptr)) & (row >= tl.load(rectangle_ptr + 1))
    return inside & (column < tl.load(rectangle_ptr + 2)) & (row < tl.load(rectangle_ptr + 3))


@triton.jit
def _corner(body, margin, corner):
    """Corners of bounding boxes that are grown by `margin`, but not downwards."""
    size = body.radius + margin
    x = tl.where((corner & 1) != 0, size, -size)
    y = tl.where((corner & 2) != 0, size, -size)
    z = tl.where((corner & 4) != 0, size, -size)
    return Vec(
        body.cos * x - body.sin * y + body.center.x,
        body.sin * x + body.cos * y + body.center.y,
        tl.maximum(z + body.center.z, 0.0),
    )


@triton.jit
def _store_rectangle(ptr, x, y, margin, width, height, exists):
    """The cells within the bounds of 8 corners, (bodies, 8), in a grid of width × height."""
    left, right = tl.min(x, 1) - margin, tl.max(x, 1) + margin
    top, bottom = tl.min(y, 1) - margin, tl.max(y, 1) + margin
    left = tl.floor(tl.minimum(tl.maximum(left, 0.0), width))
    top = tl.floor(tl.minimum(tl.maximum(top, 0.0), height))
    right = tl.ceil(tl.minimum(tl.maximum(right, 0.0), width))
    bottom = tl.ceil(tl.minimum(tl.maximum(bottom, 0.0), height))
    tl.store(ptr, left.to(tl.int32), mask=exists)
    tl.store(ptr + 1, top.to(tl.int32), mask=exists)
    tl.store(ptr + 2, right.to(tl.int32), mask=exists)
    tl.store(ptr + 3, bottom.to(tl.int32), mask=exists)


@triton.jit(**ANY_SIZE)
def find_bounds(
    table_ptr,  # (s, row)
    bounds_ptr,  # (s, 10, 24), out
    width,
    height,
    resolution,  # of the shadow map
):
    """The bounds of a scene's bodies; with a margin of a pixel on the screen."""
    scene = tl.program_id(0).to(tl.int64)
    row_ptr = table_ptr + scene * ROW_SIZE
    bounds_ptr += scene * MAX_OBJECTS * BOUNDS_SIZE
    count = count_bodies(row_ptr)
    index = tl.arange(0, LANES)
    exists = index < count
    index = tl.where(exists, index, 0)
    out_ptr = bounds_ptr + index * BOUNDS_SIZE
    body = load_body(row_ptr, index[:, None])  # (bodies, 1)
    corner = tl.arange(0, 8)[None]

    origin, right = load_vec(row_ptr), load_vec(row_ptr + 3)
    up, forward = load_vec(row_ptr + 6), load_vec(row_ptr + 9)
    offset = sub(_corner(body, 0.0, corner), origin)  # (bodies, 8)
    depth = tl.maximum(dot(offset, forward), 1e-3)
    across = dot(offset, right) / dot(right, right) / depth  # −1 … 1 over the frame
    above = dot(offset, up) / dot(up, up) / depth
    x, y = (0.5 + across / 2) * width, (0.5 - above / 2) * height
    _store_rectangle(out_ptr + SCREEN_AT, x, y, 1.0, width, height, exists)

    other_index = tl.arange(0, LANES)[None]
    other_exists = (other_index < count) & exists[:, None] & (other_index != index[:, None])
    other = load_body(row_ptr, tl.where(other_index < count, other_index, 0))  # (1, bodies)
    between = sub(other.center, body.center)  # (bodies, bodies)
    both = body.bound + other.bound + SHADOW_MARGIN
    scale = resolution / (2 * MAP_HALF)
    for light in range(NUM_LIGHTS):
        light_ptr = row_ptr + LIGHTS_AT + light * LIGHT_SIZE
        lamp = load_vec(light_ptr)
        # The shadow of a body lies within that of its bounding box, grown by the penumbra.
        corners = _corner(body, tl.load(light_ptr + 5), corner)
        cast = along(lamp, sub(corners, lamp), lamp.z / tl.maximum(lamp.z - corners.z, 1e-2))
        x, y = (cast.x + MAP_HALF) * scale, (cast.y + MAP_HALF) * scale
        rectangle_ptr = out_ptr + SHADOWS_AT + light * RECTANGLE_SIZE
        _store_rectangle(rectangle_ptr, x, y, 0.0, resolution, resolution, exists)

        direction = normalize(sub(lamp, body.center))  # (bodies, 1)
        toward = dot(between, direction)
        may = (toward > 0) & (dot(between, between) - toward * toward < both * both) & other_exists
        bits = tl.sum(may.to(tl.int32) << other_index, 1)
        tl.store(out_ptr + OCCLUDERS_AT + light, bits, mask=exists)
