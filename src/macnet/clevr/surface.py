"""What surfaces send to an eye: the ground and its cove, rubber, and metal that mirrors them.

Materials are the release's: rubber is paint under a weak gloss; metal is tinted gloss alone,
60% of it a mirror and 40% brushed around the body's axis. What the release's path tracer finds by
many bounces is here a handful of measured constants: they were fitted to 32 original images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from macnet.clevr.fuse import fused
from macnet.clevr.light import (
    MAP_HALF,
    Lights,
    body_shadows,
    look_up,
    on_ground,
    reach,
    tinted,
)
from macnet.clevr.scene import COLORS, DIRECTIONS, Scene
from macnet.clevr.shapes import (
    Bodies,
    Neighbours,
    at,
    cells,
    dot,
    enter,
    nearest,
    neighbours,
    normal,
    passes_near,
    spread,
    unit,
)

# As linear light: the release hands Blender the display values unconverted.
PAINT = {
    "gray": (87, 87, 87), "red": (173, 35, 35), "blue": (42, 75, 215), "green": (29, 105, 20),
    "brown": (129, 74, 25), "purple": (129, 38, 192), "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}  # fmt: skip
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
    glow: Tensor  # (s, r, r, 3): what places on the ground receive from the bodies around


class Hits(NamedTuple):
    """Where rays met bodies."""

    body: Tensor  # (n,)
    point: Tensor  # (3, n)
    direction: Tensor  # (3, n) in which the ray came

    def pick(self, k: Tensor) -> Hits:
        return Hits(*(column.index_select(-1, k) for column in self))


class Rays(NamedTuple):
    """Rays that leave bodies."""

    body: Tensor  # (n,)
    point: Tensor  # (3, n)
    direction: Tensor  # (3, n)


def pack_stage(scenes: Sequence[Scene], bodies: Bodies, lights: Lights) -> Stage:
    objects = [o for scene in scenes for o in scene.objects]
    paint = torch.tensor([PAINT[color] for color in COLORS]).T / 255
    color = paint[:, [COLORS.index(o.color) for o in objects]]
    is_metal = torch.tensor([o.material == "metal" for o in objects], dtype=torch.bool)
    device = bodies.scene.device
    color, is_metal = color.to(device), is_metal.to(device)
    glow = glow_map(bodies, color, len(scenes))
    return Stage(bodies, neighbours(bodies), lights, color, is_metal, glow)


# --- ground and cove -------------------------------------------------------------------------


def ground(stage: Stage, scene: Tensor, origin: Tensor, direction: Tensor) -> Tensor:
    """(3, n): the radiance of the ground along rays that go down."""
    far = origin[2] / (-direction[2]).clamp(min=1e-4)
    x, y = origin[0] + far * direction[0], origin[1] + far * direction[1]
    light = on_ground(stage.lights, stage.lights.shadows, scene, x, y)
    beyond = COVE[0] * x + COVE[1] * y
    cove = COVE_ON_GROUND + COVE_AT_BEND * torch.sigmoid((beyond - BEND) / BEND_WIDTH)
    glow = look_up(stage.glow, scene, x, y).T
    return (light + glow) * (GROUND_ALBEDO / math.pi) + cove


def glow_map(bodies: Bodies, color: Tensor, scenes: int) -> Tensor:
    """The light that bodies throw on the ground beside them, each taken for a dim sphere."""
    scale = GLOW_PLACES / (2 * MAP_HALF)
    middle, reach = (bodies.center[:2] + MAP_HALF) * scale, 3 * bodies.radius * scale
    body, column, row = cells(middle - reach, middle + reach, (GLOW_PLACES, GLOW_PLACES))
    x, y = ((k + 0.5) / scale - MAP_HALF for k in (column, row))
    offset = torch.stack([x, y]) - at(bodies.center[:2], body)
    radius = at(bodies.radius, body)
    nearness = radius * (offset[0] ** 2 + offset[1] ** 2 + radius**2).rsqrt()
    amount = BODY_GLOW * at(color, body) * (nearness**3 - 0.1**1.5).clamp(min=0)
    place = (at(bodies.scene, body) * GLOW_PLACES + row) * GLOW_PLACES + column
    glow = torch.zeros(scenes * GLOW_PLACES**2, 3, device=color.device)
    # The brightest of them, not their sum: a sum on CUDA would depend on the order of adding.
    glow.scatter_reduce_(0, place[:, None].expand(-1, 3), amount.T, "amax")
    return glow.view(scenes, GLOW_PLACES, GLOW_PLACES, 3)


def around(stage: Stage, scene: Tensor, origin: Tensor, direction: Tensor) -> Tensor:
    """(3, n): the radiance of ground, cove and black sky along rays, bodies left out."""
    rise = direction[2]
    toward_cove = COVE[0] * direction[0] + COVE[1] * direction[1]
    cove = COVE_RADIANCE * torch.sigmoid((toward_cove - rise) * 20)
    return torch.where(rise < -0.02, ground(stage, scene, origin, direction), cove)


@fused
def surroundings(stage: Stage, rays: Rays, body: Tensor) -> Tensor:
    return around(stage, at(stage.bodies.scene, body), rays.point, rays.direction)


def thrown_back(stage: Stage, scene: Tensor, n: Tensor, point: Tensor) -> Tensor:
    """(3, n): the light that a body's surface receives from ground and cove."""
    x, y = point[0] + 0.6 * n[0], point[1] + 0.6 * n[1]  # about where it looks at the ground
    light = on_ground(stage.lights, stage.lights.haze, scene, x, y)
    from_ground = light * GROUND_ALBEDO * (0.5 - 0.5 * n[2])
    behind = DIRECTIONS["behind"]
    facing = 0.5 + 0.5 * (0.8 * (behind[0] * n[0] + behind[1] * n[1]) + 0.6 * n[2])
    return from_ground + COVE_ON_BODIES * facing * facing


