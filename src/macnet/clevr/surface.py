"""Shading: the radiance of ground and cove, of rubber, and of metal, which reflects them.

Materials are the release's: rubber is diffuse under a weak gloss; metal is tinted gloss alone, 60%
of it a perfect mirror and 40% brushed (anisotropic) around the body's axis. Indirect light, which
the release's path tracer finds by many bounces, is a few constants here, fitted to 32 original
images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.columns import columnwise, concatenate, split
from macnet.clevr.light import (
    MAP_HALF,
    Lighting,
    build_lighting,
    ground_irradiance,
    incident_light,
    sample_maps,
    sum_colored,
)
from macnet.clevr.pairs import Neighbors, expand_counts, find_neighbors, rasterize
from macnet.clevr.scene import COLORS, DIRECTIONS, MATERIALS
from macnet.clevr.scene_array import object_mask
from macnet.clevr.shapes import Bodies, surface_normal
from macnet.clevr.vector import Vec, cross, dot, normalize, select_vec, take, take_vec

# Linear RGB: the release passes the sRGB values to Blender unconverted.
OBJECT_RGB = {
    "gray": (87, 87, 87), "red": (173, 35, 35), "blue": (42, 75, 215), "green": (29, 105, 20),
    "brown": (129, 74, 25), "purple": (129, 38, 192), "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}  # fmt: skip
ALBEDO = np.array([OBJECT_RGB[color] for color in COLORS], np.float32) / np.float32(255)
GROUND_ALBEDO = 0.8

# The ground bends up into a cove that faces +x and ends at 45° elevation; above it, all is black.
COVE = (-0.95, 0.31)
COVE_RADIANCE = 0.10
# Light from the cove: on the ground it grows towards the bend; bodies get it from behind and above.
COVE_ON_GROUND, COVE_AT_BEND, BEND, BEND_WIDTH = 0.0143, 0.0265, 8.0, 3.0
COVE_ON_BODIES, COVE_BEHIND, COVE_ABOVE = 0.075, 0.8, 0.6
HORIZON = -0.02  # of directions: rays that rise more than this see the cove, the others the ground
FACED_GROUND = 0.6  # distance from a body's surface, along its normal, to the ground that lights it
BLEED_STRENGTH = 0.4  # radiosity of a white body, as seen from the ground beside it
BLEED_CUTOFF = 0.1**1.5  # of nearness³, at three times the radius from a body
BLEED_SIZE = 128  # texels per side of the color bleeding map

RUBBER_ROUGHNESS = 0.35
RUBBER_GLOSS = 0.8
COAT_INDEX, SHEEN_INDEX = 1.2, 1.4  # of refraction, in rubber
MIN_COS = 0.05  # of the angle under which a surface is seen
BRUSHED = 0.4  # the brushed share of a metal's gloss
ALPHA_ALONG, ALPHA_ACROSS = 0.2 * 0.88, 0.2 / 0.88  # GGX roughness around the axis, and across
ALPHA_MIRROR = 0.04  # roughness of a light's mirror image: the width of the light and of a pixel


class SceneBatch(NamedTuple):
    """Everything that shading needs to know about many scenes."""

    bodies: Bodies
    neighbors: Neighbors
    lighting: Lighting
    color: Tensor  # (3, m)
    is_metal: Tensor  # (m,)
    bleed: Tensor  # (3, s, r, r): light that bodies reflect onto the ground (color bleeding)


class Hits(NamedTuple):
    """Where rays hit bodies."""

    body: Tensor  # (n,)
    point: Tensor  # (3, n)
    direction: Tensor  # (3, n) of the incoming ray


class Rays(NamedTuple):
    """Rays that start on the surface of bodies."""

    body: Tensor  # (n,)
    point: Tensor  # (3, n)
    direction: Tensor  # (3, n)


def build_batch(scenes: np.ndarray, bodies: Bodies, resolution: int) -> SceneBatch:
    """Compute materials, lighting and color bleeding; `resolution` is the shadow map's."""
    _, paint, material, _ = scenes["attributes"][object_mask(scenes)].T
    device = bodies.scene.device
    color = torch.from_numpy(ALBEDO[paint].T.copy()).to(device)
    is_metal = torch.from_numpy(material == MATERIALS.index("metal")).to(device)
    neighbors = find_neighbors(bodies)
    lighting = build_lighting(scenes, bodies, neighbors, resolution)
    bleed = bleed_map(bodies, color, len(scenes))
    return SceneBatch(bodies, neighbors, lighting, color, is_metal, bleed)


