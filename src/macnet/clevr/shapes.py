"""Intersection of rays with CLEVR's three shapes.

Sphere, rounded cube and bevelled cylinder are one family of solids: all points within a distance of
1 − core from a smaller box or cylinder of half-side `core` (0 for the sphere), times a radius. The
distance to a convex solid is convex along a ray, so Newton's method from outside converges to the
entry point without overshooting, and bisection finds the point of closest approach.

Only lists of (ray, body) pairs that may intersect are processed, never all rays times all bodies:
most rays hit only the ground.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.camera import ASPECT, FOCAL, camera_axes
from macnet.clevr.columns import concatenate
from macnet.clevr.fuse import fused
from macnet.clevr.scene import RADIUS, SHAPES, SIZES
from macnet.clevr.scene_array import object_mask
from macnet.clevr.vector import Vec, dot, normalize, point_at, select, take, take_vec

# Fitted to outlines and highlights of original images; in the original meshes, the flat part of a
# cube's face is 0.77 and of a cylinder's top 0.92.
CORE = {"cube": 0.82, "sphere": 0.0, "cylinder": 0.94}
CYLINDER = SHAPES.index("cylinder")
BOUNDING_RADIUS = {"cube": 3**0.5, "sphere": 1.0, "cylinder": 2**0.5}  # in units of the radius
NEWTON_STEPS = 5
BISECTIONS = 5


class Bodies(NamedTuple):
    """The objects of all scenes, as solids: one table with a column per object."""

    scene: Tensor  # (m,) index of the scene
    object_index: Tensor  # (m,) index of the object in its scene
    center: Tensor  # (3, m)
    radius: Tensor  # (m,)
    bounding_radius: Tensor  # (m,) of the bounding sphere
    cos: Tensor  # (m,) of the yaw
    sin: Tensor  # (m,) of the yaw
    core: Tensor  # (m,) half-side of the inner box or cylinder, in units of the radius
    is_cylinder: Tensor  # (m,)


class Cameras(NamedTuple):
    """One camera per scene."""

    origin: Tensor  # (3, s)
    right: Tensor  # (3, s), its length is half the width of the frame at distance 1
    up: Tensor  # (3, s), its length is half the height of the frame at distance 1
    forward: Tensor  # (3, s), unit length


def build_bodies(scenes: np.ndarray, device: torch.device) -> Bodies:
    """Put the objects of an array of scenes on a device."""
    mask = object_mask(scenes)
    scene, object_index = np.nonzero(mask)
    x, y, yaw = scenes["poses"][mask].T
    size, _, _, shape = scenes["attributes"][mask].T
    radius = np.array([RADIUS[s] for s in SIZES])[size]
    core, bound = (np.array([of[s] for s in SHAPES])[shape] for of in (CORE, BOUNDING_RADIUS))
    center = np.stack([x, y, radius])  # they rest on the floor
    numbers = center, radius, bound * radius, np.cos(yaw), np.sin(yaw), core
    columns = scene, object_index, *(k.astype(np.float32) for k in numbers), shape == CYLINDER
    return Bodies(*(torch.from_numpy(column).to(device) for column in columns))


def build_cameras(scenes: np.ndarray, device: torch.device) -> Cameras:
    """Put the cameras of an array of scenes on a device."""
    origin = scenes["camera"]
    right, up, forward = camera_axes(origin)
    columns = origin, right / (2 * FOCAL), up / (2 * FOCAL * ASPECT), forward
    return Cameras(*(torch.from_numpy(c.T.astype(np.float32)).to(device) for c in columns))


# --- one ray, one body -----------------------------------------------------------------------


def to_object_space(bodies: Bodies, which: Tensor, *vectors: Vec) -> Iterator[Vec]:
    """Rotate and scale vectors into the object space of bodies, where each has radius 1."""
    cos, sin = take(bodies.cos, which), take(bodies.sin, which)
    scale = take(1 / bodies.radius, which)
    for v in vectors:
        yield Vec(cos * v.x + sin * v.y, cos * v.y - sin * v.x, v.z).times(scale)


class ObjectRays(NamedTuple):
    """Rays in the object space of the body that each may hit."""

    origin: Vec
    direction: Vec
    core: Tensor  # (n,) of the body
    is_cylinder: Tensor  # (n,) 1.0 or 0.0
    is_box: Tensor  # (n,) 0.0 or 1.0


def _object_rays(bodies: Bodies, which: Tensor, offset: Vec, direction: Vec) -> ObjectRays:
    """Rays that start at an `offset` from the centers of bodies."""
    origin, direction = to_object_space(bodies, which, offset, direction)
    is_cylinder = take(bodies.is_cylinder.float(), which)
    return ObjectRays(origin, direction, take(bodies.core, which), is_cylinder, 1 - is_cylinder)


def _distance_to_core(rays: ObjectRays, t: Tensor) -> tuple[Tensor, Tensor, Vec]:
    """Distance of the points at t to the core, its derivative by t, and the points.

    The points are folded: a cylinder is a box in the coordinates distance from its axis, 0, z.
    """
    p, d, core = point_at(rays.origin, rays.direction, t), rays.direction, rays.core
    planar = (p.x * p.x + p.y * p.y).clamp_(min=1e-12).sqrt_()
    x = select(rays.is_cylinder, planar, p.x)
    dx = select(rays.is_cylinder, (p.x * d.x + p.y * d.y) / planar, d.x)
    y = p.y * rays.is_box
    beyond = Vec(*(k - k.clamp(-core, core) for k in (x, y, p.z)))  # from the core's nearest point
    distance = dot(beyond, beyond).sqrt_()
    slope = dot(beyond, Vec(dx, d.y, d.z)).div_(distance.clamp(min=1e-9))
    return distance, slope, Vec(x, y, p.z)


def signed_distance(rays: ObjectRays, t: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance of the points at t to the body's surface, and its derivative by t."""
    outside, slope, p = _distance_to_core(rays, t)
    farthest = torch.maximum(torch.maximum(p.x.abs(), p.y.abs()), p.z.abs())
    inside = (farthest - rays.core).clamp(max=0)  # of the core, where it is below zero
    return outside + inside - (1 - rays.core), slope


