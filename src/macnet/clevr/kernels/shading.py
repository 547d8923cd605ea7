"""What rays see: ground and cove, rubber, and metal, which mirrors them; as in `surface.py`.

A ray that meets metal goes on as its mirror image, once. Its radiance is the sum of what each body
on the way adds, times the share that the mirrors before it let through.
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
    bleed = Vec(
        sample_layer(scene.bleed, place, BLEED_SIZE),
        sample_layer(scene.bleed + BLEED_SIZE * BLEED_SIZE, place, BLEED_SIZE),
        sample_layer(scene.bleed + 2 * BLEED_SIZE * BLEED_SIZE, place, BLEED_SIZE),
    )
    beyond = COVE_X * x + COVE_Y * y
    cove = COVE_ON_GROUND + COVE_AT_BEND * tl.sigmoid((beyond - BEND) / BEND_WIDTH)
    return along(Vec(cove, cove, cove), add(light, bleed), GROUND_ALBEDO / PI)


@triton.jit
def environment(scene, origin, direction, wanted):
    """Radiance of ground, cove and black sky along the wanted rays, ignoring bodies."""
    toward_cove = COVE_X * direction.x + COVE_Y * direction.y
    cove = COVE_RADIANCE * tl.sigmoid((toward_cove - direction.z) * 20)
    seen = Vec(cove, cove, cove)
    is_down = direction.z < HORIZON
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
def direct_light(scene, index, is_metal, n, brushing, across, cos, point, direction, wanted):
    """Light of the lamps at points on bodies: what arrives, and what their gloss reflects."""
    zero = tl.zeros_like(point.x)
    soft, gloss = Vec(zero, zero, zero), Vec(zero, zero, zero)
    quarter = 0.25 / cos
    for number in range(NUM_LIGHTS):
        light = load_light(scene.row, number)
        to_light, full = incident_light(light, point)
        full *= 1 - body_shadow(scene, number, light, index, point, wanted)
        facing = dot(to_light, n)
        half = normalize(sub(to_light, direction))
        h, a, c = tl.maximum(dot(half, n), 1e-3), dot(half, brushing), dot(half, across)
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
        lobe = tl.where(is_metal, BRUSHED * brushed + (1 - BRUSHED) * spot, beckmann)
        gloss = along(gloss, light.color, tl.where(facing > 0, full * lobe * quarter, 0.0))
        soft = along(soft, light.color, full * tl.maximum(facing, 0.0))
    return soft, gloss


@triton.jit
def brushed_light(scene, depth, n, brushing, across, mirror, point, direction, wanted):
    """Mean of the environment along rays that a brushed surface scatters, in a fixed pattern."""
    rays = tl.where(depth == 0, RAYS_SEEN, RAYS_REFLECTED)
    ptr = scene.row + BRUSH_AT + 2 * RAYS_SEEN * depth
    total = Vec(tl.zeros_like(n.x), tl.zeros_like(n.x), tl.zeros_like(n.x))
    for i in range(rays):
        tilted = along(n, brushing, tl.load(ptr + 2 * i))
        tilted = along(tilted, across, tl.load(ptr + 2 * i + 1))
        ray = reflect(direction, normalize(tilted))
        ray = select(dot(ray, n) > 0, ray, mirror)
        total = add(total, environment(scene, point, ray, wanted))
    return times(total, 1.0 / rays)


@triton.jit
def reflected_light(scene, depth, index, point, direction, wanted):
    """What bodies send towards the viewer, at wanted points on the bodies `index`.

    Returns what they send without their mirror image, the weight and direction of that, and
    whether they are of metal.
    """
    body = load_body(scene.row, index)
    color, is_metal = load_material(scene.row, index)
    n = surface_normal(body, point)
    cos = tl.maximum(-dot(direction, n), MIN_COS)
    mirror = reflect(direction, n)
    # The tangents along the brushing, which goes around the body's axis, and across it.
    x, y = body.center.y - point.y, point.x - body.center.x
    turning = Vec(x, y, tl.zeros_like(x))
    brushing = normalize(along(turning, n, -dot(turning, n)))
    across = cross(n, brushing)
    soft, gloss = direct_light(
        scene, index, is_metal, n, brushing, across, cos, point, direction, wanted
    )
    if any_of(wanted & is_metal):
        blurred = brushed_light(
            scene, depth, n, brushing, across, mirror, point, direction, wanted & is_metal
        )
        gloss = select(is_metal, along(gloss, blurred, BRUSHED), gloss)
    if any_of(wanted & ~is_metal):
        soft = add(soft, indirect_light(scene, n, point))
    coat, sheen = fresnel(cos, COAT_INDEX), fresnel(cos, SHEEN_INDEX)
    coat_weight = RUBBER_GLOSS * coat
    paint = times(multiply(color, soft), (1 - 0.5 * sheen) * (1 - coat) * (1 / PI))
    sent = select(is_metal, multiply(color, gloss), along(paint, gloss, coat_weight))
    white = Vec(coat_weight, coat_weight, coat_weight)
    weight = select(is_metal, times(color, 1 - BRUSHED), white)
    return sent, weight, mirror, is_metal


@triton.jit
def hit_others(scene, index, origin, direction, wanted):
    """The nearest body along wanted rays that leave the bodies `index`: distance, and which."""
    nearest, found = tl.full(index.shape, INFINITY, tl.float32), index
    for other in range(scene.count):
        body = load_body(scene.row, other)
        near = wanted & (index != other) & near_sphere(body, 0.0, origin, direction)
        if any_of(near):
            t = intersect(body, origin, direction)
            closer = near & (t < nearest)
            nearest, found = tl.where(closer, t, nearest), tl.where(closer, other, found)
    return nearest, found


@triton.jit
def shade(scene, index, point, direction, wanted):
    """Radiance of the bodies `index` at wanted points, towards where the rays come from."""
    zero = tl.zeros_like(point.x)
    radiance, share = Vec(zero, zero, zero), Vec(zero + 1, zero + 1, zero + 1)
    for depth in range(2):  # `bounces` of fast quality is 1
        if any_of(wanted):
            sent, weight, mirror, is_metal = reflected_light(
                scene, depth, index, point, direction, wanted
            )
            t, found = tl.full(index.shape, INFINITY, tl.float32), index
            if depth == 0:
                t, found = hit_others(scene, index, point, mirror, wanted & is_metal)
            goes_on = t < INFINITY
            seen = environment(scene, point, mirror, wanted & ~goes_on)
            sent = add(sent, multiply(weight, times(seen, tl.where(goes_on, 0.0, 1.0))))
            # What is seen in a mirror is clamped: a lamp reflected twice would make fireflies.
            limit = tl.where(depth == 0, INFINITY, 1.0)
            sent = Vec(
                tl.minimum(sent.x, limit), tl.minimum(sent.y, limit), tl.minimum(sent.z, limit)
            )
            radiance = select(wanted, add(radiance, multiply(share, sent)), radiance)
            share, wanted, index = multiply(share, weight), goes_on, found
            point = select(goes_on, along(point, mirror, t), point)
            direction = mirror
    return radiance
