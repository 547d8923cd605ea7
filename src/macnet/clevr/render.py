"""Scenes to pictures: the CLEVR world as the release shows it, on a CPU or a GPU, many at once.

    rendering = render(scenes, 224, 224, device="cuda")
    rendering.images    # (scenes, 224, 224, 3), uint8

Every pixel is traced once through its middle; pixels on outlines are traced again, several times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.fuse import compiled, fused
from macnet.clevr.light import HAZE
from macnet.clevr.scene import MAX_OBJECTS, MIN_VISIBLE_SHARE, Scene
from macnet.clevr.shapes import (
    Bodies,
    Cameras,
    enter,
    nearest,
    pack_bodies,
    pack_cameras,
    screen_pairs,
)
from macnet.clevr.surface import Hits, Stage, ground, pack_stage, shine
from macnet.clevr.table import tabulate
from macnet.clevr.vector import Vec, at, pick, unit
from macnet.errors import InputError


@dataclass(frozen=True)
class Quality:
    grid: int
    """Outlines are traced with grid × grid rays a pixel."""
    whole_bodies: bool
    """Treat all pixels of bodies as outlines are."""
    shadow_detail: float
    """Places of the shadow map to a pixel of the image's width."""
    bounces: int
    """How often a reflection shows another reflection; the last shows the surroundings only."""
    brushed_rays: int
    """Rays that sample the blurred part of a metal's reflection."""

    @property
    def rays_per_pixel(self) -> float:
        """About how many: bodies fill up to a quarter of a picture, outlines a tenth."""
        on_bodies = 0.25 + self.grid**2 * (0.25 if self.whole_bodies else 0.1)
        return 1 + on_bodies * (1 + self.brushed_rays / 2)  # for half of them are metal


QUALITIES: Mapping[str, Quality] = {
    "fast": Quality(2, whole_bodies=False, shadow_detail=0.875, bounces=1, brushed_rays=3),
    "fine": Quality(4, whole_bodies=True, shadow_detail=2.0, bounces=2, brushed_rays=8),
}
FILTER_WIDTH = 1.5  # of a pixel, in pixels: the release's is a little soft
MAX_SIDE = 4096  # of a picture: a larger one would fill the memory alone
RAYS_AT_ONCE = {
    "cpu": 400_000,
    "cuda": 62_000_000,
}  # suits caches; 2 GB or so, compiled


class Rendering(NamedTuple):
    images: Tensor
    """(s, h, w, 3) uint8."""
    objects: Tensor
    """(s, h, w) int8: which object each pixel's middle shows; −1 is the ground."""
    visible: Tensor
    """(s, 10) int32: how many pixels each object shows."""


def refuse_huge(width: int, height: int) -> None:
    if max(width, height) > MAX_SIDE:
        raise InputError(f"--size is {width}x{height}; neither may be more than {MAX_SIDE}")


@torch.no_grad()  # one mode, or everything would be compiled once for each
def render(
    scenes: Sequence[Scene] | np.ndarray,
    width: int = 480,
    height: int = 320,
    quality: str = "fast",
    device: torch.device | str = "cpu",
    *,
    compile: bool = False,
) -> Rendering:
    """Pictures of scenes, with what each pixel shows and how much of each object is seen.

    `compile` pays on CUDA for many thousands of pictures; it takes minutes at first.
    """
    if not len(scenes):
        raise ValueError("there is no scene to render")
    rays = round(width * height * QUALITIES[quality].rays_per_pixel)
    with compiled(compile):
        parts = [
            _render(part, width, height, QUALITIES[quality], torch.device(device))
            for part in _in_parts(tabulate(scenes), rays, torch.device(device))
        ]
    return Rendering(*(torch.cat(column) for column in zip(*parts, strict=True)))


@torch.no_grad()
def all_visible(
    scenes: Sequence[Scene] | np.ndarray,
    width: int = 480,
    height: int = 320,
    device: torch.device | str = "cpu",
) -> list[bool]:
    """Whether every object of a scene shows as many pixels as CLEVR demands."""
    enough: list[bool] = []
    rays = 2 * width * height  # as every pixel has room for, and those that may show a body
    for part in _in_parts(tabulate(scenes), rays, torch.device(device)):
        bodies, cameras = _pack(part, torch.device(device))
        pixel, body = screen_pairs(bodies, cameras, width, height)
        middles = _middles(len(part), width, height, bodies.scene.device)
        _, hits = _first_hits(bodies, cameras, middles, pixel, body)
        visible = torch.bincount(hits.body, minlength=len(bodies.scene))
        spoiled = set(bodies.scene[visible < MIN_VISIBLE_SHARE * width * height].tolist())
        enough += [s not in spoiled for s in range(len(part))]
    return enough


