"""Render scenes with the kernels: what is allocated, and which kernel runs when.

The host only launches. It never waits for the device, so that everything after `upload` can be
captured in a CUDA graph, and no shape depends on what a scene shows.

    find_bounds      where the bodies can matter                   a program per scene
    cast_shadows     the shadow map, before smoothing                        tile of texels
    smooth_shadows   the smooth map, and its blurred copy                    row of patches
    bleed_colors     colors that bodies cast on the ground                   tile of texels
    find_objects     what each pixel shows                                   tile of pixels
    paint_ground     bare ground; lists of the other pixels                  tile of pixels
    trace_listed     pixels of bodies, a ray each                            share of the list
    trace_listed     pixels on outlines, grid × grid rays each               share of the list
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from macnet.clevr.kernels import bounds, maps, tables, trace
from macnet.clevr.light import BLUR_SIZE, WATTS
from macnet.clevr.quality import QUALITIES
from macnet.clevr.render import FILTER_WIDTH, shadow_map_resolution
from macnet.clevr.scene import MAX_OBJECTS
from macnet.clevr.surface import BLEED_SIZE
from macnet.devices import upload


class Tiles(NamedTuple):
    """How the kernels are cut into programs, and how these are run."""

    bounds: dict[str, int]
    shadows: dict[str, int]
    smooth: dict[str, int]
    bleed: dict[str, int]
    objects: dict[str, int]
    ground: dict[str, int]
    trace: dict[str, int]
    pixels_per_program: int
    """Of an image, for each program that traces its list."""


# A program is one warp, with one value of a tensor in each lane (or two, where little is kept in
# registers): so `if any_of(mask)` skips as finely as the hardware can, and costs one instruction.
ONE_WARP = {"num_warps": 1, "num_stages": 1}
TILES = Tiles(
    bounds=ONE_WARP,
    shadows={"COLUMNS": 8, "ROWS": 8, **ONE_WARP},
    smooth={"num_warps": 2, "num_stages": 1},
    bleed={"COLUMNS": 32, "ROWS": 4, **ONE_WARP},
    objects={"COLUMNS": 8, "ROWS": 4, **ONE_WARP},
    ground={"COLUMNS": 8, "ROWS": 4, **ONE_WARP},
    trace={"RAYS": 32, **ONE_WARP},
    pixels_per_program=1024,
)
SCRATCH_BYTES = 1 << 30  # for as many scenes as are rendered at once
KERNELS = (
    bounds.find_bounds,
    *(maps.cast_shadows, maps.smooth_shadows, maps.bleed_colors),
    *(trace.find_objects, trace.paint_ground, trace.trace_listed),
)


class Maps(NamedTuple):
    """Scratch memory: what is known about a few scenes before their pixels are traced."""

    bounds: Tensor  # (s, 10, 24) int32
    raw_shadows: Tensor  # (s, 4, r, r)
    shadows: Tensor  # (s, 4, r, r)
    blurred: Tensor  # (s, 4, 16, 16)
    bleed: Tensor  # (s, 3, 128, 128)
    listed: Tensor  # (s, h · w) int32
    counts: Tensor  # (s, 2) int32


class Frame(NamedTuple):
    """The size of images, and how they are sampled."""

    width: int
    height: int
    resolution: int
    """Texels per side of the shadow map."""
    grid: int
    """Pixels on outlines are supersampled with grid × grid rays."""
    filter_width: float
    """Width of the pixel filter, in pixels."""


Timer = Callable[[str], AbstractContextManager[Any]]
"""Called with a name for each kernel, which is then launched in the context that it returns."""


def fast_frame(width: int, height: int) -> Frame:
    """Images of this size in fast quality."""
    quality = QUALITIES["fast"]
    resolution = shadow_map_resolution(quality, width)
    return Frame(width, height, resolution, quality.grid, FILTER_WIDTH)


def render(
    scenes: np.ndarray, width: int, height: int, device: torch.device, timer: Timer = nullcontext
) -> tuple[Tensor, Tensor, Tensor]:
    """Images, objects and visible pixels of an array of scenes, as in `render.Rendering`."""
    count, size, frame = len(scenes), (height, width), fast_frame(width, height)
    table = upload(tables.build_table(scenes), device)
    images = torch.empty(count, *size, 3, dtype=torch.uint8, device=device)
    objects = torch.empty(count, *size, dtype=torch.int8, device=device)
    visible = torch.zeros(count, MAX_OBJECTS, dtype=torch.int32, device=device)
    chunk = min(count, max(1, SCRATCH_BYTES // _scratch_per_scene(frame)))
    scratch = allocate(chunk, frame, device)
    with torch.cuda.device_of(table):
        for i in range(0, count, chunk):
            few = table[i : i + chunk]
            build_maps(few, scratch, frame, timer)
            part = slice(i, i + chunk)
            draw(few, scratch, images[part], objects[part], visible[part], frame, timer)
    return images, objects, visible


def count_visible(scenes: np.ndarray, width: int, height: int, device: torch.device) -> Tensor:
    """(s, 10) int32: number of pixels that each object of each scene covers."""
    table = upload(tables.build_table(scenes), device)
    shape = len(scenes), MAX_OBJECTS
    visible = torch.zeros(shape, dtype=torch.int32, device=device)
    limits = torch.empty(*shape, bounds.WIDTH, dtype=torch.int32, device=device)
    with torch.cuda.device_of(table):
        bounds.find_bounds[len(table),](table, limits, width, height, BLUR_SIZE, **TILES.bounds)
        _find_objects(table, limits, None, visible, width, height)
    return visible


def build_maps(table: Tensor, scratch: Maps, frame: Frame, timer: Timer = nullcontext) -> None:
    """Find the bounds of the bodies of a few scenes, and fill the maps of their ground."""
    _run(_plan_maps(table, scratch, frame), timer)


def draw(
    table: Tensor,
    scratch: Maps,
    images: Tensor,
    objects: Tensor,
    visible: Tensor,
    frame: Frame,
    timer: Timer = nullcontext,
) -> None:
    """Draw a few scenes whose maps are built; `visible` must be zero."""
    scratch.counts.zero_()
    _run(_plan_drawing(table, scratch, images, objects, visible, frame), timer)


@functools.cache
def compile_kernels(width: int, height: int, device: torch.device) -> None:
    """Compile all kernels, each by a thread of its own, by running them on a scene without objects.

    One after another, as they are first used, takes twice as long. It waits for the device.
    """
    frame = fast_frame(width, height)
    shape = (1, height, width)
    with torch.cuda.device(device):
        table = torch.zeros(1, tables.WIDTH, device=device)
        scratch = Maps(*(part.zero_() for part in allocate(1, frame, device)))
        images = torch.empty(*shape, 3, dtype=torch.uint8, device=device)
        objects = torch.empty(shape, dtype=torch.int8, device=device)
        visible = torch.zeros(1, MAX_OBJECTS, dtype=torch.int32, device=device)
        launches = _plan_maps(table, scratch, frame)
        launches |= _plan_drawing(table, scratch, images, objects, visible, frame)
        del launches["trace_outlines"]  # the same kernel as for bodies
        count_only = partial(_find_objects, table, scratch.bounds, None, visible, width, height)
        stream = torch.cuda.current_stream()

        def run(name: str) -> None:
            with torch.cuda.stream(stream):  # a new thread has the first GPU, and its default
                launches[name]()
                if name == "find_objects":  # both forms of a kernel in turn, for they share a table
                    count_only()

        # In Triton 3.5 to 3.7, the key of a kernel in the cache on disk depends on which keys were
        # made before. In whatever order threads happen to run, most of the cache would be missed.
        for kernel in KERNELS:
            _ = kernel.cache_key
        with ThreadPoolExecutor(len(launches)) as threads:
            list(threads.map(run, launches))
        stream.synchronize()


Launches = dict[str, Callable[[], object]]
"""Kernels with their arguments, by name, in their order."""


def _run(launches: Launches, timer: Timer) -> None:
    for name, launch in launches.items():
        with timer(name):
            launch()


def _plan_maps(table: Tensor, scratch: Maps, frame: Frame) -> Launches:
    scenes, resolution, layers = len(table), frame.resolution, len(WATTS) * len(table)
    shadow_tiles = _count_tiles(resolution, resolution, TILES.shadows)
    bleed_tiles = _count_tiles(BLEED_SIZE, BLEED_SIZE, TILES.bleed)
    patch = resolution // BLUR_SIZE
    return {
        "find_bounds": partial(
            bounds.find_bounds[scenes,],
            *(table, scratch.bounds, frame.width, frame.height, resolution),
            **TILES.bounds,
        ),
        "cast_shadows": partial(
            maps.cast_shadows[scenes * shadow_tiles,],
            *(table, scratch.bounds, scratch.raw_shadows, resolution, shadow_tiles),
            **TILES.shadows,
        ),
        "smooth_shadows": partial(
            maps.smooth_shadows[layers * BLUR_SIZE,],
            *(scratch.raw_shadows, scratch.shadows, scratch.blurred, resolution, patch),
            **TILES.smooth,
            BLOCK=triton.next_power_of_2(patch),
        ),
        "bleed_colors": partial(
            maps.bleed_colors[scenes * bleed_tiles,],
            *(table, scratch.bleed, bleed_tiles),
            **TILES.bleed,
        ),
    }


def _plan_drawing(
    table: Tensor, scratch: Maps, images: Tensor, objects: Tensor, visible: Tensor, frame: Frame
) -> Launches:
    scenes, (width, height) = len(table), frame[:2]
    ground = table, scratch.bounds, scratch.shadows, scratch.blurred, scratch.bleed
    tiles = _count_tiles(width, height, TILES.ground)
    programs = triton.cdiv(width * height, TILES.pixels_per_program)
    traces: Launches = {
        name: partial(
            trace.trace_listed[scenes * programs,],
            *(*ground, images, scratch.listed, scratch.counts),
            *(frame.resolution, width, height, programs, frame.filter_width, is_outline),
            **TILES.trace,
            GRID=frame.grid,
        )
        for is_outline, name in enumerate(("trace_bodies", "trace_outlines"))
    }
    return {
        "find_objects": partial(
            _find_objects, table, scratch.bounds, objects, visible, width, height
        ),
        "paint_ground": partial(
            trace.paint_ground[scenes * tiles,],
            *(*ground, objects, images, scratch.listed, scratch.counts),
            *(frame.resolution, width, height, tiles),
            **TILES.ground,
        ),
        **traces,
    }


def _find_objects(
    table: Tensor, limits: Tensor, objects: Tensor | None, visible: Tensor, width: int, height: int
) -> None:
    tiles = _count_tiles(width, height, TILES.objects)
    trace.find_objects[len(table) * tiles,](
        table, limits, objects, visible, width, height, tiles, **TILES.objects
    )


def _count_tiles(columns: int, rows: int, tile: dict[str, int]) -> int:
    return int(triton.cdiv(columns, tile["COLUMNS"]) * triton.cdiv(rows, tile["ROWS"]))


def _shapes(frame: Frame) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """What one scene needs of each array in `Maps`."""
    size, lights = frame.resolution, len(WATTS)
    return {
        "bounds": (torch.int32, (MAX_OBJECTS, bounds.WIDTH)),
        "raw_shadows": (torch.float32, (lights, size, size)),
        "shadows": (torch.float32, (lights, size, size)),
        "blurred": (torch.float32, (lights, BLUR_SIZE, BLUR_SIZE)),
        "bleed": (torch.float32, (3, BLEED_SIZE, BLEED_SIZE)),
        "listed": (torch.int32, (frame.height * frame.width,)),
        "counts": (torch.int32, (2,)),
    }


def _scratch_per_scene(frame: Frame) -> int:
    """In bytes."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in _shapes(frame).values())


def allocate(scenes: int, frame: Frame, device: torch.device) -> Maps:
    """Scratch memory for so many scenes, not initialized."""
    return Maps(
        **{
            name: torch.empty(scenes, *shape, dtype=dtype, device=device)
            for name, (dtype, shape) in _shapes(frame).items()
        }
    )
