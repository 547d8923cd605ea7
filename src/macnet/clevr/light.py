"""Light in the CLEVR world: three square lamps and a sun, and what stands in their way.

The ground receives almost all the shadows, and is seen directly, in every metal body, and in the
light it throws back up. So its shadows are computed once per scene, into a map over the floor
(one column per light), and looked up from then on. Shadows are soft without any sampling: how
closely the ray to a light passes a body, over how wide the light appears there, is the share of
the light that is hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from macnet.clevr.fuse import fused
from macnet.clevr.scene import Scene
from macnet.clevr.shapes import (
    Bodies,
    at,
    box_corners,
    cells,
    clearance,
    dot,
    neighbours,
    passes_near,
    spread,
    unit,
)

LAMP_COLOR = ((1.0, 0.932, 0.817), (0.762, 0.818, 1.0), (1.0, 1.0, 1.0))
LAMP_WATTS = (78.5, 23.6, 39.3)
LAMP_HALF = (0.25, 0.25, 0.5)  # half the side of the square
TO_SUN = (0.4145, -0.1946, 0.889)
SUN_STRENGTH = 0.45
SUN_SPREAD = 0.05  # tangent of half the angle the sun spans
SUN = 3  # the lights are numbered: key, fill, back, sun

MAP_HALF = 8.0  # the shadow map spans ±8 in x and y
HAZE = 16  # places to a side of its blurred copy, one unit wide each


class Lights(NamedTuple):
    location: Tensor  # (3, 3, s): lamp, coordinate, scene
    shadows: Tensor  # (s·r·r, 4): how much of each light is hidden from a place on the ground
    haze: Tensor  # (s·16·16, 4): the same, averaged over patches one unit wide


def pack_lights(
    scenes: Sequence[Scene], bodies: Bodies, resolution: int, device: torch.device
) -> Lights:
    location = (
        torch.tensor([scene.lamps for scene in scenes]).permute(1, 2, 0).contiguous().to(device)
    )
    layers = shadow_map(bodies, location, resolution)
    hazy = avg_pool2d(layers.view(4, -1, resolution, resolution), resolution // HAZE)
    shadows, haze = (m.reshape(4, -1).T.contiguous() for m in (layers, hazy))
    return Lights(location, shadows, haze)


def toward(location: Tensor, light: int, scene: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Direction and distance from points to a light."""
    if light == SUN:
        there = torch.ones_like(point[0])
        return torch.stack([there * c for c in TO_SUN]), there * torch.inf
    offset = at(location[light], scene) - point
    far = dot(offset, offset).sqrt()
    return offset / far, far


def strength(location: Tensor, light: int, scene: Tensor, to_light: Tensor, far: Tensor) -> Tensor:
    """What a light gives to a surface that faces it, were nothing in between."""
    if light == SUN:
        return torch.full_like(far, SUN_STRENGTH)
    # A lamp looks at the origin, and shines as the cosine to that.
    turned = dot(to_light, at(unit(location[light]), scene)).clamp(min=0)
    return LAMP_WATTS[light] / math.pi * turned / (far * far)


def tinted(amounts: Sequence[Tensor]) -> Tensor:
    """Add up the lights in their colours: four (n,) amounts → (3, n)."""
    key, fill, back, sun = amounts
    white = back + sun
    return torch.stack([key * k + fill * f + white for k, f in zip(*LAMP_COLOR[:2], strict=True)])


