"""Many scenes as one array: what the renderer reads, and what processes send each other.

A list of scenes is thousands of small objects to take apart and put together again; an array is
one piece of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from macnet.clevr.scene import ATTRIBUTES, MAX_OBJECTS, Object, Scene

SCENE = np.dtype(
    [
        ("count", np.int64),  # of its objects; the other rows below are zero
        ("camera", np.float64, 3),
        ("lamps", np.float64, (3, 3)),
        ("places", np.float64, (MAX_OBJECTS, 3)),  # x, y and rotation
        ("kinds", np.uint8, (MAX_OBJECTS, 4)),  # size, colour, material and shape, in ATTRIBUTES
    ],
    align=True,
)
_KINDS = [{value: i for i, value in enumerate(values)} for values in ATTRIBUTES.values()]


def tabulate(scenes: Sequence[Scene] | np.ndarray) -> np.ndarray:
    """(s,) of SCENE; what is a table already stays one."""
    if isinstance(scenes, np.ndarray):
        return scenes
    sizes, colors, materials, shapes = _KINDS
    objects = [o for scene in scenes for o in scene.objects]
    table = np.zeros(len(scenes), SCENE)
    table["count"] = [len(scene.objects) for scene in scenes]
    table["camera"] = np.reshape([scene.camera for scene in scenes], (-1, 3))
    table["lamps"] = np.reshape([scene.lamps for scene in scenes], (-1, 3, 3))
    if objects:
        there = occupied(table)
        table["places"][there] = [(o.x, o.y, o.rotation) for o in objects]
        table["kinds"][there] = [
            (sizes[o.size], colors[o.color], materials[o.material], shapes[o.shape])
            for o in objects
        ]
    return table


def occupied(table: np.ndarray) -> np.ndarray:
    """(s, 10) bool: which rows of a scene's objects are in use."""
    there: np.ndarray = np.arange(MAX_OBJECTS) < table["count"][:, None]
    return there


def to_scenes(table: np.ndarray) -> list[Scene]:
    """The scenes again, equal to those that were tabulated."""
    sizes, colors, materials, shapes = ATTRIBUTES.values()
    scenes = []
    # (As lists, column by column: numbers are slow to take out of an array one at a time.)
    columns = (table[name].tolist() for name in ("count", "camera", "lamps", "places", "kinds"))
    for count, camera, (key, fill, back), places, kinds in zip(*columns, strict=True):
        objects = tuple(
            Object(sizes[a], colors[b], materials[c], shapes[d], *place)
            for (a, b, c, d), place in zip(kinds[:count], places[:count], strict=True)
        )
        scenes.append(Scene(objects, tuple(camera), (tuple(key), tuple(fill), tuple(back))))
    return scenes
