"""Maps of the ground: its shadows, one layer per light, and the color that bodies cast on it.

Layers lie behind each other, scene by scene: shadows (s, 4, r, r), their blurred copy
(s, 4, 16, 16) and the bleeding of colors (s, 3, 128, 128), all in float32.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from macnet.clevr.kernels.bounds import (
    BOUNDS_SIZE,
    RECTANGLE_SIZE,
    SHADOWS_AT,
    bodies_meeting,
    count_bodies,
    in_rectangle,
)
from macnet.clevr.kernels.constants import (
    ANY_SIZE,
    BLEED_CUTOFF,
    BLEED_SIZE,
    BLEED_STRENGTH,
    BLUR_SIZE,
    MAP_HALF,
    MAX_OBJECTS,
    NUM_LIGHTS,
)
from macnet.clevr.kernels.geometry import (
    Vec,
    any_of,
    closest_approach,
    dot,
    load_body,
    load_material,
    load_vec,
    near_sphere,
    sub,
    times,
)
from macnet.clevr.kernels.tables import LIGHT_SIZE, LIGHTS_AT, ROW_SIZE


class Light(NamedTuple):
    """A light of a scene."""

    location: Vec
    strength: Any
    half_side: Any
    penumbra: Any
    color: Vec


@triton.jit
def load_light(row_ptr, light):
    """A light of the scene with this row of the table."""
    ptr = row_ptr + LIGHTS_AT + light * LIGHT_SIZE
    strength, half_side, penumbra = tl.load(ptr + 3), tl.load(ptr + 4), tl.load(ptr + 5)
    return Light(load_vec(ptr), strength, half_side, penumbra, load_vec(ptr + 6))


@triton.jit
def tile_cells(tile, columns, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """Left column and top row of a tile of a grid, and column and row of each of its cells."""
    tiles = tl.cdiv(columns, COLUMNS)
    left, top = tile % tiles * COLUMNS, tile // tiles * ROWS
    cell = tl.arange(0, COLUMNS * ROWS)
    return left, top, left + cell % COLUMNS, top + cell // COLUMNS


@triton.jit
def shadow_share(light, body, point, wanted):
    """Share of a light that a body occludes at each wanted point; 0 where it is not near."""
    offset = sub(light.location, point)
    square = dot(offset, offset)
    inverse = tl.rsqrt(square)
    direction = times(offset, inverse)
    near = near_sphere(body, light.penumbra, point, direction) & wanted
    share = tl.zeros_like(square)
    if any_of(near):
        far = square * inverse
        gap, t = closest_approach(body, point, direction)
        half_width = t * light.half_side * inverse
        share = tl.minimum(tl.maximum(0.5 - 0.5 * gap / (half_width + 1e-4), 0.0), 1.0)
        share = tl.where(near & (t < far), share * share * (3 - 2 * share), 0.0)
    return share


@triton.jit(**ANY_SIZE)
def cast_shadows(
    table_ptr,  # (s, row)
    bounds_ptr,  # (s, 10, 24)
    shadows_ptr,  # (s, 4, r, r), out: before smoothing
    resolution,  # r
    tiles,  # of a scene
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A tile of a scene's shadow map: the occluded share of each light."""
    scene = (tl.program_id(0) // tiles).to(tl.int64)
    row_ptr = table_ptr + scene * ROW_SIZE
    bounds_ptr += scene * MAX_OBJECTS * BOUNDS_SIZE
    count = count_bodies(row_ptr)
    left, top, column, row = tile_cells(tl.program_id(0) % tiles, resolution, COLUMNS, ROWS)
    size = 2 * MAP_HALF / resolution
    x, y = (column + 0.5) * size - MAP_HALF, (row + 0.5) * size - MAP_HALF
    point = Vec(x, y, tl.zeros_like(x))
    exists = (column < resolution) & (row < resolution)
    for number in range(NUM_LIGHTS):
        light = load_light(row_ptr, number)
        rectangles_ptr = bounds_ptr + SHADOWS_AT + number * RECTANGLE_SIZE
        bodies = bodies_meeting(rectangles_ptr, count, left, top, left + COLUMNS, top + ROWS)
        share = tl.zeros_like(x)
        for index in range(count):
            if (bodies >> index) & 1:
                body = load_body(row_ptr, index)
                wanted = in_rectangle(rectangles_ptr + index * BOUNDS_SIZE, column, row)
                share = tl.maximum(share, shadow_share(light, body, point, wanted))
        layer_ptr = shadows_ptr + (scene * NUM_LIGHTS + number) * resolution * resolution
        tl.store(layer_ptr + row * resolution + column, share, mask=exists)


@triton.jit
def _sum_three(layer_ptr, row, column, resolution, exists):
    """Sums of a texel and its neighbors to the left and right; there is nothing beyond the edge."""
    ptr = layer_ptr + row * resolution + column
    exists = exists & (row >= 0) & (row < resolution)
    total = tl.load(ptr, mask=exists, other=0.0)
    total += tl.load(ptr - 1, mask=exists & (column > 0), other=0.0)
    return total + tl.load(ptr + 1, mask=exists & (column < resolution - 1), other=0.0)


@triton.jit(**ANY_SIZE)
def smooth_shadows(
    shadows_ptr,  # (s, 4, r, r)
    smooth_ptr,  # (s, 4, r, r), out: averages over 3 × 3 texels, against jagged hard edges
    blurred_ptr,  # (s, 4, 16, 16), out: averages of those over patches
    resolution,  # r
    patch,  # r / 16
    BLOCK: tl.constexpr,  # at least `patch`
):
    """A row of 16 patches of a layer of a shadow map."""
    layer = (tl.program_id(0) // BLUR_SIZE).to(tl.int64)
    patch_row = tl.program_id(0) % BLUR_SIZE
    shadows_ptr += layer * resolution * resolution
    smooth_ptr += layer * resolution * resolution
    right = tl.arange(0, BLOCK)[None]
    exists = right < patch
    column = tl.arange(0, BLUR_SIZE)[:, None] * patch + right  # (16, block)
    first = patch_row * patch
    above = _sum_three(shadows_ptr, first - 1, column, resolution, exists)
    here = _sum_three(shadows_ptr, first, column, resolution, exists)
    total = tl.zeros((BLUR_SIZE, BLOCK), tl.float32)
    for row in range(first, first + patch):
        below = _sum_three(shadows_ptr, row + 1, column, resolution, exists)
        texel = (above + here + below) * (1 / 9)
        tl.store(smooth_ptr + row * resolution + column, texel, mask=exists)
        total += texel
        above, here = here, below
    mean = tl.sum(total, 1) / (patch * patch)  # (16,)
    blurred_ptr += (layer * BLUR_SIZE + patch_row) * BLUR_SIZE
    tl.store(blurred_ptr + tl.arange(0, BLUR_SIZE), mean)


@triton.jit(**ANY_SIZE)
def bleed_colors(
    table_ptr,  # (s, row)
    bleed_ptr,  # (s, 3, 128, 128), out
    tiles,  # of a scene
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A tile of the map of light that bodies reflect onto the ground, each a dim sphere."""
    scene = (tl.program_id(0) // tiles).to(tl.int64)
    row_ptr = table_ptr + scene * ROW_SIZE
    left, top, column, row = tile_cells(tl.program_id(0) % tiles, BLEED_SIZE, COLUMNS, ROWS)
    size = 2 * MAP_HALF / BLEED_SIZE
    x, y = (column + 0.5) * size - MAP_HALF, (row + 0.5) * size - MAP_HALF
    # Middle and half the size of the tile, to see which bodies are too far away.
    middle_x, half_x = (left + 0.5 * COLUMNS) * size - MAP_HALF, 0.5 * COLUMNS * size
    middle_y, half_y = (top + 0.5 * ROWS) * size - MAP_HALF, 0.5 * ROWS * size
    red, green, blue = tl.zeros_like(x), tl.zeros_like(x), tl.zeros_like(x)
    for index in range(count_bodies(row_ptr)):
        body = load_body(row_ptr, index)
        reach = 3 * body.radius  # beyond, the amount is zero
        meets_x = tl.abs(body.center.x - middle_x) < half_x + reach
        if meets_x & (tl.abs(body.center.y - middle_y) < half_y + reach):
            color, _ = load_material(row_ptr, index)
            dx, dy = x - body.center.x, y - body.center.y
            nearness = body.radius * tl.rsqrt(dx * dx + dy * dy + body.radius * body.radius)
            amount = nearness * nearness * nearness - BLEED_CUTOFF
            amount = tl.maximum(amount, 0.0) * BLEED_STRENGTH
            # The maximum, not the sum, as in `surface.bleed_map`.
            red = tl.maximum(red, color.x * amount)
            green = tl.maximum(green, color.y * amount)
            blue = tl.maximum(blue, color.z * amount)
    bleed_ptr += scene * 3 * BLEED_SIZE * BLEED_SIZE
    texel = row * BLEED_SIZE + column  # the size of the map is a multiple of a tile's
    tl.store(bleed_ptr + texel, red)
    tl.store(bleed_ptr + BLEED_SIZE * BLEED_SIZE + texel, green)
    tl.store(bleed_ptr + 2 * BLEED_SIZE * BLEED_SIZE + texel, blue)


class Place(NamedTuple):
    """Where points on the ground lie in a map, between four texels."""

    texel: Any
    u: Any
    v: Any


@triton.jit
def find_place(x, y, resolution):
    """Points on the ground in a map of a scene, clamped to its edges."""
    scale, last = resolution / (2 * MAP_HALF), resolution - 1.001
    u = tl.minimum(tl.maximum((x + MAP_HALF) * scale - 0.5, 0.0), last)
    v = tl.minimum(tl.maximum((y + MAP_HALF) * scale - 0.5, 0.0), last)
    column, row = u.to(tl.int32), v.to(tl.int32)
    return Place(row * resolution + column, u - column, v - row)


@triton.jit
def sample_layer(layer_ptr, place, resolution):
    """Bilinear lookup in one layer."""
    ptr = layer_ptr + place.texel
    a, b = tl.load(ptr), tl.load(ptr + 1)
    c, d = tl.load(ptr + resolution), tl.load(ptr + resolution + 1)
    near, far = a + (b - a) * place.u, c + (d - c) * place.u
    return near + (far - near) * place.v