# --- ground and cove -------------------------------------------------------------------------


def ground_point(origin: Vec, direction: Vec) -> tuple[Tensor, Tensor]:
    """x and y of the points where rays that point down meet the ground."""
    far = origin.z / (-direction.z).clamp(min=1e-4)
    return origin.x + far * direction.x, origin.y + far * direction.y


def cove_on_ground(x: Tensor, y: Tensor) -> Tensor:
    """Radiance of the ground by the light of the cove."""
    beyond = COVE[0] * x + COVE[1] * y
    return COVE_ON_GROUND + COVE_AT_BEND * torch.sigmoid((beyond - BEND) / BEND_WIDTH)


def ground_radiance(batch: SceneBatch, scene: Tensor, x: Tensor, y: Tensor, cove: Tensor) -> Vec:
    """Radiance of points on the ground, given that by the light of the cove."""
    lighting = batch.lighting
    light = ground_irradiance(lighting.lights, lighting.shadows, scene, x, y)
    bleed = Vec.unstack(sample_maps(batch.bleed, scene, x, y))
    return (light + bleed).times(GROUND_ALBEDO / math.pi) + Vec(cove, cove, cove)


def bleed_map(bodies: Bodies, color: Tensor, scenes: int) -> Tensor:
    """Light that bodies reflect onto the ground around them, each treated as a dim sphere."""
    scale = BLEED_SIZE / (2 * MAP_HALF)
    middle, extent = (bodies.center[:2] + MAP_HALF) * scale, 3 * bodies.radius * scale
    spans = rasterize(middle - extent, middle + extent, (BLEED_SIZE, BLEED_SIZE))
    span, column = expand_counts(spans.length, spans.first)
    body, row = spans.rectangle.index_select(0, span), spans.row.index_select(0, span)
    x, y = ((k + 0.5) / scale - MAP_HALF for k in (column, row))
    center, radius = take_vec(bodies.center, body), take(bodies.radius, body)
    nearness = radius * ((x - center.x) ** 2 + (y - center.y) ** 2 + radius**2).rsqrt()
    amount = take_vec(color, body).times(BLEED_STRENGTH * (nearness**3 - BLEED_CUTOFF).clamp(min=0))
    texel = (take(bodies.scene, body) * BLEED_SIZE + row) * BLEED_SIZE + column
    bleed = torch.zeros(3, scenes * BLEED_SIZE**2, device=color.device)
    # The maximum, not the sum: on CUDA, a sum would depend on the order of additions.
    bleed.scatter_reduce_(1, texel.expand(3, -1), amount.stack(), "amax")
    return bleed.view(3, scenes, BLEED_SIZE, BLEED_SIZE)


class GroundPoints(NamedTuple):
    """Where rays meet the ground."""

    scene: Tensor  # (n,)
    x: Tensor  # (n,)
    y: Tensor  # (n,)
    cove: Tensor  # (n,) radiance by the light of the cove


def environment(batch: SceneBatch, groups: Sequence[Rays]) -> list[Tensor]:
    """(3, n) for each group of rays: radiance of ground, cove and black sky, ignoring bodies."""
    # All groups share one call of the expensive part. Sigmoids are computed group by group, and for
    # all rays: torch rounds some at the end of a tensor differently, and the images of a world must
    # stay the same to the bit.
    points, sky = zip(*(_environment_points(batch, k, k.body) for k in groups), strict=True)
    down = [torch.nonzero(rays.direction[2] < HORIZON)[:, 0] for rays in groups]
    met = [
        GroundPoints(*(column.index_select(0, k) for column in part))
        for part, k in zip(points, down, strict=True)
    ]
    ground = split(_ground_at(batch, *concatenate(met)), map(len, down))
    seen = zip(sky, down, ground, strict=True)
    return [dark.repeat(3, 1).index_copy_(1, k, part) for dark, k, part in seen]


