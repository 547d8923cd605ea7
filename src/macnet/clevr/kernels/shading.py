"""What rays see: ground and cove, rubber, and metal, which mirrors them; as in `surface.py`.

A ray that meets a body goes on as its mirror image. Its radiance is the sum of what it meets on its
way, times the share that the mirrors before let through. Each formula stands once in the loop over
the way: the time to compile grows with more than the square of the code.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from macnet.clevr.kernels.bounds import BOUNDS_SIZE, OCCLUDERS_AT, count_bodies
from macnet.clevr.kernels.constants import (
    ALPHA_ACROSS,
    ALPHA_ALONG,
    ALPHA_MIRROR,
    BEHIND_X,
    BEHIND_Y,
    BEND,
    BEND_WIDTH,
    BLEED_SIZE,
    BLUR_SIZE,
    BRUSHED,
    COAT_INDEX,
    COVE_ABOVE,
    COVE_AT_BEND,
    COVE_BEHIND,
    COVE_ON_BODIES,
    COVE_ON_GROUND,
    COVE_RADIANCE,
    COVE_X,
    COVE_Y,
    FACED_GROUND,
    GROUND_ALBEDO,
    HORIZON,
    INFINITY,
    MAX_GAP,
    MAX_OBJECTS,
    MIN_COS,
    NUM_LIGHTS,
    PI,
    RUBBER_GLOSS,
    RUBBER_ROUGHNESS,
    SHEEN_INDEX,
)
from macnet.clevr.kernels.geometry import (
    Vec,
    add,
    along,
    any_of,
    cross,
    dot,
    intersect,
    load_body,
    load_material,
    multiply,
    near_sphere,
    normalize,
    reflect,
    select,
    sub,
    surface_normal,
    times,
)
from macnet.clevr.kernels.maps import (
    find_place,
    load_light,
    sample_layer,
    shadow_share,
)
from macnet.clevr.kernels.tables import BRUSH_AT, RAYS_REFLECTED, RAYS_SEEN, ROW_SIZE


class Scene(NamedTuple):
    """What shading knows about one scene; pointers are to the scene's own part."""

    row: Any  # of the table
    bounds: Any
    shadows: Any  # (4, r, r)
    blurred: Any  # (4, 16, 16)
    bleed: Any  # (3, 128, 128)
    resolution: Any  # r
    count: Any  # of its bodies


@triton.jit
def open_scene(scene, table_ptr, bounds_ptr, shadows_ptr, blurred_ptr, bleed_ptr, resolution):
    """Scene number `scene` of all that were prepared."""
    row_ptr = table_ptr + scene * ROW_SIZE
    return Scene(
        row_ptr,
        bounds_ptr + scene * MAX_OBJECTS * BOUNDS_SIZE,
        shadows_ptr + scene * NUM_LIGHTS * resolution * resolution,
        blurred_ptr + scene * NUM_LIGHTS * BLUR_SIZE * BLUR_SIZE,
        bleed_ptr + scene * 3 * BLEED_SIZE * BLEED_SIZE,
        resolution,
        count_bodies(row_ptr),
    )


# --- ground and cove -------------------------------------------------------------------------


@triton.jit
def incident_light(light, point):
    """Direction to a light, and its unshadowed irradiance at a surface that faces it."""
    offset = sub(light.location, point)
    inverse = tl.rsqrt(dot(offset, offset))
    direction = times(offset, inverse)
    # A lamp faces the origin, and is a Lambertian emitter.
    cosine = tl.maximum(dot(direction, light.location), 0.0)
    return direction, light.strength * cosine * inverse * inverse


@triton.jit
def ground_irradiance(scene, shadows_ptr, resolution, x, y):
    """Irradiance of points on the ground, with the shadows of one of the two maps."""
    point = Vec(x, y, tl.zeros_like(x))
    place = find_place(x, y, resolution)
    total = Vec(tl.zeros_like(x), tl.zeros_like(x), tl.zeros_like(x))
    for number in range(NUM_LIGHTS):
        light = load_light(scene.row, number)
        direction, full = incident_light(light, point)
        shadow = sample_layer(shadows_ptr + number * resolution * resolution, place, resolution)
        total = along(total, light.color, full * direction.z * (1 - shadow))
    return total


