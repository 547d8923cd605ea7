"""Direct light and soft shadows of CLEVR's four area lights: three square lamps and a sun.

The ground receives almost all shadows, and is seen directly, reflected in metal bodies, and as
indirect light. So its shadows are computed once per scene, into a shadow map of the floor (one
layer per light). Soft shadows need no sampling: the occluded share of a light follows from how
closely the ray to it passes a body, relative to the apparent width of the light there.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from macnet.clevr.columns import columnwise
from macnet.clevr.pairs import (
    Neighbors,
    Spans,
    box_corners,
    clip_to_boxes,
    expand_counts,
    is_cube,
    rasterize,
    remove_spans,
)
from macnet.clevr.shapes import (
    BISECTIONS,
    BOUNDING_RADIUS,
    Bodies,
    closest_approach,
    near_sphere,
)
from macnet.clevr.vector import Vec, dot, normalize, take_vec

# The order of the lights is key, fill, back, sun. The sun is a lamp very far away.
SUN_DISTANCE = 1000.0
SUN = tuple(SUN_DISTANCE * c for c in (0.4145, -0.1946, 0.889))
COLOR = ((1.0, 0.932, 0.817), (0.762, 0.818, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
WATTS = (78.5, 23.6, 39.3, 0.45 * math.pi * SUN_DISTANCE**2)
HALF_SIDE = (0.25, 0.25, 0.5, 0.05 * SUN_DISTANCE)
PENUMBRA = (0.1, 0.1, 0.2, 0.1)  # largest distance from a body at which its shadow begins
SHADOW_MARGIN = 0.3  # between the bounding spheres of two bodies that may shadow each other

MAP_HALF = 8.0  # the shadow map spans ±8 in x and y
BLUR_SIZE = 16  # texels per side of its blurred copy, one unit wide each


class Lights(NamedTuple):
    """The lights of all scenes; light l of scene i is number l · s + i."""

    location: Tensor  # (3, 4·s)
    half_side: Tensor  # (4·s,)
    penumbra: Tensor  # (4·s,)
    intensity: Tensor  # (4, 1): irradiance that a light causes at a distance of 1


class ShadowPairs(NamedTuple):
    """The (light, receiver, occluder) triples in which a body may shadow another one."""

    light: Tensor  # (p,)
    receiver: Tensor  # (p,)
    occluder: Tensor  # (p,)


class Lighting(NamedTuple):
    """The lights of all scenes, and where they are occluded."""

    lights: Lights
    shadow_pairs: ShadowPairs
    shadows: Tensor  # (4, s, r, r): shadow map, the occluded share of each light on the ground
    blurred_shadows: Tensor  # (4, s, 16, 16): `shadows` averaged over patches one unit wide


def build_lighting(
    scenes: np.ndarray, bodies: Bodies, neighbors: Neighbors, resolution: int
) -> Lighting:
    """Place the lights and compute the shadow map, with `resolution` texels per side."""
    device = bodies.scene.device
    sun = np.broadcast_to(SUN, (len(scenes), 1, 3))
    location = torch.from_numpy(np.concatenate([scenes["lamps"], sun], axis=1))  # (s, 4, 3)
    location = location.float().permute(2, 1, 0)
    sizes = (torch.tensor(k).repeat_interleave(len(scenes)) for k in (HALF_SIDE, PENUMBRA))
    intensity = torch.tensor([[watts / math.pi] for watts in WATTS])
    lights = Lights(*(k.to(device) for k in (location.flatten(1), *sizes, intensity)))
    # Where a body touches the ground, its shadow has a hard edge, which must not look jagged.
    shadows = average_3x3(shadow_map(bodies, lights, resolution, border=1))
    blurred_shadows = avg_pool2d(shadows, resolution // BLUR_SIZE)
    return Lighting(lights, find_shadow_pairs(bodies, neighbors, lights), shadows, blurred_shadows)


def incident_light(lights: Lights, scene: Tensor, point: Vec) -> tuple[Vec, Tensor]:
    """(4, n) directions to the lights, and irradiances, unshadowed, of surfaces that face them."""
    lamp = take_vec(lights.location.view(3, 4, -1), scene)
    offset = lamp - point
    square = dot(offset, offset)
    direction = offset.times(square.rsqrt())
    # A lamp faces the origin, and is a Lambertian emitter.
    cosine = dot(direction, lamp).mul_(dot(lamp, lamp).rsqrt_()).clamp_(min=0)
    return direction, cosine.mul_(lights.intensity).div_(square)


def sum_colored(amounts: Tensor) -> Vec:
    """Sum of (4, n) amounts of the lights, each in its color; x, y, z are red, green, blue."""
    key, fill, back, sun = amounts.unbind()
    white = back + sun
    return Vec(*(key * k + fill * f + white for k, f in zip(*COLOR[:2], strict=True)))


def ground_irradiance(lights: Lights, shadows: Tensor, scene: Tensor, x: Tensor, y: Tensor) -> Vec:
    """Irradiance of points on the ground, with the shadows of a shadow map."""
    direction, full = incident_light(lights, scene, Vec(x, y, x.new_zeros(())))
    return sum_colored(full.mul_(direction.z).mul_(1 - sample_maps(shadows, scene, x, y)))


# --- shadows ---------------------------------------------------------------------------------


class Candidates(NamedTuple):
    """Triples of a light, a body that may occlude it, and a point that it lights."""

    light: Tensor  # (n,) number in `Lights`
    body: Tensor  # (n,)
    point: Tensor  # (3, n)


@columnwise(2)
def _may_occlude(bodies: Bodies, lights: Lights, candidates: Candidates, body: Tensor) -> Tensor:
    point = Vec.unstack(candidates.point)
    direction = normalize(take_vec(lights.location, candidates.light) - point)
    margin = lights.penumbra.index_select(0, candidates.light)
    return near_sphere(bodies, body, margin, point, direction)


@columnwise(1)
def _shadow_share(
    bodies: Bodies, lights: Lights, candidates: Candidates, occluding: Tensor
) -> Tensor:
    light = candidates.light.index_select(0, occluding)
    body = candidates.body.index_select(0, occluding)
    point = take_vec(candidates.point, occluding)
    offset = take_vec(lights.location, light) - point
    far = dot(offset, offset).sqrt()
    gap, t = closest_approach(bodies, body, point, offset.times(far.reciprocal()))
    half_width = t * lights.half_side.index_select(0, light) / far
    share = (0.5 - 0.5 * gap / (half_width + 1e-4)).clamp(0, 1)
    return share * share * (3 - 2 * share) * (t < far)


def occlusion(bodies: Bodies, lights: Lights, candidates: Candidates) -> tuple[Tensor, Tensor]:
    """Occluded share of each candidate's light: (candidate, share) of those that come close."""
    near = _may_occlude(bodies, lights, candidates, candidates.body)
    occluding = torch.nonzero(near)[:, 0]
    return occluding, _shadow_share(bodies, lights, candidates, occluding)


