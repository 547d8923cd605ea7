"""Render scenes as images that look like CLEVR's, many at once, on a CPU or a GPU.

    rendering = render(scenes, 224, 224, device="cuda")
    rendering.images    # (scenes, 224, 224, 3), uint8

One ray is traced through the center of every pixel; pixels on outlines are then supersampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.backend import Backend, check_backend
from macnet.clevr.columns import columnwise
from macnet.clevr.light import BLUR_SIZE
from macnet.clevr.pairs import nearest_hits, pixel_candidates
from macnet.clevr.quality import QUALITIES, Quality
from macnet.clevr.scene import MAX_OBJECTS, MIN_VISIBLE_SHARE, Scene
from macnet.clevr.scene_array import object_mask, scenes_to_array
from macnet.clevr.shade import shade
from macnet.clevr.shapes import Bodies, Cameras, build_bodies, build_cameras, intersect
from macnet.clevr.surface import (
    Hits,
    SceneBatch,
    build_batch,
    cove_on_ground,
    ground_point,
    ground_radiance,
)
from macnet.clevr.vector import Vec, normalize, take, take_vec
from macnet.devices import Download

FILTER_WIDTH = 1.5  # of the pixel filter, in pixels: the release's images are a little soft
# Traced at once: as many as suit a CPU's caches, or take a few GB on a GPU.
MAX_RAYS = {"cpu": 400_000, "cuda": 62_000_000}


class Rendering(NamedTuple):
    """Images of scenes, and which object is where in them."""

    images: Tensor
    """(s, h, w, 3) uint8 RGB."""
    objects: Tensor
    """(s, h, w) int8: index of the object at each pixel's center; −1 for the ground."""
    visible: Tensor
    """(s, 10) int32: number of pixels that each object covers."""


def render(
    scenes: Sequence[Scene] | np.ndarray,
    width: int = 480,
    height: int = 320,
    quality: str = "fast",
    device: torch.device | str = "cpu",
    *,
    backend: Backend = "torch",
) -> Rendering:
    """Render scenes, given as a list or as an array of `SCENE_DTYPE`.

    The backend "triton" is for fast quality on CUDA; it is many times faster there.
    """
    if not len(scenes):
        raise ValueError("there is no scene to render")
    check_backend(backend, torch.device(device), quality)
    if backend == "triton":
        from macnet.clevr.kernels import launch

        array = scenes_to_array(scenes)
        return Rendering(*launch.render(array, width, height, torch.device(device)))
    rays = round(width * height * QUALITIES[quality].rays_per_pixel)
    with torch.inference_mode():  # operations start a little sooner: a tenth of the time on a CPU
        parts = [
            _render(part, width, height, QUALITIES[quality], torch.device(device))
            for part in _split_scenes(scenes_to_array(scenes), rays, torch.device(device))
        ]
    return Rendering(*(torch.cat(column) for column in zip(*parts, strict=True)))


class VisibilityTest:
    """Whether every object of a scene covers as many pixels as CLEVR demands, for each scene.

    With the backend "triton", a GPU counts the pixels while the host goes on.
    """

    @torch.inference_mode()
    def __init__(
        self,
        scenes: Sequence[Scene] | np.ndarray,
        width: int,
        height: int,
        device: torch.device | str = "cpu",
        *,
        backend: Backend = "torch",
    ) -> None:
        device = torch.device(device)
        check_backend(backend, device)
        scenes = scenes_to_array(scenes)
        if backend == "triton":
            from macnet.clevr.kernels import launch

            visible = launch.count_visible(scenes, width, height, device)
        else:
            visible = torch.zeros(len(scenes), MAX_OBJECTS, dtype=torch.int32, device=device)
            done = 0
            for count, bodies, pixels, _ in _count_pixels(scenes, width, height, device):
                visible[done + bodies.scene, bodies.object_index] = pixels.to(torch.int32)
                done += count
        self._visible, self._is_object = Download(visible), object_mask(scenes)
        self._least = MIN_VISIBLE_SHARE * width * height

    @property
    def is_done(self) -> bool:
        """Whether the result is there."""
        return self._visible.is_done

    def result(self) -> np.ndarray:
        """(s,) bool, once it is there."""
        hidden = (self._visible.wait().numpy() < self._least) & self._is_object
        verdicts: np.ndarray = ~hidden.any(1)
        return verdicts


def all_visible(
    scenes: Sequence[Scene] | np.ndarray,
    width: int = 480,
    height: int = 320,
    device: torch.device | str = "cpu",
    *,
    backend: Backend = "torch",
) -> list[bool]:
    """The result of a `VisibilityTest`, once it is there."""
    test = VisibilityTest(scenes, width, height, device, backend=backend)
    verdicts: list[bool] = test.result().tolist()
    return verdicts