# --- bodies ----------------------------------------------------------------------------------


def fresnel(cos: Tensor, index: float) -> Tensor:
    """The share of light that a clear coat of this refractive index mirrors."""
    g = (index * index - 1 + cos * cos).sqrt()
    a = (g - cos) / (g + cos)
    b = (cos * (g + cos) - 1) / (cos * (g - cos) + 1)
    return 0.5 * a * a * (1 + b * b)


def mirrored(direction: Tensor, n: Tensor) -> Tensor:
    return direction - 2 * dot(direction, n) * n


@fused
def rubber(stage: Stage, hits: Hits, shadows: Tensor, k: Tensor) -> Tensor:
    """(3, n): what rubber sends back along those of the rays that met it."""
    body, point, direction = hits.pick(k)
    shadow = shadows.index_select(1, k)
    scene = at(stage.bodies.scene, body)
    n = normal(stage.bodies, body, point)
    cos = (-dot(direction, n)).clamp(min=0.05)
    soft, gloss = [], []
    for light in range(4):
        to_light, full = reach(stage.lights.location, light, scene, point)
        full = full * (1 - shadow[light])
        facing = dot(to_light, n).clamp(min=0)
        soft.append(full * facing)
        cos_h = dot(unit(to_light - direction), n).clamp(min=1e-3)
        square, rough = cos_h * cos_h, RUBBER_ROUGHNESS**2
        beckmann = torch.exp((1 - 1 / square) / rough) / (math.pi * rough * square * square)
        gloss.append(full * (facing > 0) * beckmann / (4 * cos))
    coat, sheen = fresnel(cos, 1.2), fresnel(cos, 1.4)
    received = tinted(soft) + thrown_back(stage, scene, n, point)
    paint = at(stage.color, body) * received / math.pi * (1 - 0.5 * sheen)
    seen = around(stage, scene, point, mirrored(direction, n))
    return paint * (1 - coat) + RUBBER_GLOSS * coat * (tinted(gloss) + seen)


class Brush(NamedTuple):
    """The frame of a brushed surface: its normal, and the directions along and across the brush."""

    normal: Tensor
    along: Tensor
    across: Tensor


def brush(bodies: Bodies, body: Tensor, point: Tensor) -> Brush:
    n = normal(bodies, body, point)
    x, y, _ = point - at(bodies.center, body)
    turning = torch.stack([-y, x, torch.zeros_like(x)])
    along = unit(turning - dot(turning, n) * n)
    return Brush(n, along, torch.linalg.cross(n, along, dim=0))