def shadow_map(bodies: Bodies, lights: Lights, resolution: int, border: int) -> Tensor:
    """(4, s, r, r): occluded share of each light at each texel of the ground.

    r is `resolution` and twice the width of a border of zeros.
    """
    scenes, count = lights.location.shape[1] // 4, len(bodies.scene)
    side = resolution + 2 * border

    def first_texel(spans: Spans) -> Tensor:
        """Index of the texel in the first column of a span's row."""
        light, body = spans.rectangle // count, spans.rectangle % count
        row = (light * scenes + bodies.scene[body]) * side + border + spans.row
        return row * side + border

    spans, umbra = _shadow_spans(bodies, lights, resolution)
    body = spans.rectangle % count
    light = spans.rectangle // count * scenes + bodies.scene[body]
    y, start = _texel_center(spans.row, resolution), first_texel(spans)
    candidates, texel = _ground_candidates(
        light, body, y, start, resolution, *expand_counts(spans.length, spans.first)
    )
    occluding, share = occlusion(bodies, lights, candidates)
    layers = torch.zeros(4 * scenes * side * side, device=share.device)
    layers.scatter_reduce_(0, texel.index_select(0, occluding), share, "amax")
    _, dark = expand_counts(umbra.length, first_texel(umbra) + umbra.first)
    return layers.index_fill_(0, dark, 1.0).view(4, scenes, side, side)


