"""Bodies and rays in kernels: the formulas of `shapes.py`, for a tile of rays and one body.

A number is a tensor with one value per ray, or a scalar where all rays have the same.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from macnet.clevr.kernels.constants import BISECTIONS, INFINITY, MAX_GAP, NEWTON_STEPS
from macnet.clevr.kernels.tables import BODIES_AT, BODY_SIZE


class Vec(NamedTuple):
    """A vector, or a color: red, green and blue."""

    x: Any
    y: Any
    z: Any


class Body(NamedTuple):
    """An object as a solid; its columns are explained in `shapes.Bodies`."""

    center: Vec
    radius: Any
    inverse: Any  # of the radius
    bound: Any
    cos: Any
    sin: Any
    core: Any
    is_cylinder: Any


@triton.jit
def any_of(mask):
    """Whether one value of a mask is true, as a scalar: a tile skips what none of it needs."""
    return tl.max(mask.to(tl.int32), 0) > 0


# --- vectors ---------------------------------------------------------------------------------


@triton.jit
def add(a, b):
    return Vec(a.x + b.x, a.y + b.y, a.z + b.z)


@triton.jit
def sub(a, b):
    """Difference of vectors."""
    return Vec(a.x - b.x, a.y - b.y, a.z - b.z)


@triton.jit
def times(a, factor):
    return Vec(a.x * factor, a.y * factor, a.z * factor)


@triton.jit
def along(a, b, factor):
    """a + factor · b."""
    return Vec(a.x + b.x * factor, a.y + b.y * factor, a.z + b.z * factor)


@triton.jit
def multiply(a, b):
    """Component by component."""
    return Vec(a.x * b.x, a.y * b.y, a.z * b.z)


@triton.jit
def dot(a, b):
    return a.x * b.x + a.y * b.y + a.z * b.z


@triton.jit
def cross(a, b):
    return Vec(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x)


@triton.jit
def normalize(v):
    return times(v, tl.rsqrt(tl.maximum(dot(v, v), 1e-12)))


@triton.jit
def reflect(direction, n):
    """Mirror a direction at the plane with normal n."""
    return along(direction, n, -2.0 * dot(direction, n))


@triton.jit
def select(condition, a, b):
    return Vec(
        tl.where(condition, a.x, b.x), tl.where(condition, a.y, b.y), tl.where(condition, a.z, b.z)
    )


@triton.jit
def load_vec(ptr):
    """Three numbers in a row."""
    return Vec(tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2))


# --- one body --------------------------------------------------------------------------------


@triton.jit
def load_body(row_ptr, index):
    """Body `index` of the scene with this row of the table; one for all rays, or one for each."""
    ptr = row_ptr + BODIES_AT + index * BODY_SIZE
    radius = tl.load(ptr + 2)
    center = Vec(tl.load(ptr), tl.load(ptr + 1), radius)  # it rests on the floor
    inverse, bound, cos = tl.load(ptr + 3), tl.load(ptr + 4), tl.load(ptr + 5)
    sin, core, is_cylinder = tl.load(ptr + 6), tl.load(ptr + 7), tl.load(ptr + 8) > 0.5
    return Body(center, radius, inverse, bound, cos, sin, core, is_cylinder)


@triton.jit
def load_material(row_ptr, index):
    """Color of a body, and whether it is of metal."""
    ptr = row_ptr + BODIES_AT + index * BODY_SIZE
    return load_vec(ptr + 9), tl.load(ptr + 12) > 0.5


@triton.jit
def to_object_space(v, body):
    """Rotate and scale vectors into the space in which the body has radius 1."""
    cos, sin = body.cos * body.inverse, body.sin * body.inverse
    return Vec(cos * v.x + sin * v.y, cos * v.y - sin * v.x, v.z * body.inverse)


@triton.jit
def signed_distance(p, d, body):
    """Signed distance of points p to the body, in its space, and the derivative in direction d."""
    # (Of roots only the inverse is computed: it saves a division, which costs more than a root.)
    square = tl.maximum(p.x * p.x + p.y * p.y, 1e-12)
    inverse = tl.rsqrt(square)
    x = tl.where(body.is_cylinder, square * inverse, tl.abs(p.x)) - body.core
    y = tl.where(body.is_cylinder, 0.0, tl.abs(p.y)) - body.core
    z = tl.abs(p.z) - body.core
    # (The sign of zero does not matter: it is multiplied by zero.)
    around = (p.x * d.x + p.y * d.y) * inverse
    dx = tl.where(body.is_cylinder, around, tl.where(p.x < 0, -d.x, d.x))
    dy, dz = tl.where(p.y < 0, -d.y, d.y), tl.where(p.z < 0, -d.z, d.z)
    inside = tl.minimum(tl.maximum(tl.maximum(x, y), z), 0.0)
    x, y, z = tl.maximum(x, 0.0), tl.maximum(y, 0.0), tl.maximum(z, 0.0)
    square = x * x + y * y + z * z
    inverse = tl.rsqrt(tl.maximum(square, 1e-18))
    slope = (x * dx + y * dy + z * dz) * inverse
    return square * inverse + inside - (1 - body.core), slope


@triton.jit
def _slab(p, d):
    step = 1 / tl.where(tl.abs(d) < 1e-9, 1e-9, d)
    near, far = (-1 - p) * step, (1 - p) * step
    return tl.minimum(near, far), tl.maximum(near, far)


@triton.jit
def intersect(body, origin, direction):
    """Distance along each ray at which it enters the body; infinity if it misses."""
    p = to_object_space(sub(origin, body.center), body)
    d = to_object_space(direction, body)
    # The part of the ray within the bounding box, by the slab method.
    in_x, out_x = _slab(p.x, d.x)
    in_y, out_y = _slab(p.y, d.y)
    in_z, out_z = _slab(p.z, d.z)
    first = tl.maximum(tl.maximum(in_x, in_y), in_z)
    last = tl.minimum(tl.minimum(out_x, out_y), out_z)
    t = first
    for _step in range(NEWTON_STEPS):
        gap, slope = signed_distance(along(p, d, t), d, body)
        t += tl.maximum(gap / tl.maximum(-slope, 1e-3), 0.0)
    gap = signed_distance(along(p, d, t), d, body)[0]
    is_hit = (first < last) & (first > 0) & (t <= last) & (gap < MAX_GAP)
    return tl.where(is_hit, t, INFINITY)


@triton.jit
def surface_normal(body, point):
    """Outward normal at a point of the body's surface: away from the nearest point of its core."""
    p = to_object_space(sub(point, body.center), body)
    x = tl.maximum(tl.abs(p.x) - body.core, 0.0)
    y = tl.maximum(tl.abs(p.y) - body.core, 0.0)
    z = tl.maximum(tl.abs(p.z) - body.core, 0.0)
    inverse = tl.rsqrt(tl.maximum(p.x * p.x + p.y * p.y, 1e-12))
    side = tl.maximum(1 - body.core * inverse, 0.0)
    x = tl.where(body.is_cylinder, p.x * side, tl.where(p.x < 0, -x, x))
    y = tl.where(body.is_cylinder, p.y * side, tl.where(p.y < 0, -y, y))
    z = tl.where(p.z < 0, -z, z)
    return normalize(Vec(body.cos * x - body.sin * y, body.sin * x + body.cos * y, z))


