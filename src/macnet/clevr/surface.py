"""What surfaces send to an eye: the ground and its cove, rubber, and metal that mirrors them.

Materials are the release's: rubber is paint under a weak gloss; metal is tinted gloss alone,
60% of it a mirror and 40% brushed around the body's axis. What the release's path tracer finds by
many bounces is here a handful of measured constants: they were fitted to 32 original images.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.fuse import fused
from macnet.clevr.light import (
    MAP_HALF,
    Lights,
    body_shadows,
    look_up,
    on_ground,
    pack_lights,
    reach,
    tinted,
)
from macnet.clevr.scene import COLORS, DIRECTIONS, MATERIALS
from macnet.clevr.shapes import (
    Bodies,
    Neighbours,
    cells,
    enter,
    nearest,
    neighbours,
    normal,
    passes_near,
    spread,
)
from macnet.clevr.table import occupied
from macnet.clevr.vector import Vec, at, cross, dot, pick, unit, where

# As linear light: the release hands Blender the display values unconverted.
PAINT = {
    "gray": (87, 87, 87), "red": (173, 35, 35), "blue": (42, 75, 215), "green": (29, 105, 20),
    "brown": (129, 74, 25), "purple": (129, 38, 192), "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}  # fmt: skip
_PAINTS = np.array([PAINT[color] for color in COLORS], np.float32) / np.float32(255)
GROUND_ALBEDO = 0.8

# The ground bends up into a cove that faces +x and ends at 45° of elevation; above it is black.
COVE = (-0.95, 0.31)
COVE_RADIANCE = 0.10
# Light from the cove: on the ground it grows towards the bend; bodies take it from behind and up.
COVE_ON_GROUND, COVE_AT_BEND, BEND, BEND_WIDTH = 0.0143, 0.0265, 8.0, 3.0
COVE_ON_BODIES = 0.075
BODY_GLOW = 0.4  # how bright a white body is, seen from the ground beside it
GLOW_PLACES = 128  # to a side of the map that keeps it

RUBBER_ROUGHNESS = 0.35
RUBBER_GLOSS = 0.8
BRUSHED = 0.4  # share of a metal's gloss
ALONG, ACROSS = 0.2 * 0.88, 0.2 / 0.88  # its roughness around the body's axis, and across
SPOT = 0.04  # roughness at which the mirror shows a lamp: the lamp's own width, and a pixel's


class Stage(NamedTuple):
    """Many scenes, ready to be looked at."""

    bodies: Bodies
    others: Neighbours
    lights: Lights
    color: Tensor  # (3, m)
    is_metal: Tensor  # (m,)
    glow: Tensor  # (3, s, r, r): what places on the ground receive from the bodies around


class Hits(NamedTuple):
    """Where rays met bodies."""

    body: Tensor  # (n,)
    point: Tensor  # (3, n)
    direction: Tensor  # (3, n) in which the ray came


class Rays(NamedTuple):
    """Rays that leave bodies."""

    body: Tensor  # (n,)
    point: Tensor  # (3, n)
    direction: Tensor  # (3, n)


def pack_stage(scenes: np.ndarray, bodies: Bodies, resolution: int) -> Stage:
    _, paint, material, _ = scenes["kinds"][occupied(scenes)].T
    device = bodies.scene.device
    color = torch.from_numpy(_PAINTS[paint].T.copy()).to(device)
    is_metal = torch.from_numpy(material == MATERIALS.index("metal")).to(device)
    others = neighbours(bodies)
    lights = pack_lights(scenes, bodies, others, resolution)
    glow = glow_map(bodies, color, len(scenes))
    return Stage(bodies, others, lights, color, is_metal, glow)


# --- ground and cove -------------------------------------------------------------------------


def ground(stage: Stage, scene: Tensor, origin: Vec, direction: Vec) -> Vec:
    """The radiance of the ground along rays that go down."""
    far = origin.z / (-direction.z).clamp(min=1e-4)
    x, y = origin.x + far * direction.x, origin.y + far * direction.y
    light = on_ground(stage.lights, stage.lights.shadows, scene, x, y)
    glow = Vec(*look_up(stage.glow, scene, x, y))
    beyond = COVE[0] * x + COVE[1] * y
    cove = COVE_ON_GROUND + COVE_AT_BEND * torch.sigmoid((beyond - BEND) / BEND_WIDTH)
    return (light + glow).times(GROUND_ALBEDO / math.pi) + Vec(cove, cove, cove)


def glow_map(bodies: Bodies, color: Tensor, scenes: int) -> Tensor:
    """The light that bodies throw on the ground beside them, each taken for a dim sphere."""
    scale = GLOW_PLACES / (2 * MAP_HALF)
    middle, reach = (bodies.center[:2] + MAP_HALF) * scale, 3 * bodies.radius * scale
    body, column, row = cells(middle - reach, middle + reach, (GLOW_PLACES, GLOW_PLACES))
    x, y = ((k + 0.5) / scale - MAP_HALF for k in (column, row))
    center, radius = pick(bodies.center, body), at(bodies.radius, body)
    nearness = radius * ((x - center.x) ** 2 + (y - center.y) ** 2 + radius**2).rsqrt()
    amount = pick(color, body).times(BODY_GLOW * (nearness**3 - 0.1**1.5).clamp(min=0))
    place = (at(bodies.scene, body) * GLOW_PLACES + row) * GLOW_PLACES + column
    glow = torch.zeros(3, scenes * GLOW_PLACES**2, device=color.device)
    # The brightest of them, not their sum: a sum on CUDA would depend on the order of adding.
    glow.scatter_reduce_(1, place.expand(3, -1), amount.stacked(), "amax")
    return glow.view(3, scenes, GLOW_PLACES, GLOW_PLACES)


def around(stage: Stage, scene: Tensor, origin: Vec, direction: Vec) -> Vec:
    """The radiance of ground, cove and black sky along rays, bodies left out."""
    toward_cove = COVE[0] * direction.x + COVE[1] * direction.y
    cove = COVE_RADIANCE * torch.sigmoid((toward_cove - direction.z) * 20)
    down = ground(stage, scene, origin, direction)
    return where(direction.z < -0.02, down, Vec(cove, cove, cove))


@fused
def surroundings(stage: Stage, rays: Rays, body: Tensor) -> Tensor:
    scene = at(stage.bodies.scene, body)
    return around(stage, scene, Vec(*rays.point), Vec(*rays.direction)).stacked()


def thrown_back(stage: Stage, scene: Tensor, n: Vec, point: Vec) -> Vec:
    """The light that a body's surface receives from ground and cove."""
    x, y = point.x + 0.6 * n.x, point.y + 0.6 * n.y  # about where it looks at the ground
    light = on_ground(stage.lights, stage.lights.haze, scene, x, y)
    behind = DIRECTIONS["behind"]
    facing = 0.5 + 0.5 * (0.8 * (behind[0] * n.x + behind[1] * n.y) + 0.6 * n.z)
    cove = COVE_ON_BODIES * facing * facing
    return light.times(GROUND_ALBEDO * (0.5 - 0.5 * n.z)) + Vec(cove, cove, cove)


