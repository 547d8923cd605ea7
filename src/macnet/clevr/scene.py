"""CLEVR scenes (objects on a floor, a camera, three lamps), how to sample them, and their records.

All randomness comes from one `random.Random` per scene, so a scene depends on its seed alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from macnet.clevr.camera import CAMERA, Vector, fit_camera, project
from macnet.errors import InputError

Condition = Literal["A", "B"]

# The attributes, in the order in which programs filter by them.
SIZES = ("large", "small")
COLORS = ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
MATERIALS = ("rubber", "metal")
SHAPES = ("cube", "sphere", "cylinder")
ATTRIBUTES = {"size": SIZES, "color": COLORS, "material": MATERIALS, "shape": SHAPES}
RADIUS: Mapping[str, float] = {"large": 0.7, "small": 0.35}

MIN_OBJECTS, MAX_OBJECTS = 3, 10
HALF_FLOOR = 3.0  # objects are centred within ±3 in x and y
MIN_GAP = 0.25  # between the bounding circles of two objects
MARGIN = 0.4  # between two objects along each direction, so that "left of" is never ambiguous
MIN_OFFSET = 0.2  # along a direction, from which on an object is "left of" another
MAX_TRIES = 50  # to place one object, before the whole scene is sampled again
MAX_REPROJECTION_ERROR = 2.0  # of a fitted camera, in pixels
MIN_VISIBLE_SHARE = 200 / (480 * 320)  # of the image's pixels, that every object must cover

CAMERA_JITTER = 0.5
LAMPS: Mapping[str, Vector] = {
    "key": (6.447, -2.905, 4.258),
    "fill": (-4.671, -4.014, 3.011),
    "back": (-1.169, 2.646, 5.816),
}
LAMP_JITTER = 1.0

# The same for every scene: the release computes them before it jitters the camera.
DIRECTIONS: Mapping[str, Vector] = {
    "right": (0.6563112735748291, 0.7544902563095093, -0.0),
    "behind": (-0.754490315914154, 0.6563112735748291, 0.0),
    "above": (0.0, 0.0, 1.0),
    "left": (-0.6563112735748291, -0.7544902563095093, 0.0),
    "below": (-0.0, -0.0, -1.0),
    "front": (0.754490315914154, -0.6563112735748291, -0.0),
}
RELATIONS = ("left", "right", "front", "behind")

# The colors that a shape may have in CoGenT. Spheres have all of them in both conditions.
_COOL, _WARM = ("gray", "blue", "brown", "yellow"), ("red", "green", "purple", "cyan")
COGENT_COLORS: Mapping[Condition, Mapping[str, tuple[str, ...]]] = {
    "A": {"cube": _COOL, "cylinder": _WARM, "sphere": COLORS},
    "B": {"cube": _WARM, "cylinder": _COOL, "sphere": COLORS},
}


@dataclass(frozen=True, slots=True)
class Object:
    """An object of a scene: its attributes, its position on the floor and its rotation."""

    size: str
    color: str
    material: str
    shape: str
    x: float
    y: float
    rotation: float
    """Yaw, said to be in degrees; but the release gave it to Blender as radians, and so do we."""

    @property
    def center(self) -> Vector:
        """Location of the center; its height is the radius, as the object rests on the floor."""
        return self.x, self.y, RADIUS[self.size]


@dataclass(frozen=True)
class Scene:
    """Objects, and the locations of the camera and of the key, fill and back lamps."""

    objects: tuple[Object, ...]
    camera: Vector = CAMERA
    lamps: tuple[Vector, Vector, Vector] = (LAMPS["key"], LAMPS["fill"], LAMPS["back"])

    @cached_property
    def relationships(self) -> dict[str, list[list[int]]]:
        """relationships["left"][i] lists the objects to the left of object i."""
        masks = related_objects([(o.x, o.y) for o in self.objects])
        return {
            name: [
                [j for j in range(len(self.objects)) if others >> j & 1] for others in masks[name]
            ]
            for name in ("right", "behind", "front", "left")
        }


def related_objects(positions: Sequence[tuple[float, float]]) -> dict[str, list[int]]:
    """Relation → for each object, the objects in this relation to it: bit j for object j."""
    related = {name: [0] * len(positions) for name in RELATIONS}
    for one, opposite in ("right", "left"), ("behind", "front"):
        along_x, along_y, _ = DIRECTIONS[one]
        ahead, back = related[one], related[opposite]
        for i, (x, y) in enumerate(positions):
            for j in range(i):
                distance = (positions[j][0] - x) * along_x + (positions[j][1] - y) * along_y
                if distance > MIN_OFFSET:
                    ahead[i] |= 1 << j
                    back[j] |= 1 << i
                elif distance < -MIN_OFFSET:
                    back[i] |= 1 << j
                    ahead[j] |= 1 << i
    return related


# --- sampling scenes -------------------------------------------------------------------------

# Most tries to place an object fail because another one is too close along a direction. So the
# floor is divided into strips across each direction, and those near an object are marked. They are
# fewer than the margin covers, by more than any rounding: what is not marked is tested exactly.
_STRIPS = 100  # per unit of length
_CENTER_STRIP = 5.0 * _STRIPS  # the corners of the floor are less than 5 away from its center
_MARKED = int(MARGIN * _STRIPS) - 2  # on either side of an object
_MARKS = bytes([1]) * (2 * _MARKED)


def place_objects(
    rng: random.Random, count: int, condition: Condition | None = None
) -> tuple[Object, ...]:
    """Sample objects and their positions; if one does not fit in 50 tries, all are resampled."""
    (right_x, right_y, _), (behind_x, behind_y, _) = DIRECTIONS["right"], DIRECTIONS["behind"]
    # (Local variables, because this loop is most of the work of sampling a scene.)
    right_x_strips, right_y_strips = right_x * _STRIPS, right_y * _STRIPS
    behind_x_strips, behind_y_strips = behind_x * _STRIPS, behind_y * _STRIPS
    draw, floor, half_floor, center = rng.random, 2 * HALF_FLOOR, HALF_FLOOR, _CENTER_STRIP
    while True:
        placed: list[tuple[str, str, str, str, float, float, float]] = []
        spots: list[tuple[float, float, float]] = []
        marked_right, marked_behind = bytearray(10 * _STRIPS), bytearray(10 * _STRIPS)
        while len(placed) < count:
            size = SIZES[_below(len(SIZES), rng)]
            radius = RADIUS[size]
            for _ in range(MAX_TRIES):
                x, y = floor * draw() - half_floor, floor * draw() - half_floor
                right = int(x * right_x_strips + y * right_y_strips + center)
                if marked_right[right]:
                    continue
                behind = int(x * behind_x_strips + y * behind_y_strips + center)
                if marked_behind[behind]:
                    continue
                for x0, y0, r0 in spots:
                    dx, dy = x - x0, y - y0
                    if (
                        math.hypot(dx, dy) - radius - r0 < MIN_GAP
                        or abs(dx * right_x + dy * right_y) < MARGIN
                        or abs(dx * behind_x + dy * behind_y) < MARGIN
                    ):
                        break
                else:
                    break
            else:
                break  # there is no room for this object: start over
            shape = SHAPES[_below(len(SHAPES), rng)]
            colors = COGENT_COLORS[condition][shape] if condition else COLORS
            color = colors[_below(len(colors), rng)]
            rotation = 360 * draw()
            material = MATERIALS[_below(len(MATERIALS), rng)]
            placed.append((size, color, material, shape, x, y, rotation))
            spots.append((x, y, radius))
            marked_right[right - _MARKED : right + _MARKED] = _MARKS
            marked_behind[behind - _MARKED : behind + _MARKED] = _MARKS
        else:
            return tuple([Object(*values) for values in placed])


def _below(n: int, rng: random.Random) -> int:
    """A random integer below n: the index that `rng.choice` would draw, in half the time."""
    bits = n.bit_length()
    while (drawn := rng.getrandbits(bits)) >= n:
        pass
    return drawn


def sample_scenes(
    rngs: Sequence[random.Random],
    all_visible: Callable[[list[Scene]], Iterable[bool]] | None = None,
    condition: Condition | None = None,
    num_objects: tuple[int, int] = (MIN_OBJECTS, MAX_OBJECTS),
) -> list[Scene]:
    """Sample one scene per generator; objects are resampled until all of them are visible.

    `num_objects` are the smallest and the largest number of objects, which are equally likely.
    `all_visible` tests many scenes at once, because it renders them. Without it, there is no test,
    and objects may occlude each other.
    """

    def jittered(location: Vector, amount: float, rng: random.Random) -> Vector:
        x, y, z = location
        offset = rng.uniform
        return x + offset(-amount, amount), y + offset(-amount, amount), z + offset(-amount, amount)

    counts = []
    scenes: list[Scene] = []
    for rng in rngs:
        counts.append(rng.randint(*num_objects))
        camera = jittered(CAMERA, CAMERA_JITTER, rng)
        key, fill, back = (jittered(LAMPS[name], LAMP_JITTER, rng) for name in LAMPS)
        scenes.append(Scene((), camera, (key, fill, back)))
    pending = list(range(len(scenes)))
    while pending:
        for i in pending:
            objects = place_objects(rngs[i], counts[i], condition)
            scenes[i] = Scene(objects, scenes[i].camera, scenes[i].lamps)
        if all_visible is None:
            break
        verdicts = all_visible([scenes[i] for i in pending])
        pending = [i for i, visible in zip(pending, verdicts, strict=True) if not visible]
    return scenes


# --- the released schema ---------------------------------------------------------------------


def to_record(
    scene: Scene, split: str, index: int, filename: str, width: int, height: int
) -> dict[str, Any]:
    """A scene in the released schema, with two additional fields: its camera and its lamps."""
    centers = np.array([o.center for o in scene.objects]).reshape(-1, 3)
    pixels = project(scene.camera, centers, width, height)
    return {
        "split": split,
        "image_index": index,
        "image_filename": filename,
        "objects": [
            {
                "color": o.color,
                "size": o.size,
                "rotation": o.rotation,
                "shape": o.shape,
                "3d_coords": list(o.center),
                "material": o.material,
                "pixel_coords": [round(px), round(py), depth],
            }
            for o, (px, py, depth) in zip(scene.objects, pixels.tolist(), strict=True)
        ],
        "relationships": scene.relationships,
        "directions": {name: list(vector) for name, vector in DIRECTIONS.items()},
        "camera": list(scene.camera),
        "lamps": dict(zip(LAMPS, map(list, scene.lamps), strict=True)),
    }


def from_record(
    record: Mapping[str, Any], where: str, width: int = 480, height: int = 320
) -> Scene:
    """Parse a scene of the release, a generated or a handwritten one; errors call it `where`.

    `width` and `height` are those of the image that its `pixel_coords` refer to. If it has neither
    these nor a camera, it gets the standard camera; without lamps, it gets the standard lamps.
    """
    objects = read_objects(record, where)
    items = record["objects"]
    if "camera" in record:
        camera = _vector(record["camera"], where, '"camera"')
        if math.hypot(*camera[:2]) < 1e-3:
            raise InputError(f'{where}: "camera" is right above the origin, and so has no upside')
    elif any("pixel_coords" in item for item in items):
        camera = _camera_from_pixels(objects, items, where, width, height)
    else:
        camera = CAMERA
    lamps = record.get("lamps", LAMPS)
    key, fill, back = (
        _vector(_field(lamps, name, where, '"lamps"'), where, f"lamp {name}") for name in LAMPS
    )
    return Scene(objects, camera, (key, fill, back))


def read_objects(record: Mapping[str, Any], where: str) -> tuple[Object, ...]:
    """The objects of a scene's record: all that questions are about."""
    items = _field(record, "objects", where, "the scene")
    if not isinstance(items, list):
        raise InputError(f'{where}: "objects" is not a list')
    if len(items) > MAX_OBJECTS:
        raise InputError(f"{where}: {len(items)} objects; a scene holds {MAX_OBJECTS} at most")
    return tuple(_read_object(item, where, f"object {i}") for i, item in enumerate(items))