@columnwise(2)
def _environment_points(batch: SceneBatch, rays: Rays, body: Tensor) -> tuple[GroundPoints, Tensor]:
    """Where rays that leave bodies meet the ground, and the radiance if they do not."""
    origin, direction = Vec.unstack(rays.point), Vec.unstack(rays.direction)
    toward_cove = COVE[0] * direction.x + COVE[1] * direction.y
    sky = COVE_RADIANCE * torch.sigmoid((toward_cove - direction.z) * 20)
    x, y = ground_point(origin, direction)
    scene = batch.bodies.scene.index_select(0, body)
    return GroundPoints(scene, x, y, cove_on_ground(x, y)), sky


@columnwise(4)
def _ground_at(batch: SceneBatch, scene: Tensor, x: Tensor, y: Tensor, cove: Tensor) -> Tensor:
    return ground_radiance(batch, scene, x, y, cove).stack()


def indirect_light(batch: SceneBatch, scene: Tensor, n: Vec, point: Vec) -> Vec:
    """Irradiance of a body's surface from ground and cove."""
    x, y = point.x + FACED_GROUND * n.x, point.y + FACED_GROUND * n.y
    lighting = batch.lighting
    light = ground_irradiance(lighting.lights, lighting.blurred_shadows, scene, x, y)
    behind = DIRECTIONS["behind"]
    toward_cove = COVE_BEHIND * (behind[0] * n.x + behind[1] * n.y) + COVE_ABOVE * n.z
    facing = 0.5 + 0.5 * toward_cove
    cove = COVE_ON_BODIES * facing * facing
    return light.times(GROUND_ALBEDO * (0.5 - 0.5 * n.z)) + Vec(cove, cove, cove)


# --- bodies ----------------------------------------------------------------------------------


def fresnel(cos: Tensor, index: float) -> Tensor:
    """Fresnel reflectance of a dielectric coat with this index of refraction."""
    g = (index * index - 1 + cos * cos).sqrt()
    a = (g - cos) / (g + cos)
    b = (cos * (g + cos) - 1) / (cos * (g - cos) + 1)
    return 0.5 * a * a * (1 + b * b)


def reflect(direction: Vec, n: Vec) -> Vec:
    """Mirror a direction at the plane with normal n."""
    return direction - n.times(2 * dot(direction, n))


def multiply(color: Vec, light: Vec) -> Vec:
    """Multiply channel by channel."""
    return Vec(color.x * light.x, color.y * light.y, color.z * light.z)


@columnwise(1)
def rubber_rays(bodies: Bodies, hits: Hits, k: Tensor) -> tuple[Rays, Tensor]:
    """Rays mirrored by rubber at the hits with index k, and the normals there, (3, n)."""
    body = hits.body.index_select(0, k)
    point, direction = take_vec(hits.point, k), take_vec(hits.direction, k)
    n = surface_normal(bodies, body, point)
    return Rays(body, point.stack(), reflect(direction, n).stack()), n.stack()


@columnwise(4)
def shade_rubber(
    batch: SceneBatch,
    hits: Hits,
    shadows: Tensor,
    mirror: Rays,
    normal: Tensor,
    reflected: Tensor,
    k: Tensor,
) -> Tensor:
    """(3, n): radiance of rubber towards the viewer, at the hits with index k.

    `mirror` and `normal` are those of `rubber_rays`, `reflected` (3, n) is the light along them.
    """
    point, n = Vec.unstack(mirror.point), Vec.unstack(normal)
    direction = take_vec(hits.direction, k)
    scene = batch.bodies.scene.index_select(0, mirror.body)
    cos = (-dot(direction, n)).clamp(min=MIN_COS)
    to_light, full = incident_light(batch.lighting.lights, scene, point)  # of (4, n)
    full = full * (1 - shadows.index_select(1, k))
    facing = dot(to_light, n).clamp(min=0)
    cos_h = dot(normalize(to_light - direction), n).clamp(min=1e-3)
    square, rough = cos_h * cos_h, RUBBER_ROUGHNESS**2
    beckmann = torch.exp((1 - square.reciprocal()) / rough) / (math.pi * rough * square * square)
    gloss = full * facing.sign() * beckmann / (4 * cos)
    coat, sheen = fresnel(cos, COAT_INDEX), fresnel(cos, SHEEN_INDEX)
    received = sum_colored(full * facing) + indirect_light(batch, scene, n, point)
    seen = sum_colored(gloss) + Vec.unstack(reflected)
    paint = multiply(take_vec(batch.color, mirror.body), received)
    paint = paint.times((1 - 0.5 * sheen) * (1 - coat) / math.pi)
    return (paint + seen.times(RUBBER_GLOSS * coat)).stack()