# --- bodies ----------------------------------------------------------------------------------


def fresnel(cos: Tensor, index: float) -> Tensor:
    """The share of light that a clear coat of this refractive index mirrors."""
    g = (index * index - 1 + cos * cos).sqrt()
    a = (g - cos) / (g + cos)
    b = (cos * (g + cos) - 1) / (cos * (g - cos) + 1)
    return 0.5 * a * a * (1 + b * b)


def mirrored(direction: Vec, n: Vec) -> Vec:
    return direction - n.times(2 * dot(direction, n))


def painted(color: Vec, light: Vec) -> Vec:
    return Vec(color.x * light.x, color.y * light.y, color.z * light.z)


@fused
def rubber(stage: Stage, hits: Hits, shadows: Tensor, k: Tensor) -> Tensor:
    """(3, n): what rubber sends back along those of the rays that met it."""
    body = hits.body.index_select(0, k)
    point, direction = pick(hits.point, k), pick(hits.direction, k)
    scene = at(stage.bodies.scene, body)
    n = normal(stage.bodies, body, point)
    cos = (-dot(direction, n)).clamp(min=0.05)
    soft, gloss = [], []
    for light in range(4):
        to_light, full = reach(stage.lights.lamps, light, scene, point)
        full = full * (1 - shadows[light].index_select(0, k))
        facing = dot(to_light, n).clamp(min=0)
        soft.append(full * facing)
        cos_h = dot(unit(to_light - direction), n).clamp(min=1e-3)
        square, rough = cos_h * cos_h, RUBBER_ROUGHNESS**2
        beckmann = torch.exp((1 - 1 / square) / rough) / (math.pi * rough * square * square)
        gloss.append(full * (facing > 0) * beckmann / (4 * cos))
    coat, sheen = fresnel(cos, 1.2), fresnel(cos, 1.4)
    received = tinted(soft) + thrown_back(stage, scene, n, point)
    seen = tinted(gloss) + around(stage, scene, point, mirrored(direction, n))
    paint = painted(pick(stage.color, body), received)
    paint = paint.times((1 - 0.5 * sheen) * (1 - coat) / math.pi)
    return (paint + seen.times(RUBBER_GLOSS * coat)).stacked()


def brush(bodies: Bodies, body: Tensor, point: Vec) -> tuple[Vec, Vec, Vec]:
    """The frame of a brushed surface: its normal, and the directions along and across the brush."""
    n = normal(bodies, body, point)
    radial = point - pick(bodies.center, body)
    turning = Vec(-radial.y, radial.x, torch.zeros_like(radial.x))
    along = unit(turning - n.times(dot(turning, n)))
    return n, along, cross(n, along)