def _read_object(item: Any, where: str, what: str) -> Object:
    values = {name: _field(item, name, where, what) for name in ATTRIBUTES}
    for name, value in values.items():
        if value not in ATTRIBUTES[name]:
            choices = ", ".join(ATTRIBUTES[name])
            raise InputError(
                f"{where}: {what} has the unknown {name} {value!r}; known are {choices}"
            )
    if "3d_coords" in item:
        x, y, _ = _vector(item["3d_coords"], where, f'"3d_coords" of {what}')
    elif "x" in item and "y" in item:
        x, y = (_number(item[axis], where, f'"{axis}" of {what}') for axis in "xy")
    else:
        raise InputError(f'{where}: {what} has no "3d_coords", nor both "x" and "y"')
    rotation = _number(item.get("rotation", 0), where, f'"rotation" of {what}')
    return Object(**values, x=x, y=y, rotation=rotation)


def _camera_from_pixels(
    objects: Sequence[Object], items: Sequence[Any], where: str, width: int, height: int
) -> Vector:
    pixels = []
    for i, item in enumerate(items):
        what = f"object {i}"
        seen = _field(item, "pixel_coords", where, f"{what}, in a scene without a camera,")
        pixels.append(_vector(seen, where, f'"pixel_coords" of {what}'))
    points, wanted = np.array([o.center for o in objects]), np.array(pixels)
    with np.errstate(all="ignore"):  # invalid input shows in the error below
        camera = fit_camera(points, wanted, width, height)
        error = np.abs(project(camera, points, width, height) - wanted)[:, :2].max()
    if not error < MAX_REPROJECTION_ERROR:
        raise InputError(
            f'{where}: no camera sees the objects at their "pixel_coords"; '
            f"are they those of a {width}x{height} image?"
        )
    return camera


def _field(holder: Any, name: str, where: str, what: str) -> Any:
    if not isinstance(holder, Mapping) or name not in holder:
        raise InputError(f'{where}: {what} has no "{name}"')
    return holder[name]


def _vector(value: Any, where: str, what: str) -> Vector:
    if not isinstance(value, list | tuple) or len(value) != 3 or not all(map(_is_number, value)):
        raise InputError(f"{where}: {what} is {value!r}; it must be three numbers")
    x, y, z = map(float, value)
    return x, y, z


def _number(value: Any, where: str, what: str) -> float:
    if not _is_number(value):
        raise InputError(f"{where}: {what} is {value!r}, not a number")
    return float(value)


def _is_number(value: Any) -> bool:
    # Bounded, because integers in JSON may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
