"""Many scenes as one structured array, for the renderer and for transfer between processes.

An array is one piece of memory, where a list of scenes is thousands of small objects to pickle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from macnet.clevr.program import SceneIndex
from macnet.clevr.scene import (
    ATTRIBUTES,
    DIRECTIONS,
    MAX_OBJECTS,
    MIN_OFFSET,
    RELATIONS,
    Object,
    Scene,
)

SCENE_DTYPE = np.dtype(
    [
        ("num_objects", np.int64),  # the other rows of poses and attributes are zero
        ("camera", np.float64, 3),
        ("lamps", np.float64, (3, 3)),
        ("poses", np.float64, (MAX_OBJECTS, 3)),  # x, y and rotation
        ("attributes", np.uint8, (MAX_OBJECTS, 4)),  # indices of the values in ATTRIBUTES
    ],
    align=True,
)
_ATTRIBUTE_INDEX = [{value: i for i, value in enumerate(values)} for values in ATTRIBUTES.values()]


def scenes_to_array(scenes: Sequence[Scene] | np.ndarray) -> np.ndarray:
    """(s,) of SCENE_DTYPE; an array is returned as it is."""
    if isinstance(scenes, np.ndarray):
        return scenes
    sizes, colors, materials, shapes = _ATTRIBUTE_INDEX
    objects = [o for scene in scenes for o in scene.objects]
    array = np.zeros(len(scenes), SCENE_DTYPE)
    array["num_objects"] = [len(scene.objects) for scene in scenes]
    array["camera"] = np.reshape([scene.camera for scene in scenes], (-1, 3))
    array["lamps"] = np.reshape([scene.lamps for scene in scenes], (-1, 3, 3))
    if objects:
        mask = object_mask(array)
        array["poses"][mask] = [(o.x, o.y, o.rotation) for o in objects]
        array["attributes"][mask] = [
            (sizes[o.size], colors[o.color], materials[o.material], shapes[o.shape])
            for o in objects
        ]
    return array


def object_mask(array: np.ndarray) -> np.ndarray:
    """(s, 10) bool: which rows of poses and attributes belong to an object."""
    mask: np.ndarray = np.arange(MAX_OBJECTS) < array["num_objects"][:, None]
    return mask


def array_to_scenes(array: np.ndarray) -> list[Scene]:
    """The inverse of `scenes_to_array`."""
    sizes, colors, materials, shapes = ATTRIBUTES.values()
    scenes = []
    # (As lists, column by column: numbers are slow to take out of an array one at a time.)
    columns = (array[name].tolist() for name in SCENE_DTYPE.names or ())
    for count, camera, (key, fill, back), poses, attributes in zip(*columns, strict=True):
        objects = tuple(
            Object(sizes[a], colors[b], materials[c], shapes[d], *pose)
            for (a, b, c, d), pose in zip(attributes[:count], poses[:count], strict=True)
        )
        scenes.append(Scene(objects, tuple(camera), (tuple(key), tuple(fill), tuple(back))))
    return scenes


def array_to_indices(array: np.ndarray) -> list[SceneIndex]:
    """Index the scenes of an array for programs: faster than by way of `Scene` objects."""
    x, y = array["poses"][:, :, 0], array["poses"][:, :, 1]  # (s, 10)
    dx, dy = (c[:, None, :] - c[:, :, None] for c in (x, y))  # (s, 10, 10): from i to j
    bits = np.where(object_mask(array), 1 << np.arange(MAX_OBJECTS), 0)  # (s, 10)
    related = []
    for name in RELATIONS:
        along_x, along_y, _ = DIRECTIONS[name]
        is_related = dx * along_x + dy * along_y > MIN_OFFSET  # (s, 10, 10)
        related.append(np.where(is_related, bits[:, None, :], 0).sum(2).tolist())
    indices = []
    columns = array["num_objects"].tolist(), array["attributes"].transpose(0, 2, 1).tolist()
    for count, attributes, *masks in zip(*columns, *related, strict=True):
        values = {
            name: [words[a] for a in column[:count]]
            for (name, words), column in zip(ATTRIBUTES.items(), attributes, strict=True)
        }
        related_of = {name: mask[:count] for name, mask in zip(RELATIONS, masks, strict=True)}
        indices.append(SceneIndex.from_columns(values, related_of))
    return indices
