"""A table holds scenes whole: nothing is lost on the way in and out, or when it is cut."""

import pickle
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.clevr.program import SceneIndex
from macnet.clevr.scene import ATTRIBUTES, MAX_OBJECTS, Object, Scene
from macnet.clevr.scene_array import array_to_indices, array_to_scenes, object_mask, scenes_to_array

number = st.floats(-1e9, 1e9)
vector = st.tuples(number, number, number)
objects = st.builds(
    Object,
    *(st.sampled_from(values) for values in ATTRIBUTES.values()),
    x=number, y=number, rotation=number,
)  # fmt: skip
scenes = st.lists(
    st.builds(
        Scene,
        st.lists(objects, max_size=MAX_OBJECTS).map(tuple),
        vector,
        st.tuples(vector, vector, vector),
    ),
    max_size=5,
)


@given(scenes, st.data())
@settings(max_examples=60, deadline=None)
def test_what_goes_in_comes_out(given_scenes: list[Scene], data: Any) -> None:
    table = scenes_to_array(given_scenes)
    assert array_to_scenes(table) == given_scenes
    assert array_to_scenes(pickle.loads(pickle.dumps(table))) == given_scenes
    assert scenes_to_array(table) is table
    assert object_mask(table).sum() == sum(len(scene.objects) for scene in given_scenes)
    which = data.draw(st.lists(st.booleans(), min_size=len(table), max_size=len(table)))
    kept = [scene for scene, keep in zip(given_scenes, which, strict=True) if keep]
    assert array_to_scenes(table[np.array(which, bool)]) == kept


@given(scenes)
@settings(max_examples=60, deadline=None)
def test_scenes_are_indexed_alike_in_an_array(given_scenes: list[Scene]) -> None:
    indices = array_to_indices(scenes_to_array(given_scenes))
    for index, scene in zip(indices, given_scenes, strict=True):
        for name in SceneIndex.__slots__:
            assert getattr(index, name) == getattr(SceneIndex(scene), name), name
        assert list(index.related) == list(SceneIndex(scene).related)