@torch.no_grad()
def hidden_shares(
    scenes: Sequence[Scene] | np.ndarray,
    width: int = 480,
    height: int = 320,
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """(s, 10): how much of each object others hide, of the pixels that it would show alone.

    What lies outside the picture is not hidden. Not a number where there is no object, or none of
    it in the picture.
    """
    shares = []
    rays = 2 * width * height
    for part in _in_parts(tabulate(scenes), rays, torch.device(device)):
        bodies, cameras = _pack(part, torch.device(device))
        pixel, body = screen_pairs(bodies, cameras, width, height)
        middles = _middles(len(part), width, height, bodies.scene.device)
        t = _enter(bodies, cameras, middles, pixel, body)
        _, seen = nearest(t, pixel, len(middles.x))
        alone, visible = (
            torch.bincount(body[pairs], minlength=len(bodies.scene)).double()
            for pairs in (t < torch.inf, seen)
        )
        of_part = np.full((len(part), MAX_OBJECTS), np.nan)
        where = bodies.scene.cpu().numpy(), bodies.slot.cpu().numpy()
        of_part[where] = (1 - visible / alone).cpu().numpy()
        shares.append(of_part)
    return np.concatenate(shares)


def _in_parts(scenes: np.ndarray, rays: int, device: torch.device) -> Iterator[np.ndarray]:
    at_once = max(1, RAYS_AT_ONCE[device.type] // rays)
    for i in range(0, len(scenes), at_once):
        yield scenes[i : i + at_once]


def _pack(scenes: np.ndarray, device: torch.device) -> tuple[Bodies, Cameras]:
    return pack_bodies(scenes, device), pack_cameras(scenes, device)


class Samples(NamedTuple):
    """Places in pictures, in units of the frame: 0 … 1 from the left and from the top."""

    scene: Tensor
    x: Tensor
    y: Tensor


def _middles(scenes: int, width: int, height: int, device: torch.device) -> Samples:
    pixel = torch.arange(scenes * height * width, device=device)
    row = pixel // width
    return Samples(row // height, (pixel % width + 0.5) / width, (row % height + 0.5) / height)


def _rays(cameras: Cameras, scene: Tensor, x: Tensor, y: Tensor) -> tuple[Vec, Vec]:
    origin, right, up, forward = (pick(table, scene) for table in cameras)
    return origin, unit(forward + right.times(2 * x - 1) + up.times(1 - 2 * y))


@fused
def _enter(
    bodies: Bodies, cameras: Cameras, samples: Samples, sample: Tensor, body: Tensor
) -> Tensor:
    scene, x, y = (column.index_select(0, sample) for column in samples)
    return enter(bodies, body, *_rays(cameras, scene, x, y))


@fused
def _hits(
    cameras: Cameras, samples: Samples, t: Tensor, body: Tensor, hit: Tensor, pair: Tensor
) -> Hits:
    scene, x, y = (column.index_select(0, hit) for column in samples)
    origin, direction = _rays(cameras, scene, x, y)
    point = origin + direction.times(t.index_select(0, pair))
    return Hits(body.index_select(0, pair), point.stacked(), direction.stacked())


@fused
def _backdrop(stage: Stage, cameras: Cameras, scene: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return ground(stage, scene, *_rays(cameras, scene, x, y)).stacked()


def _first_hits(
    bodies: Bodies, cameras: Cameras, samples: Samples, sample: Tensor, body: Tensor
) -> tuple[Tensor, Hits]:
    """Which samples show a body, and where, given the (sample, body) pairs that can meet."""
    t = _enter(bodies, cameras, samples, sample, body)
    hit, pair = nearest(t, sample, len(samples.x))
    return hit, _hits(cameras, samples, t, body, hit, pair)


def _trace(
    stage: Stage, cameras: Cameras, samples: Samples, sample: Tensor, body: Tensor, quality: Quality
) -> tuple[Tensor, Tensor, Tensor]:
    """(3, n) radiance of samples, which of them show a body, and which body."""
    radiance = _backdrop(stage, cameras, *samples)
    hit, hits = _first_hits(stage.bodies, cameras, samples, sample, body)
    radiance[:, hit] = shine(stage, hits, quality.bounces, quality.brushed_rays)
    return radiance.clamp_(0, 1), hit, hits.body


def _render(
    scenes: np.ndarray, width: int, height: int, quality: Quality, device: torch.device
) -> Rendering:
    bodies, cameras = _pack(scenes, device)
    resolution = HAZE * max(2, round(quality.shadow_detail * width / HAZE))
    stage = pack_stage(scenes, bodies, resolution)

    middles = _middles(len(scenes), width, height, device)
    pixel, body = screen_pairs(bodies, cameras, width, height)
    radiance, hit, shown = _trace(stage, cameras, middles, pixel, body, quality)
    objects = torch.full((len(middles.x),), -1, dtype=torch.int8, device=device)
    objects[hit] = at(bodies.slot, shown).to(torch.int8)
    objects = objects.view(len(scenes), height, width)

    outline = torch.nonzero(_outlines(objects, quality.whole_bodies).view(-1))[:, 0]
    rays = quality.grid**2 * (1 + quality.brushed_rays // 2)
    at_once = max(1, RAYS_AT_ONCE[device.type] // rays)
    for few in torch.split(outline, at_once):
        finer = _finer(middles, pixel, body, few, quality.grid, width, height)
        traced, _, _ = _trace(stage, cameras, *finer, quality)
        radiance[:, few] = traced.view(3, quality.grid**2, len(few)).mean(1)

    visible = torch.zeros(len(scenes), MAX_OBJECTS, dtype=torch.int32, device=device)
    count = torch.bincount(shown, minlength=len(bodies.scene))
    visible[bodies.scene, bodies.slot] = count.to(torch.int32)
    return Rendering(_displayed(radiance).reshape(len(scenes), height, width, 3), objects, visible)


def _outlines(objects: Tensor, whole_bodies: bool) -> Tensor:
    """Which pixels have a neighbour that shows something else."""
    chosen = objects >= 0 if whole_bodies else torch.zeros_like(objects, dtype=torch.bool)
    differs = objects[:, 1:] != objects[:, :-1]
    chosen[:, 1:] |= differs
    chosen[:, :-1] |= differs
    differs = objects[:, :, 1:] != objects[:, :, :-1]
    chosen[:, :, 1:] |= differs
    chosen[:, :, :-1] |= differs
    return chosen


def _finer(
    middles: Samples,
    pixel: Tensor,
    body: Tensor,
    chosen: Tensor,
    grid: int,
    width: int,
    height: int,
) -> tuple[Samples, Tensor, Tensor]:
    """Samples on a grid over each chosen pixel, and the pairs of those that can meet."""
    rank = torch.full((len(middles.x),), -1, dtype=torch.int32, device=pixel.device)
    rank[chosen] = torch.arange(len(chosen), dtype=torch.int32, device=pixel.device)
    rank = rank.index_select(0, pixel)
    kept = torch.nonzero(rank >= 0)[:, 0]
    step = torch.arange(grid * grid, device=pixel.device)[:, None]
    right, down = (((k + 0.5) / grid - 0.5) * FILTER_WIDTH for k in (step % grid, step // grid))
    samples = Samples(
        middles.scene[chosen].repeat(grid * grid),
        (middles.x[chosen] + right / width).view(-1),
        (middles.y[chosen] + down / height).view(-1),
    )
    sample = (rank.index_select(0, kept) + step * len(chosen)).view(-1)
    return samples, sample, body.index_select(0, kept).repeat(grid * grid)


@fused
def _displayed(radiance: Tensor) -> Tensor:
    """(3, n) linear light → (n, 3) sRGB bytes."""
    curve = 1.055 * radiance.clamp(min=1e-9) ** (1 / 2.4) - 0.055
    srgb = torch.where(radiance <= 0.0031308, 12.92 * radiance, curve)
    return (255 * srgb + 0.5).to(torch.uint8).T