@torch.inference_mode()
def occluded_fractions(
    scenes: Sequence[Scene] | np.ndarray,
    width: int = 480,
    height: int = 320,
    device: torch.device | str = "cpu",
) -> np.ndarray:
    """(s, 10): fraction of each object's pixels that other objects occlude.

    Parts outside the image do not count. NaN where there is no object, or none of it in the image.
    """
    parts = []
    for count, bodies, visible, alone in _count_pixels(scenes, width, height, torch.device(device)):
        part = np.full((count, MAX_OBJECTS), np.nan)
        where = bodies.scene.cpu().numpy(), bodies.object_index.cpu().numpy()
        part[where] = (1 - visible.double() / alone.double()).cpu().numpy()
        parts.append(part)
    return np.concatenate(parts)


def _count_pixels(
    scenes: Sequence[Scene] | np.ndarray, width: int, height: int, device: torch.device
) -> Iterator[tuple[int, Bodies, Tensor, Tensor]]:
    """Count pixels without shading: (scenes, bodies, visible, alone) of a few scenes at a time.

    `visible` (m,) are the pixels that each body covers, `alone` those it would cover on its own.
    """
    rays = 2 * width * height  # every pixel, and the candidates
    for part in _split_scenes(scenes_to_array(scenes), rays, device):
        bodies, cameras = _build(part, device)
        pixel, body = pixel_candidates(bodies, cameras, width, height)
        centers = _pixel_centers(len(part), width, height, device)
        t = _intersect(bodies, cameras, centers, pixel, body)
        _, nearest = nearest_hits(t, pixel, len(centers.x))
        visible, alone = (
            torch.bincount(body[pairs], minlength=len(bodies.scene))
            for pairs in (nearest, t < torch.inf)
        )
        yield len(part), bodies, visible, alone