@triton.jit
def ground(scene, origin, direction):
    """Radiance of the ground along rays that point down."""
    far = origin.z / tl.maximum(-direction.z, 1e-4)
    x, y = origin.x + far * direction.x, origin.y + far * direction.y
    light = ground_irradiance(scene, scene.shadows, scene.resolution, x, y)
    place = find_place(x, y, BLEED_SIZE)
    for channel in range(3):
        bleed = sample_layer(scene.bleed + channel * BLEED_SIZE * BLEED_SIZE, place, BLEED_SIZE)
        red = tl.where(channel == 0, bleed, 0.0)
        green = tl.where(channel == 1, bleed, 0.0)
        blue = tl.where(channel == 2, bleed, 0.0)
        light = add(light, Vec(red, green, blue))
    beyond = COVE_X * x + COVE_Y * y
    cove = COVE_ON_GROUND + COVE_AT_BEND * tl.sigmoid((beyond - BEND) / BEND_WIDTH)
    return along(Vec(cove, cove, cove), light, GROUND_ALBEDO / PI)


@triton.jit
def environment(scene, origin, direction, wanted, is_from_camera):
    """Radiance of ground, cove and black sky along the wanted rays, ignoring bodies.

    The camera sees nothing but ground, as in `render._backdrop`.
    """
    toward_cove = COVE_X * direction.x + COVE_Y * direction.y
    cove = COVE_RADIANCE * tl.sigmoid((toward_cove - direction.z) * 20)
    seen = Vec(cove, cove, cove)
    is_down = (direction.z < HORIZON) | is_from_camera
    if any_of(is_down & wanted):
        seen = select(is_down, ground(scene, origin, direction), seen)
    return seen


@triton.jit
def indirect_light(scene, n, point):
    """Irradiance of a body's surface from ground and cove."""
    x, y = point.x + FACED_GROUND * n.x, point.y + FACED_GROUND * n.y
    light = ground_irradiance(scene, scene.blurred, BLUR_SIZE, x, y)
    toward_cove = COVE_BEHIND * (BEHIND_X * n.x + BEHIND_Y * n.y) + COVE_ABOVE * n.z
    facing = 0.5 + 0.5 * toward_cove
    cove = COVE_ON_BODIES * facing * facing
    return along(Vec(cove, cove, cove), light, GROUND_ALBEDO * (0.5 - 0.5 * n.z))


# --- bodies ----------------------------------------------------------------------------------


@triton.jit
def fresnel(cos, index: tl.constexpr):
    """Fresnel reflectance of a dielectric coat with this index of refraction."""
    g = tl.sqrt(index * index - 1 + cos * cos)
    a = (g - cos) / (g + cos)
    b = (cos * (g + cos) - 1) / (cos * (g - cos) + 1)
    return 0.5 * a * a * (1 + b * b)


class Surface(NamedTuple):
    """Where rays meet bodies."""

    point: Vec
    n: Vec
    brushing: Vec  # tangent along the brushing of metal, which goes around the body's axis
    across: Vec
    color: Vec
    is_metal: Any


@triton.jit
def find_surface(scene, index, point):
    """The surface of the bodies `index` at points."""
    body = load_body(scene.row, index)
    color, is_metal = load_material(scene.row, index)
    n = surface_normal(body, point)
    x, y = body.center.y - point.y, point.x - body.center.x
    turning = Vec(x, y, tl.zeros_like(x))
    brushing = normalize(along(turning, n, -dot(turning, n)))
    return Surface(point, n, brushing, cross(n, brushing), color, is_metal)