@fused
def lamps_in_metal(stage: Stage, hits: Hits, shadows: Tensor, k: Tensor) -> Tensor:
    """(3, n): the lights as seen in a metal body, brushed and mirrored."""
    body, point, direction = hits.pick(k)
    shadow = shadows.index_select(1, k)
    scene = at(stage.bodies.scene, body)
    frame = brush(stage.bodies, body, point)
    cos = (-dot(direction, frame.normal)).clamp(min=0.05)
    amounts = []
    for light in range(4):
        to_light, full = reach(stage.lights.location, light, scene, point)
        full = full * (1 - shadow[light])
        half = unit(to_light - direction)
        h, a, c = (dot(half, axis) for axis in frame)
        h = h.clamp(min=1e-3)
        width = (a / ALONG) ** 2 + (c / ACROSS) ** 2 + h * h
        brushed = 1 / (math.pi * ALONG * ACROSS * width * width)
        spot = torch.exp((1 - 1 / (h * h)) / SPOT**2) / (math.pi * SPOT**2)
        lobes = BRUSHED * brushed + (1 - BRUSHED) * spot
        amounts.append(full * (dot(to_light, frame.normal) > 0) * lobes / (4 * cos))
    return tinted(amounts)


@fused
def reflected(bodies: Bodies, hits: Hits, brushed_rays: int, k: Tensor) -> tuple[Rays, Rays]:
    """Where metal bodies send rays: mirrored (n of them), and scattered by the brush (n · many).

    The scattered rays are spread alike in every pixel: their surroundings are smooth, so that a
    pattern does better than noise.
    """
    body, point, direction = hits.pick(k)
    frame = brush(bodies, body, point)
    mirror = mirrored(direction, frame.normal)
    rays = []
    for i in range(brushed_rays):
        u, turn = 0.9 * (i + 0.5) / brushed_rays, 2 * math.pi * 0.618 * i
        tangent = math.sqrt(u / (1 - u))
        along, across = (tangent * w for w in (ALONG * math.cos(turn), ACROSS * math.sin(turn)))
        ray = mirrored(direction, unit(frame.normal + frame.along * along + frame.across * across))
        rays.append(torch.where(dot(ray, frame.normal) > 0, ray, mirror))
    scattered = Rays(
        body.repeat(brushed_rays), point.repeat(1, brushed_rays), torch.cat(rays, dim=1)
    )
    return Rays(body, point, mirror), scattered


@fused
def _come_close(bodies: Bodies, others: Neighbours, rays: Rays, ray: Tensor, k: Tensor) -> Tensor:
    body, point, direction = (column.index_select(-1, ray) for column in rays)
    other = others.other.index_select(0, others.first.index_select(0, body) + k)
    return passes_near(bodies, other, 0.0, point, direction)


@fused
def _meet(
    bodies: Bodies, others: Neighbours, rays: Rays, ray: Tensor, k: Tensor, close: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    ray, k = ray.index_select(0, close), k.index_select(0, close)
    body, point, direction = (column.index_select(-1, ray) for column in rays)
    other = others.other.index_select(0, others.first.index_select(0, body) + k)
    return ray, other, enter(bodies, other, point, direction)


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
    shadows = body_shadows(stage.bodies, stage.others, stage.lights, hits.body, hits.point)
    is_metal = stage.is_metal.index_select(0, hits.body)
    radiance = torch.empty_like(hits.point)

    k = torch.nonzero(~is_metal)[:, 0]
    radiance[:, k] = rubber(stage, hits, shadows, k)

    k = torch.nonzero(is_metal)[:, 0]
    mirror, scattered = reflected(stage.bodies, hits, brushed_rays, k)
    gloss = lamps_in_metal(stage, hits, shadows, k)
    gloss += (1 - BRUSHED) * view(stage, mirror, bounces)
    blurred = view(stage, scattered, bounces - 1).view(3, brushed_rays, len(k)).mean(1)
    radiance[:, k] = at(stage.color, mirror.body) * (gloss + BRUSHED * blurred)
    return radiance