def intersect(bodies: Bodies, which: Tensor, origin: Vec, direction: Vec) -> Tensor:
    """Distance along each ray at which it enters its body; infinity if it misses."""
    offset = origin - take_vec(bodies.center, which)
    rays = _object_rays(bodies, which, offset, direction)
    p, d = rays.origin, rays.direction
    # The part of the ray within the bounding box, by the slab method.
    (in_x, out_x), (in_y, out_y), (in_z, out_z) = _slab(p.x, d.x), _slab(p.y, d.y), _slab(p.z, d.z)
    first = torch.maximum(torch.maximum(in_x, in_y), in_z)
    last = torch.minimum(torch.minimum(out_x, out_y), out_z)
    t = first
    for _ in range(NEWTON_STEPS):
        gap, slope = signed_distance(rays, t)
        t = t + (gap / (-slope).clamp(min=1e-3)).clamp(min=0)
    gap, _ = signed_distance(rays, t)
    is_hit = (first < last) & (first > 0) & (t <= last) & (gap < 2e-3)
    return torch.where(is_hit, t, torch.inf)


def _slab(p: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    step = torch.where(d.abs() < 1e-9, 1e-9, d).reciprocal()
    near, far = (-1 - p) * step, (1 - p) * step
    return torch.minimum(near, far), torch.maximum(near, far)


def surface_normal(bodies: Bodies, which: Tensor, point: Vec) -> Vec:
    """Outward normal at a point of a body's surface: away from the nearest point of the core."""
    (p,) = to_object_space(bodies, which, point - take_vec(bodies.center, which))
    core, is_cylinder = take(bodies.core, which), take(bodies.is_cylinder.float(), which)
    x, y, z = (k - k.clamp(-core, core) for k in (p.x, p.y, p.z))
    planar = (p.x * p.x + p.y * p.y).clamp(min=1e-12).sqrt()
    side = (1 - core / planar).clamp(min=0)
    x, y = select(is_cylinder, p.x * side, x), select(is_cylinder, p.y * side, y)
    cos, sin = take(bodies.cos, which), take(bodies.sin, which)
    return normalize(Vec(cos * x - sin * y, sin * x + cos * y, z))


def closest_approach(
    bodies: Bodies, which: Tensor, origin: Vec, direction: Vec
) -> tuple[Tensor, Tensor]:
    """Smallest signed distance of a ray to a body, and the position along the ray where it is."""
    offset = origin - take_vec(bodies.center, which)
    rays = _object_rays(bodies, which, offset, direction)
    middle, bound = -dot(offset, direction), take(bodies.bounding_radius, which)
    low, high = (middle - bound).clamp(min=0), (middle + bound).clamp(min=0)
    radius = take(bodies.radius, which)
    rises = radius.reciprocal()  # the steepest slope that there is, taken for those at low and high
    falls = -rises
    for _ in range(BISECTIONS):
        t = (low + high) / 2
        _, slope, _ = _distance_to_core(rays, t)
        falling = slope.sign().clamp_(max=0).neg_()
        low, high = select(falling, t, low), select(falling, high, t)
        falls, rises = select(falling, slope, falls), select(falling, rises, slope)
    # Interpolate to where the slope is zero: bisection alone would leave ripples in penumbras.
    t = low - falls * (high - low) / (rises - falls).clamp(min=1e-6)
    gap, _ = signed_distance(rays, t)
    return gap * radius, t


def near_sphere(
    bodies: Bodies, which: Tensor, margin: Tensor | float, origin: Vec, direction: Vec
) -> Tensor:
    """Whether a ray hits a body's bounding sphere, enlarged by `margin`."""
    offset = take_vec(bodies.center, which) - origin
    along = dot(offset, direction)
    bound = take(bodies.bounding_radius, which) + margin
    return (dot(offset, offset) - along * along < bound * bound) & (along > -bound)


# --- lists of pairs --------------------------------------------------------------------------


def expand_counts(counts: Tensor, first: Tensor | int = 0) -> tuple[Tensor, Tensor]:
    """Counts [2, 0, 3] → owners [0, 0, 2, 2, 2] and ranks within each owner [0, 1, 0, 1, 2].

    The ranks of each owner count from `first`.
    """
    owner = torch.repeat_interleave(counts)
    return owner, _rank(counts.cumsum(0) - counts - first, owner)


@fused()
def _rank(start: Tensor, owner: Tensor) -> Tensor:
    return torch.arange(owner.shape[0], device=owner.device) - start.index_select(0, owner)


class Spans(NamedTuple):
    """Rows of cells that rectangles cover."""

    rectangle: Tensor  # (n,)
    row: Tensor  # (n,)
    first: Tensor  # (n,) column
    length: Tensor  # (n,) number of columns


def rasterize(low: Tensor, high: Tensor, size: tuple[int, int]) -> Spans:
    """Rows of the cells that rectangles cover, given as (2, n) corners."""
    limit = torch.tensor(size, device=low.device)[:, None]
    first = torch.minimum(low.clamp(min=0), limit).floor().long()
    last = torch.minimum(high.clamp(min=0), limit).ceil().long()
    columns, rows = (last - first).clamp(min=0)
    rectangle, row = expand_counts(rows, first[1])
    return Spans(rectangle, row, first[0, rectangle], columns[rectangle])


# Corners i and j of a box, as `box_corners` numbers them, have an edge between them.
EDGES = [(i, i + k) for k in (1, 2, 4) for i in range(8) if not i & k]


def clip_to_boxes(spans: Spans, x: Tensor, y: Tensor, is_clipped: Tensor) -> Spans:
    """Keep of each span the cells whose centers are within the outline of a projected box.

    The boxes are given as the projections of their corners, (8, rectangles), in cells.
    `is_clipped` (rectangles,) is false for those whose spans are left as they are.
    """
    first, last = _clip(x, y, is_clipped, *spans)
    return spans._replace(first=first, length=last - first)


def remove_spans(spans: Spans, k: Tensor, middle: Spans) -> Spans:
    """Cut out of the spans with index k a part of each, which may be empty."""
    left, end = spans.length.clone(), spans.first[k] + spans.length[k]
    left[k] = middle.first - spans.first[k]
    first = middle.first + middle.length
    right = Spans(middle.rectangle, middle.row, first, end - first)
    return concatenate([spans._replace(length=left), right])


@fused(4)
def _clip(
    x: Tensor,
    y: Tensor,
    is_clipped: Tensor,
    rectangle: Tensor,
    row: Tensor,
    first: Tensor,
    length: Tensor,
) -> tuple[Tensor, Tensor]:
    # The outline consists of edges; a row's cells lie between the first and the last that cross it.
    starts, ends = (list(corners) for corners in zip(*EDGES, strict=True))
    x0, x1, y0, y1 = (
        k.index_select(1, rectangle) for k in (x[starts], x[ends], y[starts], y[ends])
    )
    center = row + 0.5
    crosses = (y0 > center) != (y1 > center)
    crossing = x0 + (x1 - x0) * (center - y0) / (y1 - y0) - 0.5
    is_free = ~is_clipped.index_select(0, rectangle)
    low = torch.where(crosses, crossing, torch.inf).amin(0).masked_fill(is_free, -torch.inf)
    high = torch.where(crosses, crossing, -torch.inf).amax(0).masked_fill(is_free, torch.inf)
    low = low.ceil().clamp(first, first + length)
    high = (high.floor() + 1).clamp(low, first + length)
    return low.long(), high.long()


class Neighbors(NamedTuple):
    """All ordered pairs of bodies in the same scene, sorted by body."""

    body: Tensor  # (p,)
    other: Tensor  # (p,)
    num_others: Tensor  # (m,) number of pairs of a body
    first: Tensor  # (m,) index of the first pair of a body


def find_neighbors(bodies: Bodies) -> Neighbors:
    """List the pairs of bodies in the same scene."""
    count = torch.bincount(bodies.scene)
    start = count.cumsum(0) - count
    num_others = count[bodies.scene] - 1
    body, k = expand_counts(num_others)
    other = start[bodies.scene[body]] + k
    return Neighbors(body, other + (other >= body), num_others, num_others.cumsum(0) - num_others)


@fused()
def _sort_key(t: Tensor) -> Tensor:
    return (t.view(torch.int32).long() << 32) | torch.arange(t.shape[0], device=t.device)


def nearest_hits(t: Tensor, ray: Tensor, rays: int) -> tuple[Tensor, Tensor]:
    """The pair with the smallest t of each ray: (ray, pair) of every ray that hits something.

    Distance and index of a pair share one 64-bit key, so the minimum is exact and has no ties.
    """
    best = torch.full((rays,), torch.iinfo(torch.int64).max, device=t.device)
    best.scatter_reduce_(0, ray, _sort_key(t), "amin")
    infinite = 0x7F800000 << 32
    hit = torch.nonzero(best < infinite)[:, 0]
    return hit, best.index_select(0, hit) & 0xFFFFFFFF


def box_corners(bodies: Bodies, margin: Tensor, facing: Vec | None = None) -> Vec:
    """The 8 corners of a bounding box of each body, (8, ..., m), grown by a margin, (..., m).

    The boxes of round bodies are turned towards the points `facing`, (..., m), if these are given:
    seen from there, they are the smallest.
    """
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3).T.to(bodies.radius.device)
    half = bodies.radius + margin  # (..., m)
    x, y, z = (sign.view(8, *[1] * half.dim()) * half for sign in signs)
    center, cos, sin = Vec.unstack(bodies.center), bodies.cos, bodies.sin
    if facing is not None:
        toward = normalize(Vec(facing.x - center.x, facing.y - center.y, torch.zeros_like(half)))
        is_cube = (bodies.core > 0) & ~bodies.is_cylinder
        cos, sin = torch.where(is_cube, cos, toward.x), torch.where(is_cube, sin, toward.y)
    return Vec(cos * x - sin * y, sin * x + cos * y, z) + center