@triton.jit
def body_shadow(scene, number, light, index, point, wanted):
    """Share of a light that other bodies occlude, at wanted points on the bodies `index`."""
    ptr = scene.bounds + index * BOUNDS_SIZE + OCCLUDERS_AT + number
    occluders = tl.load(ptr, mask=wanted, other=0)
    bodies = tl.reduce_or(occluders, 0)  # that matter to any of the points
    share = tl.zeros_like(point.x)
    for other in range(scene.count):
        if (bodies >> other) & 1:
            body = load_body(scene.row, other)
            may = ((occluders >> other) & 1) != 0
            share = tl.maximum(share, shadow_share(light, body, point, may))
    return share


@triton.jit
def direct_light(scene, surface, index, cos, direction, wanted):
    """Light of the lamps at points on bodies: what arrives, and what their gloss reflects."""
    point, n = surface.point, surface.n
    zero = tl.zeros_like(point.x)
    soft, gloss = Vec(zero, zero, zero), Vec(zero, zero, zero)
    quarter = 0.25 / cos
    for number in range(NUM_LIGHTS):
        light = load_light(scene.row, number)
        to_light, full = incident_light(light, point)
        full *= 1 - body_shadow(scene, number, light, index, point, wanted)
        facing = dot(to_light, n)
        half = normalize(sub(to_light, direction))
        h = tl.maximum(dot(half, n), 1e-3)
        a, c = dot(half, surface.brushing), dot(half, surface.across)
        inverse = 1 / (h * h)
        # Rubber: a Beckmann lobe. (Divisions are slow: one by h² serves both exponents.)
        rough = 1 / (RUBBER_ROUGHNESS * RUBBER_ROUGHNESS)
        beckmann = tl.exp((1 - inverse) * rough) * (inverse * inverse * (rough / PI))
        # Metal: an anisotropic GGX lobe, and the lamp's mirror image.
        a, c = a * (1 / ALPHA_ALONG), c * (1 / ALPHA_ACROSS)
        width = a * a + c * c + h * h
        brushed = 1 / (PI * ALPHA_ALONG * ALPHA_ACROSS * width * width)
        sharp = 1 / (ALPHA_MIRROR * ALPHA_MIRROR)
        spot = tl.exp((1 - inverse) * sharp) * (sharp / PI)
        lobe = tl.where(surface.is_metal, BRUSHED * brushed + (1 - BRUSHED) * spot, beckmann)
        gloss = along(gloss, light.color, tl.where(facing > 0, full * lobe * quarter, 0.0))
        soft = along(soft, light.color, full * tl.maximum(facing, 0.0))
    return soft, gloss


@triton.jit
def sent_light(scene, surface, index, direction, wanted):
    """What bodies send against rays, but for what they mirror and scatter; the mirror's weight."""
    cos = tl.maximum(-dot(direction, surface.n), MIN_COS)
    soft, gloss = direct_light(scene, surface, index, cos, direction, wanted)
    if any_of(wanted & ~surface.is_metal):
        soft = add(soft, indirect_light(scene, surface.n, surface.point))
    coat, sheen = fresnel(cos, COAT_INDEX), fresnel(cos, SHEEN_INDEX)
    coat_weight = RUBBER_GLOSS * coat
    paint = (1 - 0.5 * sheen) * (1 - coat) * (1 / PI)
    of_rubber = along(times(multiply(surface.color, soft), paint), gloss, coat_weight)
    sent = select(surface.is_metal, multiply(surface.color, gloss), of_rubber)
    white = Vec(coat_weight, coat_weight, coat_weight)
    return sent, select(surface.is_metal, times(surface.color, 1 - BRUSHED), white)


@triton.jit
def scattered_ray(scene, depth, i, surface, direction):
    """The i-th ray that brushed metal scatters, in a fixed pattern."""
    ptr = scene.row + BRUSH_AT + 2 * (RAYS_SEEN * depth + i)
    tilted = along(surface.n, surface.brushing, tl.load(ptr))
    tilted = normalize(along(tilted, surface.across, tl.load(ptr + 1)))
    ray = reflect(direction, tilted)
    return select(dot(ray, surface.n) > 0, ray, reflect(direction, surface.n))