@fused
def lamps_in_metal(stage: Stage, hits: Hits, shadows: Tensor, k: Tensor) -> Tensor:
    """(3, n): the lights as seen in a metal body, brushed and mirrored."""
    body = hits.body.index_select(0, k)
    point, direction = pick(hits.point, k), pick(hits.direction, k)
    scene = at(stage.bodies.scene, body)
    n, along, across = brush(stage.bodies, body, point)
    cos = (-dot(direction, n)).clamp(min=0.05)
    amounts = []
    for light in range(4):
        to_light, full = reach(stage.lights.lamps, light, scene, point)
        full = full * (1 - shadows[light].index_select(0, k))
        half = unit(to_light - direction)
        h, a, c = dot(half, n).clamp(min=1e-3), dot(half, along), dot(half, across)
        width = (a / ALONG) ** 2 + (c / ACROSS) ** 2 + h * h
        brushed = 1 / (math.pi * ALONG * ACROSS * width * width)
        spot = torch.exp((1 - 1 / (h * h)) / SPOT**2) / (math.pi * SPOT**2)
        lobes = BRUSHED * brushed + (1 - BRUSHED) * spot
        amounts.append(full * (dot(to_light, n) > 0) * lobes / (4 * cos))
    return tinted(amounts).stacked()


@fused
def reflected(bodies: Bodies, hits: Hits, brushed_rays: int, k: Tensor) -> tuple[Rays, Rays]:
    """Where metal bodies send rays: mirrored (n of them), and scattered by the brush (n · many).

    The scattered rays are spread alike in every pixel: their surroundings are smooth, so that a
    pattern does better than noise.
    """
    body = hits.body.index_select(0, k)
    point, direction = pick(hits.point, k), pick(hits.direction, k)
    n, along, across = brush(bodies, body, point)
    mirror = mirrored(direction, n)
    rays = []
    for i in range(brushed_rays):
        u, turn = 0.9 * (i + 0.5) / brushed_rays, 2 * math.pi * 0.618 * i
        tangent = math.sqrt(u / (1 - u))
        a, c = tangent * ALONG * math.cos(turn), tangent * ACROSS * math.sin(turn)
        ray = mirrored(direction, unit(n + along.times(a) + across.times(c)))
        rays.append(where(dot(ray, n) > 0, ray, mirror).stacked())
    origin = point.stacked()
    many = body.repeat(brushed_rays), origin.repeat(1, brushed_rays), torch.cat(rays, dim=1)
    return Rays(body, origin, mirror.stacked()), Rays(*many)


@fused
def _come_close(bodies: Bodies, others: Neighbours, rays: Rays, ray: Tensor, k: Tensor) -> Tensor:
    body = rays.body.index_select(0, ray)
    other = others.other.index_select(0, others.first.index_select(0, body) + k)
    return passes_near(bodies, other, 0.0, pick(rays.point, ray), pick(rays.direction, ray))


@fused
def _meet(
    bodies: Bodies, others: Neighbours, rays: Rays, ray: Tensor, k: Tensor, close: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    ray, k = ray.index_select(0, close), k.index_select(0, close)
    body = rays.body.index_select(0, ray)
    other = others.other.index_select(0, others.first.index_select(0, body) + k)
    return ray, other, enter(bodies, other, pick(rays.point, ray), pick(rays.direction, ray))


def met_by(stage: Stage, rays: Rays) -> tuple[Tensor, Hits]:
    """Which rays that leave bodies meet other bodies: (ray, where)."""
    bodies, others = stage.bodies, stage.others
    ray, k = spread(others.crowd.index_select(0, rays.body))
    close = torch.nonzero(_come_close(bodies, others, rays, ray, k))[:, 0]
    ray, other, t = _meet(bodies, others, rays, ray, k, close)
    met, pair = nearest(t, ray, len(rays.body))
    _, point, direction = (column.index_select(-1, met) for column in rays)
    return met, Hits(other[pair], point + t[pair] * direction, direction)


def view(stage: Stage, rays: Rays, bounces: int) -> Tensor:
    """(3, n): what bodies see along rays that leave them; with bounces left, other bodies too."""
    seen = surroundings(stage, rays, rays.body)
    if bounces > 0:
        met, hits = met_by(stage, rays)
        # Cut at white: a lamp in a mirror in a mirror would only sparkle.
        seen[:, met] = shine(stage, hits, bounces - 1, brushed_rays=1).clamp(max=1)
    return seen


def shine(stage: Stage, hits: Hits, bounces: int, brushed_rays: int) -> Tensor:
    """(3, n): the radiance that bodies send back along the rays that met them."""
    shadows = body_shadows(stage.bodies, stage.lights, hits.body, hits.point)
    is_metal = stage.is_metal.index_select(0, hits.body)
    radiance = torch.empty_like(hits.point)

    k = torch.nonzero(~is_metal)[:, 0]
    radiance[:, k] = rubber(stage, hits, shadows, k)

    k = torch.nonzero(is_metal)[:, 0]
    mirror, scattered = reflected(stage.bodies, hits, brushed_rays, k)
    gloss = lamps_in_metal(stage, hits, shadows, k)
    gloss += (1 - BRUSHED) * view(stage, mirror, bounces)
    blurred = view(stage, scattered, bounces - 1).view(3, brushed_rays, len(k)).mean(1)
    radiance[:, k] = stage.color.index_select(1, mirror.body) * (gloss + BRUSHED * blurred)
    return radiance
