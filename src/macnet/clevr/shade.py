"""The radiance of bodies where rays hit them, with what they reflect of each other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from macnet.clevr.columns import columnwise, concatenate, split
from macnet.clevr.light import body_shadows
from macnet.clevr.pairs import expand_counts, nearest_hits
from macnet.clevr.shapes import Bodies, intersect, near_sphere
from macnet.clevr.surface import (
    BRUSHED,
    Hits,
    Rays,
    SceneBatch,
    environment,
    metal_highlights,
    rubber_rays,
    shade_rubber,
)
from macnet.clevr.vector import take_vec


@columnwise(2)
def _is_near(bodies: Bodies, others: Tensor, rays: Rays, ray: Tensor, pair: Tensor) -> Tensor:
    other = others.index_select(0, pair)
    return near_sphere(bodies, other, 0.0, take_vec(rays.point, ray), take_vec(rays.direction, ray))


@columnwise(1)
def _intersect_neighbors(
    bodies: Bodies, others: Tensor, rays: Rays, ray: Tensor, pair: Tensor, close: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    ray, other = ray.index_select(0, close), others.index_select(0, pair.index_select(0, close))
    t = intersect(bodies, other, take_vec(rays.point, ray), take_vec(rays.direction, ray))
    return ray, other, t


def hit_neighbors(batch: SceneBatch, rays: Rays) -> tuple[Tensor, Hits]:
    """Intersect rays that leave bodies with the other bodies: (ray, hit) of those that hit one."""
    bodies, (_, others, num_others, first) = batch.bodies, batch.neighbors
    ray, pair = expand_counts(
        num_others.index_select(0, rays.body), first.index_select(0, rays.body)
    )
    close = torch.nonzero(_is_near(bodies, others, rays, ray, pair))[:, 0]
    ray, other, t = _intersect_neighbors(bodies, others, rays, ray, pair, close)
    hit, pair = nearest_hits(t, ray, len(rays.body))
    _, point, direction = (column.index_select(-1, hit) for column in rays)
    return hit, Hits(other[pair], point + t[pair] * direction, direction)


def reflected_light(
    batch: SceneBatch, groups: Sequence[Rays], seen: Tensor, bounces: int
) -> Tensor:
    """(3, n): radiance along rays that leave bodies, given that of the environment, `seen`."""
    if bounces <= 0:
        return seen
    hit, hits = hit_neighbors(batch, concatenate(groups))
    ends = torch.tensor([len(rays.body) for rays in groups]).cumsum(0)
    sizes = torch.searchsorted(hit, ends.to(hit.device)).diff(prepend=hit.new_zeros(1)).tolist()
    shaded = shade(batch, split(hits, sizes), bounces - 1, brushed_rays=1)
    # Clamped: a lamp reflected twice would only make fireflies.
    return seen.index_copy_(1, hit, concatenate(shaded).clamp(max=1))


def shade(
    batch: SceneBatch, groups: Sequence[Hits], bounces: int, brushed_rays: int
) -> list[Tensor]:
    """(3, n) for each group of hits: radiance of bodies towards the viewer.

    Other bodies are seen in their reflections only if bounces > 0.
    """
    hits, sizes = concatenate(groups), [len(group.body) for group in groups]
    shadows = body_shadows(batch.bodies, batch.lighting, hits.body, hits.point)
    is_metal = batch.is_metal.index_select(0, hits.body)
    rubber, num_rubber = _indices(~is_metal, sizes)
    metal, num_metal = _indices(is_metal, sizes)

    glossy, normal = rubber_rays(batch.bodies, hits, rubber)
    gloss, mirror, scattered = metal_highlights(batch, hits, shadows, brushed_rays, metal)
    mirrors = split(mirror, num_metal)
    brushes = [
        Rays(body.repeat(brushed_rays), point.repeat(1, brushed_rays), direction.flatten(1))
        for (body, point, _), direction in zip(mirrors, split(scattered, num_metal), strict=True)
    ]
    seen = environment(batch, [*split(glossy, num_rubber), *mirrors, *brushes])
    in_rubber, in_mirror, in_brushed = (
        concatenate(seen[i : i + len(groups)]) for i in range(0, len(seen), len(groups))
    )
    in_mirror = reflected_light(batch, mirrors, in_mirror, bounces)
    in_brushed = reflected_light(batch, brushes, in_brushed, bounces - 1)
    blurred = [
        part.view(3, brushed_rays, -1).mean(1)
        for part in split(in_brushed, (brushed_rays * count for count in num_metal))
    ]
    gloss += (1 - BRUSHED) * in_mirror
    gloss += BRUSHED * concatenate(blurred)

    radiance = torch.empty_like(hits.point)
    radiance[:, metal] = batch.color.index_select(1, mirror.body) * gloss
    radiance[:, rubber] = shade_rubber(batch, hits, shadows, glossy, normal, in_rubber, rubber)
    return split(radiance, sizes)


def _indices(mask: Tensor, sizes: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Indices where a mask is true, and how many there are in each group of so many values."""
    parts = [torch.nonzero(part)[:, 0] for part in mask.split(list(sizes))]
    starts = itertools.accumulate(sizes[:-1], initial=0)
    index = torch.cat([part + start for part, start in zip(parts, starts, strict=True)])
    return index, [len(part) for part in parts]