def on_ground(
    lights: Lights, rows: Tensor, scenes: int, scene: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """(3, n): the light that reaches places on the ground, past the shadows of a map."""
    point = torch.stack([x, y, torch.zeros_like(x)])
    shadow = look_up(rows, scenes, scene, x, y)
    amounts = []
    for light in range(4):
        to_light, far = toward(lights.location, light, scene, point)
        full = strength(lights.location, light, scene, to_light, far) * to_light[2]
        amounts.append(full * (1 - shadow[:, light]))
    return tinted(amounts)


# --- shadows ---------------------------------------------------------------------------------


@fused
def _may_hide(bodies: Bodies, location: Tensor, light: int, which: Tensor, point: Tensor) -> Tensor:
    direction, _ = toward(location, light, at(bodies.scene, which), point)
    return passes_near(bodies, which, 0.2, point, direction)


@fused
def _hidden_share(
    bodies: Bodies, location: Tensor, light: int, which: Tensor, point: Tensor
) -> Tensor:
    direction, far = toward(location, light, at(bodies.scene, which), point)
    gap, t = clearance(bodies, which, point, direction)
    half_width = t * SUN_SPREAD if light == SUN else t * LAMP_HALF[light] / far
    share = (0.5 - 0.5 * gap / (half_width + 1e-4)).clamp(0, 1)
    return share * share * (3 - 2 * share) * (t < far)


def hidden(
    bodies: Bodies, location: Tensor, light: int, which: Tensor, point: Tensor
) -> tuple[Tensor, Tensor]:
    """How much of a light bodies hide from points: (pair, share) of the pairs where they may."""
    pair = torch.nonzero(_may_hide(bodies, location, light, which, point))[:, 0]
    which, point = which.index_select(0, pair), point.index_select(1, pair)
    return pair, _hidden_share(bodies, location, light, which, point)


def shadow_map(bodies: Bodies, location: Tensor, resolution: int) -> Tensor:
    """(4, s·r·r): for every place on the ground, how much of each light is hidden from it."""
    places = location.shape[2] * resolution * resolution
    layers = torch.zeros(4, places, device=location.device)
    scale = resolution / (2 * MAP_HALF)
    for light in range(4):
        corners = box_corners(bodies, slack=0.1 if light == SUN else 0.4 * LAMP_HALF[light])
        if light == SUN:
            x, y = (corners[k] - TO_SUN[k] / TO_SUN[2] * corners[2] for k in (0, 1))
        else:
            lamp = location[light][:, None, bodies.scene]
            x, y = lamp[:2] + (corners - lamp)[:2] * (lamp[2] / (lamp[2] - corners[2]))
        low = (torch.stack([x.amin(0), y.amin(0)]) + MAP_HALF) * scale
        high = (torch.stack([x.amax(0), y.amax(0)]) + MAP_HALF) * scale
        body, column, row = cells(low, high, (resolution, resolution))
        u, v = ((k + 0.5) / scale - MAP_HALF for k in (column, row))
        pair, share = hidden(bodies, location, light, body, torch.stack([u, v, 0 * u]))
        cell = (at(bodies.scene, body) * resolution + row) * resolution + column
        layers[light].scatter_reduce_(0, cell.index_select(0, pair), share, "amax")
    return layers


def look_up(rows: Tensor, scenes: int, scene: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(n, 4): a map at places on the ground, interpolated; the rim counts for all beyond it."""
    r = math.isqrt(len(rows) // scenes)
    scale = r / (2 * MAP_HALF)
    u = ((x + MAP_HALF) * scale - 0.5).clamp(0, r - 1.001)
    v = ((y + MAP_HALF) * scale - 0.5).clamp(0, r - 1.001)
    column, row = u.long(), v.long()
    u, v = (u - column)[:, None], (v - row)[:, None]
    cell = (scene * r + row) * r + column
    a, b, c, d = (rows.index_select(0, cell + k) for k in (0, 1, r, r + 1))
    near, far = torch.lerp(a, b, u), torch.lerp(c, d, u)
    return torch.lerp(near, far, v)


def body_shadows(bodies: Bodies, location: Tensor, which: Tensor, point: Tensor) -> Tensor:
    """(4, n): how much of each light other bodies hide from points on the bodies `which`."""
    receiver, occluder = neighbours(bodies)
    center = bodies.center[:, receiver]
    offset = bodies.center[:, occluder] - center
    reach = bodies.reach[receiver] + bodies.reach[occluder] + 0.3
    order = torch.argsort(which, stable=True)
    count = torch.bincount(which, minlength=len(bodies.scene))
    start = count.cumsum(0) - count
    shares = torch.zeros(4, len(which), device=point.device)
    for light in range(4):
        direction, _ = toward(location, light, bodies.scene[receiver], center)
        along = dot(offset, direction)
        may = (along > 0) & (dot(offset, offset) - along * along < reach * reach)
        r, o = receiver[may], occluder[may]
        owner, k = spread(count[r])
        sample = order.index_select(0, start[r].index_select(0, owner) + k)
        blocker, place = o.index_select(0, owner), point.index_select(1, sample)
        pair, share = hidden(bodies, location, light, blocker, place)
        shares[light].scatter_reduce_(0, sample.index_select(0, pair), share, "amax")
    return shares