@triton.jit
def hit_bodies(scene, leaving, origin, direction, wanted, slack):
    """The nearest body along wanted rays that leave the bodies `leaving`: distance, and which.

    Rays that miss a body's bounding sphere by more than `slack`, a share of its radius, miss it.
    """
    nearest, found = tl.full(leaving.shape, INFINITY, tl.float32), tl.zeros_like(leaving)
    for index in range(scene.count):
        body = load_body(scene.row, index)
        near = near_sphere(body, slack * body.radius, origin, direction)
        near &= wanted & (leaving != index)
        if any_of(near):
            t = intersect(body, origin, direction)
            closer = near & (t < nearest)
            nearest, found = tl.where(closer, t, nearest), tl.where(closer, index, found)
    return nearest, found


@triton.jit
def radiance_along(scene, origin, direction, wanted):
    """Radiance along wanted rays from the camera."""
    zero = tl.zeros_like(direction.x)
    nothing, everything = Vec(zero, zero, zero), Vec(zero + 1, zero + 1, zero + 1)
    origin = add(origin, nothing)
    total, share = nothing, everything
    # What a ray has seen before it meets a body in a mirror, and the share of that mirror.
    before, mirrored, in_mirror = nothing, everything, zero > 1
    leaving, may_hit = tl.full(zero.shape, -1, tl.int32), wanted
    for depth in range(3):  # from the camera, from a mirror and, as `bounces` is 1, to no body
        if any_of(wanted):
            t, index = tl.full(zero.shape, INFINITY, tl.float32), leaving
            if depth < 2:
                # Those from the camera may hit a body by the rounding of its surface alone.
                slack = tl.where(depth == 0, MAX_GAP, 0.0)
                t, index = hit_bodies(scene, leaving, origin, direction, may_hit, slack)
            hit = t < INFINITY
            point = along(origin, direction, tl.where(hit, t, 0.0))
            surface = Surface(point, direction, direction, direction, nothing, hit)
            sent, weight = nothing, nothing
            if any_of(hit):
                surface = find_surface(scene, index, point)
                sent, weight = sent_light(scene, surface, index, direction, hit)
            if depth == 1:
                before, mirrored = select(hit, total, before), select(hit, share, mirrored)
                total, share = select(hit, nothing, total), select(hit, everything, share)
                in_mirror = hit
            total = select(hit, add(total, multiply(share, sent)), total)

            # Ground and cove: along the ray, if it hits nothing, and along those of brushed metal.
            metal = hit & surface.is_metal
            rays = tl.where(depth == 0, RAYS_SEEN, RAYS_REFLECTED)
            of_brushed = times(multiply(share, surface.color), BRUSHED / rays)
            for i in range(-1, tl.where(any_of(metal), rays, 0)):
                seeing = tl.where(i < 0, wanted & ~hit, metal)
                if any_of(seeing):
                    ray = scattered_ray(scene, depth, tl.maximum(i, 0), surface, direction)
                    seen = environment(
                        scene,
                        select(i < 0, origin, point),
                        select(i < 0, direction, ray),
                        seeing,
                        (depth == 0) & (i < 0),
                    )
                    seen = multiply(seen, select(i < 0, share, of_brushed))
                    total = select(seeing, add(total, seen), total)

            share = select(hit, multiply(share, weight), share)
            origin, direction = point, select(hit, reflect(direction, surface.n), direction)
            leaving, wanted, may_hit = index, hit, metal
    # What is seen in a mirror is clamped: a lamp reflected twice would make fireflies.
    limited = Vec(tl.minimum(total.x, 1.0), tl.minimum(total.y, 1.0), tl.minimum(total.z, 1.0))
    return select(in_mirror, add(before, multiply(mirrored, limited)), total)
