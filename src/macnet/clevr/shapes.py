"""Intersection of rays with CLEVR's three shapes.

Sphere, rounded cube and bevelled cylinder are one family of solids: all points within a distance of
1 − core from a smaller box or cylinder of half-side `core` (0 for the sphere), times a radius. The
distance to a convex solid is convex along a ray, so Newton's method from outside converges to the
entry point without overshooting, and bisection finds the point of closest approach.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.camera import ASPECT, FOCAL, camera_axes
from macnet.clevr.scene import RADIUS, SHAPES, SIZES
from macnet.clevr.scene_array import object_mask
from macnet.clevr.vector import Vec, dot, normalize, point_at, select, take, take_vec

# Fitted to outlines and highlights of original images; in the original meshes, the flat part of a
# cube's face is 0.77 and of a cylinder's top 0.92.
CORE = {"cube": 0.82, "sphere": 0.0, "cylinder": 0.94}
CYLINDER = SHAPES.index("cylinder")
BOUNDING_RADIUS = {"cube": 3**0.5, "sphere": 1.0, "cylinder": 2**0.5}  # in units of the radius
NEWTON_STEPS = 5
MAX_GAP = 2e-3  # between a body and a ray that hits it, in units of the radius
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
    is_hit = (first < last) & (first > 0) & (t <= last) & (gap < MAX_GAP)
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
