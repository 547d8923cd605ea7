"""Rays against CLEVR's three shapes.

Sphere, rounded cube and bevelled cylinder are one family: all points within a distance of 1 − core
from a smaller box or cylinder of half-side `core` (0 for the sphere), times a radius. The distance
to such a convex body is convex along a ray, so Newton's method from outside finds where the ray
enters without ever stepping past it, and bisection finds how closely a ray passes.

Work is done on lists of (ray, body) pairs that can meet, never on all rays times all bodies: most
rays meet nothing but the ground.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.camera import ASPECT, FOCAL, camera_axes
from macnet.clevr.fuse import fused
from macnet.clevr.scene import RADIUS, SHAPES, SIZES
from macnet.clevr.table import occupied
from macnet.clevr.vector import Vec, at, dot, pick, unit

# Fitted to outlines and highlights of original images; of the mesh, the flat part of a cube's face
# is 0.77 and of a cylinder's top 0.92.
CORE = {"cube": 0.82, "sphere": 0.0, "cylinder": 0.94}
CYLINDER = SHAPES.index("cylinder")
REACH = {"cube": 3**0.5, "sphere": 1.0, "cylinder": 2**0.5}  # of the farthest point, in radii
NEWTON_STEPS = 5
BISECTIONS = 5


class Bodies(NamedTuple):
    """The objects of all scenes, one after another."""

    scene: Tensor  # (m,) which scene it stands in
    slot: Tensor  # (m,) its index there
    center: Tensor  # (3, m)
    radius: Tensor  # (m,)
    reach: Tensor  # (m,) radius of the bounding sphere
    cos: Tensor  # (m,) of the yaw
    sin: Tensor  # (m,)
    core: Tensor  # (m,)
    is_cylinder: Tensor  # (m,)


class Cameras(NamedTuple):
    origin: Tensor  # (3, s)
    right: Tensor  # (3, s), as long as half the frame is wide at distance 1
    up: Tensor  # (3, s), as long as half the frame is high
    forward: Tensor  # (3, s)


def pack_bodies(scenes: np.ndarray, device: torch.device) -> Bodies:
    there = occupied(scenes)
    scene, slot = np.nonzero(there)
    x, y, yaw = scenes["places"][there].T
    size, _, _, shape = scenes["kinds"][there].T
    radius = np.array([RADIUS[s] for s in SIZES])[size]
    core, reach = (np.array([of[s] for s in SHAPES])[shape] for of in (CORE, REACH))
    center = np.stack([x, y, radius])  # they rest on the floor
    numbers = center, radius, reach * radius, np.cos(yaw), np.sin(yaw), core
    columns = scene, slot, *(k.astype(np.float32) for k in numbers), shape == CYLINDER
    return Bodies(*(torch.from_numpy(column).to(device) for column in columns))


def pack_cameras(scenes: np.ndarray, device: torch.device) -> Cameras:
    origin = scenes["camera"]
    right, up, forward = camera_axes(origin)
    columns = origin, right / (2 * FOCAL), up / (2 * FOCAL * ASPECT), forward
    return Cameras(*(torch.from_numpy(c.T.astype(np.float32)).to(device) for c in columns))


# --- one ray, one body -----------------------------------------------------------------------


def into_body(v: Vec, bodies: Bodies, which: Tensor) -> Vec:
    """Turn and scale a vector into a body's own frame, in which it has radius 1."""
    cos, sin = at(bodies.cos, which), at(bodies.sin, which)
    turned = Vec(cos * v.x + sin * v.y, cos * v.y - sin * v.x, v.z)
    return turned.times(1 / at(bodies.radius, which))