def pixel_candidates(
    bodies: Bodies, cameras: Cameras, width: int, height: int
) -> tuple[Tensor, Tensor]:
    """(pixel, body) pairs in which the pixel may show the body; pixels count over all scenes."""
    column, row, depth = _screen_boxes(bodies, cameras, width, height, bodies.radius.new_zeros(1))
    low, high = (torch.stack([k(column, 0), k(row, 0)]) for k in (torch.amin, torch.amax))
    spans = rasterize(low - 1, high + 1, (width, height))
    # Supersamples are less than a pixel away from centers. A pixel is so wide at a body:
    size = torch.maximum(
        cameras.right.square().sum(0).sqrt() / width, cameras.up.square().sum(0).sqrt() / height
    )
    margin = 2 * size[bodies.scene] * depth.amax(0)
    column, row, _ = _screen_boxes(bodies, cameras, width, height, margin)
    spans = clip_to_boxes(spans, column, row, depth.amin(0) > 0.5)
    first = (bodies.scene[spans.rectangle] * height + spans.row) * width + spans.first
    span, pixel = expand_counts(spans.length, first)
    return pixel, spans.rectangle.index_select(0, span)


@fused()
def _screen_boxes(
    bodies: Bodies, cameras: Cameras, width: int, height: int, margin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(8, m): column, row and depth of the corners of boxes grown by a margin, in pixels."""
    origin, right, up, forward = (take_vec(table, bodies.scene) for table in cameras)
    offset = box_corners(bodies, margin, origin) - origin
    depth = dot(offset, forward).clamp(min=1e-3)
    across = dot(offset, right) / dot(right, right) / depth  # −1 … 1 over the frame
    above = dot(offset, up) / dot(up, up) / depth
    return (0.5 + across / 2) * width, (0.5 - above / 2) * height, depth