def _shadow_spans(bodies: Bodies, lights: Lights, resolution: int) -> tuple[Spans, Spans]:
    """Texels that a shadow may cover, and those in umbras, where it is known to be complete.

    The shadow of body b from light l is rectangle l · m + b.
    """
    cast_boxes = functools.partial(_cast_boxes, bodies, lights, resolution)
    height, half_side, penumbra = (  # (4, m)
        k.view(4, -1)[:, bodies.scene]
        for k in (lights.location[2], lights.half_side, lights.penumbra)
    )
    # The shadow of a body lies within that of its bounding box, grown by the penumbra.
    x, y = cast_boxes(False, penumbra)
    low, high = (torch.stack([k(x, 0), k(y, 0)]) for k in (torch.amin, torch.amax))
    spans = rasterize(low, high, (resolution, resolution))

    # At a height z over the ground, a light seems half_side · z / height wide to either side, and
    # no shadow begins farther from a body than that. (Added are the 1e-4 of `_shadow_share`, and
    # far more than rounding errors.) If the light is hardly above the body, this is no limit.
    margin = half_side * (2 * bodies.radius + 1e-3) / (height - half_side).clamp(min=1e-3) + 2e-3
    is_limited = height > 2 * bodies.radius + margin + 0.1
    x, y = cast_boxes(True, margin)
    spans = clip_to_boxes(spans, x, y, is_limited.view(-1))

    # If a ray spends more than the last interval of the bisection in the core of a cube, then
    # `closest_approach` ends in the core, (1 − core) · radius below the surface or deeper. If the
    # light seems to be less than that wide to either side, none of it is seen there. All rays
    # through a core that is smaller by half an interval on each side are such rays.
    depth = (1 - bodies.core) * bodies.radius
    half_width = half_side * (1 + bodies.core) * bodies.radius / height
    has_umbra = (is_limited & is_cube(bodies) & (half_width + 2e-3 < depth)).view(-1)
    interval = 2 * BOUNDING_RADIUS["cube"] * bodies.radius / 2**BISECTIONS
    x, y = cast_boxes(False, -(depth + interval / 2 + 5e-3 * bodies.radius).expand_as(margin))
    k = torch.nonzero(has_umbra[spans.rectangle])[:, 0]
    umbra = clip_to_boxes(Spans(*(column[k] for column in spans)), x, y, has_umbra)
    return remove_spans(spans, k, umbra), umbra


def _cast_boxes(
    bodies: Bodies, lights: Lights, resolution: int, is_turned: bool, margin: Tensor
) -> tuple[Tensor, Tensor]:
    """(8, 4·m): x and y, in texels, of the shadows of the corners of `box_corners`."""
    lamp = take_vec(lights.location.view(3, 4, -1), bodies.scene)  # (4, m)
    corners = box_corners(bodies, margin, lamp if is_turned else None)  # (8, 4, m)
    corners = Vec(corners.x, corners.y, corners.z.clamp(min=0))  # the rest is below the ground
    cast = lamp + (corners - lamp).times(lamp.z / (lamp.z - corners.z).clamp(min=1e-2))
    x, y = ((k + MAP_HALF) * (resolution / (2 * MAP_HALF)) for k in (cast.x, cast.y))
    return x.flatten(1), y.flatten(1)


def _texel_center(k: Tensor, resolution: int) -> Tensor:
    """x of a column of texels, or y of a row."""
    return (k + 0.5) * (2 * MAP_HALF / resolution) - MAP_HALF


@columnwise(2)
def _ground_candidates(
    light: Tensor,
    body: Tensor,
    y: Tensor,
    start: Tensor,
    resolution: int,
    span: Tensor,
    column: Tensor,
) -> tuple[Candidates, Tensor]:
    """A candidate for each texel that a shadow may cover, and the index of that texel."""
    x = _texel_center(column, resolution)
    point = torch.stack([x, y.index_select(0, span), torch.zeros_like(x)])
    light, body, start = (k.index_select(0, span) for k in (light, body, start))
    return Candidates(light, body, point), start + column