def brushed_frame(bodies: Bodies, body: Tensor, point: Vec) -> tuple[Vec, Vec, Vec]:
    """Tangent frame of a brushed surface: normal, direction along the brushing, and across it."""
    n = surface_normal(bodies, body, point)
    radial = point - take_vec(bodies.center, body)
    turning = Vec(-radial.y, radial.x, torch.zeros_like(radial.x))
    along = normalize(turning - n.times(dot(turning, n)))
    return n, along, cross(n, along)


def brush_pattern(rays: int) -> list[tuple[float, float]]:
    """Tilt of the normal along and across the brushing, for each of the scattered rays."""
    pattern = []
    for i in range(rays):
        u, turn = 0.9 * (i + 0.5) / rays, 2 * math.pi * 0.618 * i
        tangent = math.sqrt(u / (1 - u))
        a, c = tangent * ALPHA_ALONG * math.cos(turn), tangent * ALPHA_ACROSS * math.sin(turn)
        pattern.append((a, c))
    return pattern


@columnwise(1)
def metal_highlights(
    batch: SceneBatch, hits: Hits, shadows: Tensor, brushed_rays: int, k: Tensor
) -> tuple[Tensor, Rays, Tensor]:
    """What metal reflects at the hits with index k, before its tint.

    Returned are the highlights of the lights, (3, n), mirrored rays, and the directions of rays
    that are scattered by the brushing, (3, brushed_rays, n). These form the same pattern in every
    pixel: the environment is smooth, so a fixed pattern looks better than noise.
    """
    body = hits.body.index_select(0, k)
    point, direction = take_vec(hits.point, k), take_vec(hits.direction, k)
    n, along, across = brushed_frame(batch.bodies, body, point)
    cos = (-dot(direction, n)).clamp(min=MIN_COS)
    scene = batch.bodies.scene.index_select(0, body)
    to_light, full = incident_light(batch.lighting.lights, scene, point)  # of (4, n)
    full = full * (1 - shadows.index_select(1, k))
    half = normalize(to_light - direction)
    h, a, c = dot(half, n).clamp(min=1e-3), dot(half, along), dot(half, across)
    width = (a / ALPHA_ALONG) ** 2 + (c / ALPHA_ACROSS) ** 2 + h * h
    brushed = (math.pi * ALPHA_ALONG * ALPHA_ACROSS * width * width).reciprocal()
    spot = torch.exp((1 - (h * h).reciprocal()) / ALPHA_MIRROR**2) / (math.pi * ALPHA_MIRROR**2)
    lobes = BRUSHED * brushed + (1 - BRUSHED) * spot
    is_lit = dot(to_light, n).clamp(min=0).sign()
    highlights = sum_colored(full * is_lit * lobes / (4 * cos)).stack()

    mirror = reflect(direction, n)
    scattered = []
    for a_i, c_i in brush_pattern(brushed_rays):
        ray = reflect(direction, normalize(n + along.times(a_i) + across.times(c_i)))
        is_outside = dot(ray, n).clamp(min=0).sign()
        scattered.append(select_vec(is_outside, ray, mirror).stack())
    return highlights, Rays(body, point.stack(), mirror.stack()), torch.stack(scattered, dim=1)