def distance_along(p: Vec, d: Vec, core: Tensor, is_cylinder: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance of points p to the body of radius 1, and its slope in direction d."""
    planar = (p.x * p.x + p.y * p.y).clamp(min=1e-12).sqrt()
    x = torch.where(is_cylinder, planar, p.x.abs()) - core
    y = torch.where(is_cylinder, 0.0, p.y.abs()) - core
    z = p.z.abs() - core
    dx = torch.where(is_cylinder, (p.x * d.x + p.y * d.y) / planar, p.x.sign() * d.x)
    dy, dz = p.y.sign() * d.y, p.z.sign() * d.z
    inside = torch.maximum(torch.maximum(x, y), z).clamp(max=0)
    x, y, z = x.clamp(min=0), y.clamp(min=0), z.clamp(min=0)
    outside = (x * x + y * y + z * z).sqrt()
    slope = (x * dx + y * dy + z * dz) / outside.clamp(min=1e-9)
    return outside + inside - (1 - core), slope


def enter(bodies: Bodies, which: Tensor, origin: Vec, direction: Vec) -> Tensor:
    """How far along each ray it enters its body; infinity where it passes by."""
    p = into_body(origin - pick(bodies.center, which), bodies, which)
    d = into_body(direction, bodies, which)
    core, is_cylinder = at(bodies.core, which), at(bodies.is_cylinder, which)
    # Where the ray is between the sides of the bounding box.
    (in_x, out_x), (in_y, out_y), (in_z, out_z) = (
        _between(p.x, d.x), _between(p.y, d.y), _between(p.z, d.z)
    )  # fmt: skip
    first = torch.maximum(torch.maximum(in_x, in_y), in_z)
    last = torch.minimum(torch.minimum(out_x, out_y), out_z)
    t = first
    for _ in range(NEWTON_STEPS):
        gap, slope = distance_along(p + d.times(t), d, core, is_cylinder)
        t = t + (gap / (-slope).clamp(min=1e-3)).clamp(min=0)
    gap, _ = distance_along(p + d.times(t), d, core, is_cylinder)
    meets = (first < last) & (first > 0) & (t <= last) & (gap < 2e-3)
    return torch.where(meets, t, torch.inf)


def _between(p: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    step = 1 / torch.where(d.abs() < 1e-9, 1e-9, d)
    near, far = (-1 - p) * step, (1 - p) * step
    return torch.minimum(near, far), torch.maximum(near, far)


def normal(bodies: Bodies, which: Tensor, point: Vec) -> Vec:
    """The outward normal at a point of a body's surface: away from the core's nearest point."""
    p = into_body(point - pick(bodies.center, which), bodies, which)
    core, is_cylinder = at(bodies.core, which), at(bodies.is_cylinder, which)
    x, y, z = (k.sign() * (k.abs() - core).clamp(min=0) for k in (p.x, p.y, p.z))
    planar = (p.x * p.x + p.y * p.y).clamp(min=1e-12).sqrt()
    side = (1 - core / planar).clamp(min=0)
    x, y = torch.where(is_cylinder, p.x * side, x), torch.where(is_cylinder, p.y * side, y)
    cos, sin = at(bodies.cos, which), at(bodies.sin, which)
    return unit(Vec(cos * x - sin * y, sin * x + cos * y, z))


def clearance(bodies: Bodies, which: Tensor, origin: Vec, direction: Vec) -> tuple[Tensor, Tensor]:
    """How closely a ray passes a body (negative: through it), and how far along the ray that is."""
    offset = pick(bodies.center, which) - origin
    p, d = into_body(offset.times(-1.0), bodies, which), into_body(direction, bodies, which)
    core, is_cylinder = at(bodies.core, which), at(bodies.is_cylinder, which)
    middle, reach = dot(offset, direction), at(bodies.reach, which)
    low, high = (middle - reach).clamp(min=0), (middle + reach).clamp(min=0)
    steepest = 1 / at(bodies.radius, which)
    falls, rises = -steepest, steepest  # the slopes at low and high
    for _ in range(BISECTIONS):
        t = (low + high) / 2
        _, slope = distance_along(p + d.times(t), d, core, is_cylinder)
        falling = slope < 0
        low, high = torch.where(falling, t, low), torch.where(falling, high, t)
        falls, rises = torch.where(falling, slope, falls), torch.where(falling, rises, slope)
    # Where the slope would be zero if it grew evenly: halving alone would leave ripples.
    t = low - falls * (high - low) / (rises - falls).clamp(min=1e-6)
    gap, _ = distance_along(p + d.times(t), d, core, is_cylinder)
    return gap * at(bodies.radius, which), t


def passes_near(
    bodies: Bodies, which: Tensor, slack: Tensor | float, origin: Vec, direction: Vec
) -> Tensor:
    """Whether a ray touches a body's bounding sphere, `slack` added to its radius."""
    offset = pick(bodies.center, which) - origin
    along = dot(offset, direction)
    reach = at(bodies.reach, which) + slack
    return (dot(offset, offset) - along * along < reach * reach) & (along > -reach)


# --- lists of pairs --------------------------------------------------------------------------


def spread(counts: Tensor) -> tuple[Tensor, Tensor]:
    """[2, 0, 3] → owners [0, 0, 2, 2, 2] and, within each owner, 0, 1, 0, 1, 2."""
    owner = torch.repeat_interleave(counts)
    return owner, _rank(counts.cumsum(0) - counts, owner)


@fused
def _rank(start: Tensor, owner: Tensor) -> Tensor:
    return torch.arange(owner.shape[0], device=owner.device) - start.index_select(0, owner)


def cells(low: Tensor, high: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """The grid cells of rectangles: (2, n) corners → (rectangle, column, row) of every cell."""
    limit = torch.tensor(size, device=low.device)[:, None]
    first = torch.minimum(low.clamp(min=0), limit).floor().long().contiguous()
    last = torch.minimum(high.clamp(min=0), limit).ceil().long()
    columns, rows = (last - first).clamp(min=0).contiguous()
    owner = torch.repeat_interleave(columns * rows)
    start = (columns * rows).cumsum(0) - columns * rows
    return owner, *_cell(first, columns, start, owner)


@fused
def _cell(first: Tensor, columns: Tensor, start: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    k = _rank(start, owner)
    stride = columns.index_select(0, owner)
    row = k // stride
    left, top = first.index_select(1, owner)
    return left + k - row * stride, top + row


class Neighbours(NamedTuple):
    """Every two bodies of a scene, both ways, in order of body."""

    body: Tensor  # (p,)
    other: Tensor  # (p,)
    crowd: Tensor  # (m,) how many others a body has
    first: Tensor  # (m,) where they begin


def neighbours(bodies: Bodies) -> Neighbours:
    count = torch.bincount(bodies.scene)
    start = count.cumsum(0) - count
    crowd = count[bodies.scene] - 1
    body, k = spread(crowd)
    other = start[bodies.scene[body]] + k
    return Neighbours(body, other + (other >= body), crowd, crowd.cumsum(0) - crowd)


@fused
def _key(t: Tensor) -> Tensor:
    return (t.view(torch.int32).long() << 32) | torch.arange(t.shape[0], device=t.device)


def nearest(t: Tensor, ray: Tensor, rays: int) -> tuple[Tensor, Tensor]:
    """Of the pairs of each ray, the one with the smallest t: (ray, pair) of every ray that hits.

    Distance and pair number share one 64-bit key, so the minimum is exact and has no ties.
    """
    best = torch.full((rays,), torch.iinfo(torch.int64).max, device=t.device)
    best.scatter_reduce_(0, ray, _key(t), "amin")
    infinite = 0x7F800000 << 32
    hit = torch.nonzero(best < infinite)[:, 0]
    return hit, best.index_select(0, hit) & 0xFFFFFFFF


def box_corners(bodies: Bodies, slack: float = 0.0) -> Vec:
    """The 8 corners of each body's bounding box, (8, m), grown by `slack` but not downwards."""
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3).T.to(bodies.radius.device)
    x, y, z = (sign[:, None] * (bodies.radius + slack) for sign in signs)
    center = Vec(*bodies.center)
    corners = Vec(bodies.cos * x - bodies.sin * y, bodies.sin * x + bodies.cos * y, z) + center
    return Vec(corners.x, corners.y, corners.z.clamp(min=0))


def screen_pairs(
    bodies: Bodies, cameras: Cameras, width: int, height: int
) -> tuple[Tensor, Tensor]:
    """Which pixels can show which body: (pixel, body), pixels numbered through all scenes."""
    low, high = _screen_bounds(bodies, cameras, width, height, bodies.scene)
    body, x, y = cells(low, high, (width, height))
    return (at(bodies.scene, body) * height + y) * width + x, body


@fused
def _screen_bounds(
    bodies: Bodies, cameras: Cameras, width: int, height: int, scene: Tensor
) -> tuple[Tensor, Tensor]:
    """(2, m): the rectangles of pixels that hold the bodies, and a pixel around."""
    origin, right, up, forward = (pick(table, scene) for table in cameras)
    offset = box_corners(bodies) - origin
    depth = dot(offset, forward).clamp(min=1e-3)
    across = dot(offset, right) / dot(right, right) / depth  # −1 … 1 over the frame
    above = dot(offset, up) / dot(up, up) / depth
    column, row = (0.5 + across / 2) * width, (0.5 - above / 2) * height
    low = torch.stack([column.amin(0), row.amin(0)]) - 1
    return low, torch.stack([column.amax(0), row.amax(0)]) + 1