def average_3x3(padded: Tensor) -> Tensor:
    """Averages of 3 × 3 texels: (..., r + 2, r + 2) → (..., r, r)."""
    # On a CPU, `avg_pool2d` takes five times as long.
    height, width = padded.shape[-2] - 2, padded.shape[-1] - 2
    shifted = [padded[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
    total = shifted[0] + shifted[1]
    for k in shifted[2:]:
        total += k
    return total.div_(9)


def sample_maps(maps: Tensor, scene: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Bilinear lookup: (c, s, r, r) maps → (c, n) at points on the ground, clamped to edges."""
    r = maps.shape[-1]
    scale = r / (2 * MAP_HALF)
    u = ((x + MAP_HALF) * scale - 0.5).clamp(0, r - 1.001)
    v = ((y + MAP_HALF) * scale - 0.5).clamp(0, r - 1.001)
    column, row = u.int(), v.int()
    u, v = u - column, v - row
    cell = scene * (r * r) + (row * r + column)
    layers = maps.flatten(1)
    near = _mix(layers.index_select(1, cell), layers.index_select(1, cell + 1), u)
    far = _mix(layers.index_select(1, cell + r), layers.index_select(1, cell + r + 1), u)
    return _mix(near, far, v)


def _mix(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """a + (b - a) * share; b is overwritten, which spares the caches."""
    return b.sub_(a).mul_(share).add_(a)


def find_shadow_pairs(bodies: Bodies, neighbors: Neighbors, lights: Lights) -> ShadowPairs:
    """Find the bodies that may shadow each other, by their bounding spheres."""
    location = lights.location.view(3, 4, -1)
    scene = bodies.scene[neighbors.body]
    center = Vec(*bodies.center[:, neighbors.body])
    offset = Vec(*bodies.center[:, neighbors.other]) - center
    direction = normalize(Vec(*location[:, :, scene]) - center)
    along = dot(offset, direction)
    both = bodies.bounding_radius[neighbors.body] + bodies.bounding_radius[neighbors.other]
    both = both + SHADOW_MARGIN
    may = (along > 0) & (dot(offset, offset) - along * along < both * both)
    light, pair = torch.nonzero(may).unbind(1)
    light = light * location.shape[2] + scene[pair]
    return ShadowPairs(light, neighbors.body[pair], neighbors.other[pair])


def body_shadows(bodies: Bodies, lighting: Lighting, body: Tensor, point: Tensor) -> Tensor:
    """(4, n): share of each light that other bodies occlude, at points on bodies."""
    count = torch.bincount(body, minlength=len(bodies.scene))
    order = torch.argsort(body, stable=True)  # points on body b are order[start[b]], …
    start = count.cumsum(0) - count
    light, receiver, occluder = lighting.shadow_pairs
    pair, position = expand_counts(count[receiver], start[receiver])
    layer = light // (lighting.lights.location.shape[1] // 4) * len(body)
    candidates, entry = _body_candidates(light, occluder, layer, order, point, pair, position)
    occluding, share = occlusion(bodies, lighting.lights, candidates)
    shares = torch.zeros(4 * len(body), device=point.device)
    shares.scatter_reduce_(0, entry.index_select(0, occluding), share, "amax")
    return shares.view(4, -1)


@columnwise(2)
def _body_candidates(
    light: Tensor,
    occluder: Tensor,
    layer: Tensor,
    order: Tensor,
    point: Tensor,
    pair: Tensor,
    position: Tensor,
) -> tuple[Candidates, Tensor]:
    """A candidate for each point that may be shadowed, and the index of its entry in the result."""
    sample = order.index_select(0, position)
    light, occluder, layer = (k.index_select(0, pair) for k in (light, occluder, layer))
    return Candidates(light, occluder, point.index_select(1, sample)), layer + sample
