"""Light in the CLEVR world: three square lamps and a sun, and what stands in their way.

The ground receives almost all the shadows, and is seen directly, in every metal body, and in the
light it throws back up. So its shadows are computed once per scene, into a map over the floor
(one layer per light), and looked up from then on. Shadows are soft without any sampling: how
closely the ray to a light passes a body, over how wide the light appears there, is the share of
the light that is hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from macnet.clevr.fuse import fused
from macnet.clevr.shapes import (
    Bodies,
    Neighbours,
    box_corners,
    cells,
    clearance,
    passes_near,
    spread,
)
from macnet.clevr.vector import Vec, dot, pick, unit

# The lights are numbered: key, fill, back, sun. The sun is a lamp very far away.
SUN_DISTANCE = 1000.0
SUN = tuple(SUN_DISTANCE * c for c in (0.4145, -0.1946, 0.889))
COLOR = ((1.0, 0.932, 0.817), (0.762, 0.818, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
WATTS = (78.5, 23.6, 39.3, 0.45 * math.pi * SUN_DISTANCE**2)
HALF_SIDE = (0.25, 0.25, 0.5, 0.05 * SUN_DISTANCE)
PENUMBRA = (0.1, 0.1, 0.2, 0.1)  # how far beside a body its shadow may still begin

MAP_HALF = 8.0  # the shadow map spans ±8 in x and y
HAZE = 16  # places to a side of its blurred copy, one unit wide each


class Lamps(NamedTuple):
    location: Tensor  # (3, 4·s): of each light in each scene
    half_side: Tensor  # (4·s,)
    penumbra: Tensor  # (4·s,)


class Shadings(NamedTuple):
    """Which body may shade which, and from which light (counted through all scenes)."""

    light: Tensor  # (p,)
    receiver: Tensor  # (p,)
    occluder: Tensor  # (p,)


class Lights(NamedTuple):
    lamps: Lamps
    shadings: Shadings
    shadows: Tensor  # (4, s, r, r): how much of each light is hidden from a place on the ground
    haze: Tensor  # (4, s, 16, 16): the same, averaged over patches one unit wide


def pack_lights(scenes: np.ndarray, bodies: Bodies, others: Neighbours, resolution: int) -> Lights:
    device = bodies.scene.device
    sun = np.broadcast_to(SUN, (len(scenes), 1, 3))
    location = torch.from_numpy(np.concatenate([scenes["lamps"], sun], axis=1))  # (s, 4, 3)
    location = location.float().permute(2, 1, 0)
    sizes = (torch.tensor(k).repeat_interleave(len(scenes)) for k in (HALF_SIDE, PENUMBRA))
    lamps = Lamps(*(k.to(device) for k in (location.flatten(1), *sizes)))
    shadows = shadow_map(bodies, lamps, resolution)
    # Where a body touches the ground its shadow begins at once; blur the steps that would show.
    shadows = avg_pool2d(shadows, 3, stride=1, padding=1)
    haze = avg_pool2d(shadows, resolution // HAZE)
    return Lights(lamps, who_may_shade(bodies, others, lamps), shadows, haze)


def reach(lamps: Lamps, light: int, scene: Tensor, point: Vec) -> tuple[Vec, Tensor]:
    """The direction to a light, and what it gives there to a surface that faces it, unhidden."""
    place = pick(lamps.location.view(3, 4, -1)[:, light], scene)
    offset = place - point
    square = dot(offset, offset)
    direction = offset.times(square.rsqrt())
    # A lamp looks at the origin, and shines as the cosine to that.
    turned = (dot(direction, place) * dot(place, place).rsqrt()).clamp(min=0)
    return direction, WATTS[light] / math.pi * turned / square


def tinted(amounts: Sequence[Tensor]) -> Vec:
    """Add up four lights in their colours; x, y, z are red, green, blue."""
    key, fill, back, sun = amounts
    white = back + sun
    return Vec(*(key * k + fill * f + white for k, f in zip(*COLOR[:2], strict=True)))


def on_ground(lights: Lights, shadows: Tensor, scene: Tensor, x: Tensor, y: Tensor) -> Vec:
    """The light that reaches places on the ground, past the shadows of a map."""
    point = Vec(x, y, torch.zeros_like(x))
    shadow = look_up(shadows, scene, x, y)
    amounts = []
    for light in range(4):
        direction, full = reach(lights.lamps, light, scene, point)
        amounts.append(full * direction.z * (1 - shadow[light]))
    return tinted(amounts)


# --- shadows ---------------------------------------------------------------------------------


class Suspects(NamedTuple):
    """Bodies that may hide a light from a point, one of each a row."""

    light: Tensor  # (n,) counted through all scenes: light · scenes + scene
    body: Tensor  # (n,)
    point: Tensor  # (3, n)


@fused
def _near_the_way(bodies: Bodies, lamps: Lamps, suspects: Suspects, body: Tensor) -> Tensor:
    point = Vec(*suspects.point)
    direction = unit(pick(lamps.location, suspects.light) - point)
    slack = lamps.penumbra.index_select(0, suspects.light)
    return passes_near(bodies, body, slack, point, direction)


@fused
def _share_hidden(bodies: Bodies, lamps: Lamps, suspects: Suspects, guilty: Tensor) -> Tensor:
    light, body = suspects.light.index_select(0, guilty), suspects.body.index_select(0, guilty)
    point = pick(suspects.point, guilty)
    offset = pick(lamps.location, light) - point
    far = dot(offset, offset).sqrt()
    gap, t = clearance(bodies, body, point, offset.times(1 / far))
    half_width = t * lamps.half_side.index_select(0, light) / far
    share = (0.5 - 0.5 * gap / (half_width + 1e-4)).clamp(0, 1)
    return share * share * (3 - 2 * share) * (t < far)


def hidden(bodies: Bodies, lamps: Lamps, suspects: Suspects) -> tuple[Tensor, Tensor]:
    """How much of its light each suspect hides: (suspect, share) of those that stand in the way."""
    near = _near_the_way(bodies, lamps, suspects, suspects.body)
    guilty = torch.nonzero(near)[:, 0]
    return guilty, _share_hidden(bodies, lamps, suspects, guilty)


def shadow_map(bodies: Bodies, lamps: Lamps, resolution: int) -> Tensor:
    """(4, s, r, r): how much of each light is hidden from each place on the ground."""
    scenes = lamps.location.shape[1] // 4
    low, high = _shadow_bounds(bodies, scenes, resolution / (2 * MAP_HALF), lamps.location)
    # (Without names for the cells: they are many, and their memory is soon wanted.)
    suspects, place = _suspects_on_ground(
        bodies, scenes, resolution, *cells(low, high, (resolution, resolution))
    )
    guilty, share = hidden(bodies, lamps, suspects)
    layers = torch.zeros(4 * scenes * resolution * resolution, device=low.device)
    layers.scatter_reduce_(0, place.index_select(0, guilty), share, "amax")
    return layers.view(4, scenes, resolution, resolution)


@fused
def _shadow_bounds(
    bodies: Bodies, scenes: int, scale: float, location: Tensor
) -> tuple[Tensor, Tensor]:
    """(2, 4·m): the rectangles on the map that hold the shadows of all bodies from all lights."""
    bounds = []
    for light in range(4):
        # The shadow of a body lies within that of its bounding box, grown by its softness.
        corners = box_corners(bodies, PENUMBRA[light])
        lamp = pick(location[:, light * scenes : (light + 1) * scenes], bodies.scene)
        cast = lamp + (corners - lamp).times(lamp.z / (lamp.z - corners.z).clamp(min=1e-2))
        sides = cast.x.amin(0), cast.y.amin(0), cast.x.amax(0), cast.y.amax(0)
        bounds.append(torch.stack(sides))
    low_high = (torch.cat(bounds, dim=1) + MAP_HALF) * scale
    return low_high[:2], low_high[2:]


@fused
def _suspects_on_ground(
    bodies: Bodies, scenes: int, resolution: int, shadow: Tensor, column: Tensor, row: Tensor
) -> tuple[Suspects, Tensor]:
    """A suspect for each place that may lie in a shadow, and the number of that place."""
    count = bodies.scene.shape[0]
    light, body = shadow // count, shadow % count
    light = light * scenes + bodies.scene.index_select(0, body)
    x, y = ((k + 0.5) * (2 * MAP_HALF / resolution) - MAP_HALF for k in (column, row))
    place = (light * resolution + row) * resolution + column
    return Suspects(light, body, torch.stack([x, y, torch.zeros_like(x)])), place


def look_up(maps: Tensor, scene: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
    """(c, s, r, r) maps → c of (n,) at places on the ground; the rim counts for all beyond it."""
    r = maps.shape[-1]
    scale = r / (2 * MAP_HALF)
    u = ((x + MAP_HALF) * scale - 0.5).clamp(0, r - 1.001)
    v = ((y + MAP_HALF) * scale - 0.5).clamp(0, r - 1.001)
    column, row = u.long(), v.long()
    u, v = u - column, v - row
    cell = (scene * r + row) * r + column
    found = []
    for layer in maps.flatten(1):
        a, b, c, d = (layer.index_select(0, cell + k) for k in (0, 1, r, r + 1))
        near, far = a + (b - a) * u, c + (d - c) * u
        found.append(near + (far - near) * v)
    return found


def who_may_shade(bodies: Bodies, others: Neighbours, lamps: Lamps) -> Shadings:
    location = lamps.location.view(3, 4, -1)
    scene = bodies.scene[others.body]
    center = Vec(*bodies.center[:, others.body])
    offset = Vec(*bodies.center[:, others.other]) - center
    direction = unit(Vec(*location[:, :, scene]) - center)
    along = dot(offset, direction)
    both = bodies.reach[others.body] + bodies.reach[others.other] + 0.3
    may = (along > 0) & (dot(offset, offset) - along * along < both * both)
    light, pair = torch.nonzero(may).unbind(1)
    light = light * location.shape[2] + scene[pair]
    return Shadings(light, others.body[pair], others.other[pair])


def body_shadows(bodies: Bodies, lights: Lights, body: Tensor, point: Tensor) -> Tensor:
    """(4, n): how much of each light other bodies hide from points on bodies."""
    count = torch.bincount(body, minlength=len(bodies.scene))
    owner, k = spread(count.index_select(0, lights.shadings.receiver))
    order = torch.argsort(body, stable=True)
    start = count.cumsum(0) - count
    suspects, place = _suspects_on_bodies(lights, start, order, point, owner, k)
    guilty, share = hidden(bodies, lights.lamps, suspects)
    shares = torch.zeros(4 * len(body), device=point.device)
    shares.scatter_reduce_(0, place.index_select(0, guilty), share, "amax")
    return shares.view(4, -1)


@fused
def _suspects_on_bodies(
    lights: Lights, start: Tensor, order: Tensor, point: Tensor, owner: Tensor, k: Tensor
) -> tuple[Suspects, Tensor]:
    """A suspect for each point of each body that may be shaded, and where its share belongs.

    `owner` numbers the shadings; the points on body b are order[start[b]], order[start[b] + 1], …
    """
    light, receiver, occluder = (column.index_select(0, owner) for column in lights.shadings)
    sample = order.index_select(0, start.index_select(0, receiver) + k)
    scenes = lights.lamps.location.shape[1] // 4
    place = light // scenes * order.shape[0] + sample
    return Suspects(light, occluder, point.index_select(1, sample)), place