def _split_scenes(scenes: np.ndarray, rays: int, device: torch.device) -> Iterator[np.ndarray]:
    chunk = max(1, MAX_RAYS[device.type] // rays)
    for i in range(0, len(scenes), chunk):
        yield scenes[i : i + chunk]


def _build(scenes: np.ndarray, device: torch.device) -> tuple[Bodies, Cameras]:
    return build_bodies(scenes, device), build_cameras(scenes, device)


class Samples(NamedTuple):
    """Sample points in images; x and y run from 0 to 1, from the left and from the top."""

    scene: Tensor
    x: Tensor
    y: Tensor


def _pixel_centers(scenes: int, width: int, height: int, device: torch.device) -> Samples:
    scene = torch.arange(scenes, device=device)[:, None, None]
    x = (torch.arange(width, device=device) + 0.5) / width
    y = (torch.arange(height, device=device)[:, None] + 0.5) / height
    columns = (k.expand(scenes, height, width).reshape(-1) for k in (scene, x, y))
    return Samples(*columns)


def _camera_rays(cameras: Cameras, scene: Tensor, x: Tensor, y: Tensor) -> tuple[Vec, Vec]:
    origin, right, up, forward = (take_vec(table, scene) for table in cameras)
    return origin, normalize(forward + right.times(2 * x - 1) + up.times(1 - 2 * y))


@columnwise(2)
def _intersect(
    bodies: Bodies, cameras: Cameras, samples: Samples, sample: Tensor, body: Tensor
) -> Tensor:
    scene, x, y = (column.index_select(0, sample) for column in samples)
    return intersect(bodies, body, *_camera_rays(cameras, scene, x, y))


@columnwise(2)
def _hits(
    cameras: Cameras, samples: Samples, t: Tensor, body: Tensor, hit: Tensor, pair: Tensor
) -> Hits:
    scene, x, y = (column.index_select(0, hit) for column in samples)
    origin, direction = _camera_rays(cameras, scene, x, y)
    point = origin + direction.times(t.index_select(0, pair))
    return Hits(body.index_select(0, pair), point.stack(), direction.stack())


@columnwise(3)
def _backdrop(batch: SceneBatch, cameras: Cameras, scene: Tensor, x: Tensor, y: Tensor) -> Tensor:
    x, y = ground_point(*_camera_rays(cameras, scene, x, y))
    return ground_radiance(batch, scene, x, y, cove_on_ground(x, y)).stack()


def _first_hits(
    bodies: Bodies, cameras: Cameras, samples: Samples, sample: Tensor, body: Tensor
) -> tuple[Tensor, Hits]:
    """Samples that show a body, and their hits, given the candidate (sample, body) pairs."""
    t = _intersect(bodies, cameras, samples, sample, body)
    hit, pair = nearest_hits(t, sample, len(samples.x))
    return hit, _hits(cameras, samples, t, body, hit, pair)


def _radiance(
    batch: SceneBatch,
    cameras: Cameras,
    traced: Sequence[tuple[Samples, Tensor, Hits]],
    quality: Quality,
) -> list[Tensor]:
    """(3, n) radiance of lists of samples, given the indices of those that hit a body, and hits."""
    shaded = shade(batch, [hits for _, _, hits in traced], quality.bounces, quality.brushed_rays)
    found = []
    for (samples, hit, _), of_bodies in zip(traced, shaded, strict=True):
        radiance = _backdrop(batch, cameras, *samples)
        found.append(radiance.index_copy_(1, hit, of_bodies).clamp_(0, 1))
    return found


def shadow_map_resolution(quality: Quality, width: int) -> int:
    """Texels per side of the shadow map, for images of this width."""
    return BLUR_SIZE * max(2, round(quality.shadow_map_scale * width / BLUR_SIZE))


def _render(
    scenes: np.ndarray, width: int, height: int, quality: Quality, device: torch.device
) -> Rendering:
    bodies, cameras = _build(scenes, device)
    batch = build_batch(scenes, bodies, shadow_map_resolution(quality, width))

    centers = _pixel_centers(len(scenes), width, height, device)
    pixel, body = pixel_candidates(bodies, cameras, width, height)
    hit, hits = _first_hits(bodies, cameras, centers, pixel, body)
    objects = torch.full((len(centers.x),), -1, dtype=torch.int8, device=device)
    objects[hit] = take(bodies.object_index, hits.body).to(torch.int8)
    objects = objects.view(len(scenes), height, width)

    outline = torch.nonzero(_outlines(objects, quality.supersample_bodies).view(-1))[:, 0]
    rays = quality.grid**2 * (1 + quality.brushed_rays // 2)
    chunk = max(1, MAX_RAYS[device.type] // rays)
    # The centers are shaded together with the first outlines: many at once are faster.
    waiting = [(centers, hit, hits)]
    for few in torch.split(outline, chunk):
        samples, *pairs = _supersample(centers, pixel, body, few, quality.grid, width, height)
        traced = [*waiting, (samples, *_first_hits(bodies, cameras, samples, *pairs))]
        *of_centers, supersampled = _radiance(batch, cameras, traced, quality)
        if waiting:
            radiance, waiting = of_centers[0], []
        radiance[:, few] = supersampled.view(3, quality.grid**2, len(few)).mean(1)

    visible = torch.zeros(len(scenes), MAX_OBJECTS, dtype=torch.int32, device=device)
    count = torch.bincount(hits.body, minlength=len(bodies.scene))
    visible[bodies.scene, bodies.object_index] = count.to(torch.int32)
    return Rendering(_to_srgb(radiance).reshape(len(scenes), height, width, 3), objects, visible)


def _outlines(objects: Tensor, supersample_bodies: bool) -> Tensor:
    """Mask of the pixels with a neighbor that shows another object."""
    chosen = objects >= 0 if supersample_bodies else torch.zeros_like(objects, dtype=torch.bool)
    differs = objects[:, 1:] != objects[:, :-1]
    chosen[:, 1:] |= differs
    chosen[:, :-1] |= differs
    differs = objects[:, :, 1:] != objects[:, :, :-1]
    chosen[:, :, 1:] |= differs
    chosen[:, :, :-1] |= differs
    return chosen


def _supersample(
    centers: Samples, pixel: Tensor, body: Tensor, few: Tensor, grid: int, width: int, height: int
) -> tuple[Samples, Tensor, Tensor]:
    """Samples on a grid over each of a few pixels, and their candidate (sample, body) pairs."""
    rank = torch.full((len(centers.x),), -1, dtype=torch.int32, device=pixel.device)
    rank[few] = torch.arange(len(few), dtype=torch.int32, device=pixel.device)
    rank = rank.index_select(0, pixel)
    kept = torch.nonzero(rank >= 0)[:, 0]
    step = torch.arange(grid * grid, device=pixel.device)[:, None]
    right, down = (((k + 0.5) / grid - 0.5) * FILTER_WIDTH for k in (step % grid, step // grid))
    samples = Samples(
        centers.scene[few].repeat(grid * grid),
        (centers.x[few] + right / width).view(-1),
        (centers.y[few] + down / height).view(-1),
    )
    sample = (rank.index_select(0, kept) + step * len(few)).view(-1)
    return samples, sample, body.index_select(0, kept).repeat(grid * grid)


def _to_srgb(radiance: Tensor) -> Tensor:
    """(3, n) linear radiance → (n, 3) uint8 sRGB."""
    curve = radiance.clamp(min=1e-9).pow_(1 / 2.4).mul_(1.055).sub_(0.055)
    srgb = torch.where(radiance <= 0.0031308, 12.92 * radiance, curve)
    return torch.stack(srgb.mul_(255).add_(0.5).to(torch.uint8).unbind(), dim=-1)