@triton.jit
def closest_approach(body, origin, direction):
    """Smallest signed distance of each ray to the body, and the position along it where it is."""
    offset = sub(body.center, origin)
    p = to_object_space(times(offset, -1.0), body)
    d = to_object_space(direction, body)
    middle = dot(offset, direction)
    low, high = tl.maximum(middle - body.bound, 0.0), tl.maximum(middle + body.bound, 0.0)
    rises = tl.zeros_like(middle) + body.inverse  # the slopes at low and high
    falls = -rises
    for _step in range(BISECTIONS):
        t = (low + high) / 2
        slope = signed_distance(along(p, d, t), d, body)[1]
        falling = slope < 0
        low, high = tl.where(falling, t, low), tl.where(falling, high, t)
        falls, rises = tl.where(falling, slope, falls), tl.where(falling, rises, slope)
    # Interpolate to where the slope is zero: bisection alone would leave ripples in penumbras.
    t = low - falls * (high - low) / tl.maximum(rises - falls, 1e-6)
    gap = signed_distance(along(p, d, t), d, body)[0]
    return gap * body.radius, t


@triton.jit
def near_sphere(body, margin, origin, direction):
    """Whether each ray hits the body's bounding sphere, enlarged by `margin`."""
    offset = sub(body.center, origin)
    along_ray = dot(offset, direction)
    bound = body.bound + margin
    return (dot(offset, offset) - along_ray * along_ray < bound * bound) & (along_ray > -bound)
