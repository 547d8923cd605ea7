"""From pixels to images: what each pixel shows, ground, bodies and supersampled outlines.

Pixels that are more than bare ground are listed, scene by scene, and traced from the list: so all
lanes of a program have something to do, and that of one scene. In a scene's list, pixels of bodies
stand from the front, those on outlines from the back; no pixel is both. Their order depends on
chance, but nothing that is computed from one pixel depends on another.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from macnet.clevr.kernels.bounds import (
    BOUNDS_SIZE,
    SCREEN_AT,
    bodies_meeting,
    count_bodies,
    in_rectangle,
)
from macnet.clevr.kernels.constants import ANY_SIZE, INFINITY, MAX_OBJECTS
from macnet.clevr.kernels.geometry import (
    Vec,
    along,
    any_of,
    intersect,
    load_body,
    load_vec,
    normalize,
)
from macnet.clevr.kernels.maps import tile_cells
from macnet.clevr.kernels.shading import ground, open_scene, radiance_along
from macnet.clevr.kernels.tables import ROW_SIZE


@triton.jit
def camera_ray(row_ptr, x, y):
    """Origin and directions of the rays through points of an image, from 0 to 1."""
    right, up, forward = load_vec(row_ptr + 3), load_vec(row_ptr + 6), load_vec(row_ptr + 9)
    return load_vec(row_ptr), normalize(along(along(forward, right, 2 * x - 1), up, 1 - 2 * y))


@triton.jit(**ANY_SIZE)
def find_objects(
    table_ptr,  # (s, row)
    bounds_ptr,  # (s, 10, 24)
    objects_ptr,  # (s, h, w) int8, out: −1 for the ground; None if only the counts are wanted
    visible_ptr,  # (s, 10) int32, out: added to
    width,
    height,
    tiles,  # of an image
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """What the centers of a tile of pixels show, and how many show each object."""
    scene = (tl.program_id(0) // tiles).to(tl.int64)
    row_ptr = table_ptr + scene * ROW_SIZE
    bounds_ptr += scene * MAX_OBJECTS * BOUNDS_SIZE + SCREEN_AT
    count = count_bodies(row_ptr)
    left, top, column, row = tile_cells(tl.program_id(0) % tiles, width, COLUMNS, ROWS)
    exists = (column < width) & (row < height)
    bodies = bodies_meeting(bounds_ptr, count, left, top, left + COLUMNS, top + ROWS)
    shown = tl.full((COLUMNS * ROWS,), -1, tl.int32)
    if bodies != 0:
        origin, direction = camera_ray(row_ptr, (column + 0.5) / width, (row + 0.5) / height)
        nearest = tl.full((COLUMNS * ROWS,), INFINITY, tl.float32)
        for index in range(count):
            if (bodies >> index) & 1:
                inside = in_rectangle(bounds_ptr + index * BOUNDS_SIZE, column, row)
                t = intersect(load_body(row_ptr, index), origin, direction)
                closer = inside & (t < nearest)
                nearest, shown = tl.where(closer, t, nearest), tl.where(closer, index, shown)
        for index in range(count):
            if (bodies >> index) & 1:
                pixels = tl.sum(((shown == index) & exists).to(tl.int32), 0)
                if pixels > 0:
                    tl.atomic_add(visible_ptr + scene * MAX_OBJECTS + index, pixels, sem="relaxed")
    if objects_ptr is not None:
        objects_ptr += scene * height * width
        tl.store(objects_ptr + row * width + column, shown.to(tl.int8), mask=exists)


@triton.jit
def _to_srgb(radiance):
    """Linear radiance → level of sRGB."""
    curve = 1.055 * tl.exp2(tl.log2(tl.maximum(radiance, 1e-9)) * (1 / 2.4)) - 0.055
    srgb = tl.where(radiance <= 0.0031308, 12.92 * radiance, curve)
    return (255 * srgb + 0.5).to(tl.int32).to(tl.uint8)


@triton.jit
def _clamp(radiance):
    return Vec(
        tl.minimum(tl.maximum(radiance.x, 0.0), 1.0),
        tl.minimum(tl.maximum(radiance.y, 0.0), 1.0),
        tl.minimum(tl.maximum(radiance.z, 0.0), 1.0),
    )


@triton.jit
def _store_pixels(image_ptr, pixel, radiance, mask):
    ptr = image_ptr + pixel * 3
    tl.store(ptr, _to_srgb(radiance.x), mask=mask)
    tl.store(ptr + 1, _to_srgb(radiance.y), mask=mask)
    tl.store(ptr + 2, _to_srgb(radiance.z), mask=mask)


@triton.jit
def _append(list_ptr, counter_ptr, step, pixel, mask):
    """Add pixels to a list that grows by `step`, 1 or −1."""
    flag = mask.to(tl.int32)
    added = tl.sum(flag, 0)
    if added > 0:
        first = tl.atomic_add(counter_ptr, added, sem="relaxed")
        rank = first + tl.cumsum(flag, 0) - flag
        tl.store(list_ptr + step * rank, pixel, mask=mask)


@triton.jit(**ANY_SIZE)
def paint_ground(
    table_ptr,  # (s, row)
    bounds_ptr,  # (s, 10, 24)
    shadows_ptr,  # (s, 4, r, r)
    blurred_ptr,  # (s, 4, 16, 16)
    bleed_ptr,  # (s, 3, 128, 128)
    objects_ptr,  # (s, h, w) int8
    images_ptr,  # (s, h, w, 3) uint8, out: pixels that show nothing but ground
    list_ptr,  # (s, h · w) int32, out: the other pixels
    counts_ptr,  # (s, 2) int32, out: added to; pixels of bodies, and on outlines
    resolution,  # r
    width,
    height,
    tiles,  # of an image
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The bare ground in a tile of pixels; pixels of bodies and on outlines are listed."""
    number = (tl.program_id(0) // tiles).to(tl.int64)
    scene = open_scene(
        number, table_ptr, bounds_ptr, shadows_ptr, blurred_ptr, bleed_ptr, resolution
    )
    objects_ptr += number * height * width
    images_ptr += number * height * width * 3
    list_ptr += number * height * width
    counts_ptr += number * 2
    _, _, column, row = tile_cells(tl.program_id(0) % tiles, width, COLUMNS, ROWS)
    exists = (column < width) & (row < height)
    pixel = row * width + column
    ptr = objects_ptr + pixel
    shown = tl.load(ptr, mask=exists, other=-1).to(tl.int32)
    differs = tl.load(ptr - 1, mask=exists & (column > 0), other=shown) != shown
    differs |= tl.load(ptr + 1, mask=exists & (column < width - 1), other=shown) != shown
    differs |= tl.load(ptr - width, mask=exists & (row > 0), other=shown) != shown
    differs |= tl.load(ptr + width, mask=exists & (row < height - 1), other=shown) != shown
    is_ground = exists & ~differs & (shown < 0)
    if any_of(is_ground):
        origin, direction = camera_ray(scene.row, (column + 0.5) / width, (row + 0.5) / height)
        _store_pixels(images_ptr, pixel, _clamp(ground(scene, origin, direction)), is_ground)
    _append(list_ptr, counts_ptr, 1, pixel, exists & ~differs & (shown >= 0))
    _append(list_ptr + (height * width - 1), counts_ptr + 1, -1, pixel, exists & differs)


@triton.jit
def _average(x, SAMPLES: tl.constexpr):
    """Each value replaced by the mean of its group of `SAMPLES` in a row."""
    groups = tl.reshape(x, (x.shape[0] // SAMPLES, SAMPLES))
    mean = tl.sum(groups, 1, keep_dims=True) / SAMPLES
    return tl.reshape(tl.broadcast_to(mean, groups.shape), x.shape)


@triton.jit(**ANY_SIZE)
def trace_listed(
    table_ptr,  # (s, row)
    bounds_ptr,  # (s, 10, 24)
    shadows_ptr,  # (s, 4, r, r)
    blurred_ptr,  # (s, 4, 16, 16)
    bleed_ptr,  # (s, 3, 128, 128)
    images_ptr,  # (s, h, w, 3) uint8, out: the listed pixels
    list_ptr,  # (s, h · w) int32
    counts_ptr,  # (s, 2) int32
    resolution,  # r
    width,
    height,
    programs,  # of a scene; together they take all pixels of its list
    filter_width,  # of the pixel filter, in pixels
    is_outline,  # 0 for the pixels of bodies, a ray each; 1 for those on outlines
    GRID: tl.constexpr,  # pixels on outlines are the mean over GRID × GRID rays
    RAYS: tl.constexpr,  # of a program at a time
):
    """The listed pixels of a scene, of one kind. (Not two kernels: to compile takes seconds.)"""
    number = (tl.program_id(0) // programs).to(tl.int64)
    scene = open_scene(
        number, table_ptr, bounds_ptr, shadows_ptr, blurred_ptr, bleed_ptr, resolution
    )
    images_ptr += number * height * width * 3
    list_ptr += number * height * width
    total = tl.load(counts_ptr + number * 2 + is_outline)
    step, grid = 1, 1
    if is_outline != 0:
        list_ptr += height * width - 1
        step, grid = -1, GRID
    samples = grid * grid
    pixels = RAYS // samples
    ray = tl.arange(0, RAYS)
    sample = ray % samples
    right = ((sample % grid + 0.5) / grid - 0.5) * filter_width
    down = ((sample // grid + 0.5) / grid - 0.5) * filter_width
    for start in range(tl.program_id(0) % programs * pixels, total, programs * pixels):
        place = start + ray // samples
        listed = place < total
        pixel = tl.load(list_ptr + step * place, mask=listed, other=0)
        column, row = pixel % width, pixel // width
        x, y = (column + 0.5) / width + right / width, (row + 0.5) / height + down / height
        origin, direction = camera_ray(scene.row, x, y)
        radiance = _clamp(radiance_along(scene, origin, direction, listed))
        if is_outline != 0:
            radiance = Vec(
                _average(radiance.x, GRID * GRID),
                _average(radiance.y, GRID * GRID),
                _average(radiance.z, GRID * GRID),
            )
        _store_pixels(images_ptr, pixel, radiance, listed & (sample == 0))
