"""How much of an object others hide, and how accuracy depends on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from asked_data import asked, dataset_of, ids
from macnet.clevr.render import occluded_fractions, render
from macnet.clevr.scene import MAX_OBJECTS, Object, Scene
from macnet.clevr.world import World, generate_scenes
from macnet.data.question_arrays import TokenizedQuestion, program_ids
from macnet.data.vocab import ANSWERS
from macnet.errors import InputError
from macnet.evaluation.accuracy import Proportion
from macnet.evaluation.occlusion import (
    BINS,
    NO_OBJECT,
    max_occlusion,
    measure_occlusion,
    show_occlusion,
)

CAMERA = (7.4, -6.4, 5.3)


def on_the_line_of_sight(near: str, far: str, apart: float) -> Scene:
    """Two objects of which the first stands between the camera and the second."""
    size_of = dict(zip(("near", "far"), (near, far), strict=True))
    places = {"near": apart, "far": 0.0}
    return Scene(
        tuple(
            Object(size_of[name], color, "rubber", "cube", CAMERA[0] * at, CAMERA[1] * at, 0.0)
            for (name, at), color in zip(places.items(), ("red", "blue"), strict=True)
        ),
        CAMERA,
    )


BEHIND = on_the_line_of_sight("large", "small", 0.2)
BESIDE = on_the_line_of_sight("small", "large", 0.6)


def test_hidden_is_what_an_object_would_show_alone_and_does_not() -> None:
    size = 96, 64
    scenes = [*generate_scenes(World(3, width=96, height=64), "val", range(3), "cpu"), BEHIND]
    found = occluded_fractions(scenes, *size)
    assert found.shape == (4, MAX_OBJECTS)
    process_group = render(scenes, *size).visible.numpy()
    each = [replace(scene, objects=(thing,)) for scene in scenes for thing in scene.objects]
    alone = iter(render(each, *size).visible[:, 0].tolist())
    for scene, shares, visible in zip(scenes, found, process_group, strict=True):
        assert np.isnan(shares[len(scene.objects) :]).all()
        for i in range(len(scene.objects)):
            assert shares[i] == 1 - visible[i] / next(alone)
    assert np.nanmax(found[:3]) > 0.2, "something hides something"
    assert found[3, 0] == 0
    assert found[3, 1] > 0.9


def question(program: str, answer: str, image: int) -> TokenizedQuestion:
    return TokenizedQuestion([4], ANSWERS.index(answer), program_ids(program.split()), image)


ASKED = [
    question("query_color unique filter_size[small] scene", "blue", 0),
    question("query_color unique filter_size[large] scene", "red", 0),
    question("count filter_shape[cube] scene", "2", 0),
    question("count filter_shape[sphere] scene", "0", 0),
    question("query_size unique relate[behind] unique filter_color[red] scene", "large", 1),
]


def test_it_is_the_most_hidden_object_that_a_program_visits() -> None:
    dataset = dataset_of(ASKED, images=[row.image for row in ASKED])
    found = max_occlusion(dataset, {0: BEHIND, 1: BESIDE})
    behind, beside = occluded_fractions([BEHIND, BESIDE])[:, 1]
    assert behind > 0.75 > 0.05 > beside
    assert found.tolist()[:3] == [behind, 0.0, behind]
    assert np.isnan(found[3]), "there is nothing that it asks about"
    assert found[4] == beside
    few = replace(dataset, selected=dataset.selected[3:])
    np.testing.assert_array_equal(max_occlusion(few, {0: BEHIND, 1: BESIDE}), found[3:])

    shares = measure_occlusion(dataset, ids("red", "red", "2", "0", "large"), found)
    assert list(shares) == list(BINS)
    assert shares["over 75%"] == Proportion(1, 2)
    assert shares["up to 5%"] == Proportion(2, 2)
    assert shares[NO_OBJECT] == Proportion(1, 1)
    assert sum(share.total for share in shares.values()) == 5


@pytest.mark.parametrize(
    ("share", "name"),
    [
        (0.0, BINS[0]),
        (0.05, BINS[0]),
        (0.051, BINS[1]),
        (0.5, BINS[2]),
        (0.76, BINS[4]),
        (1, BINS[4]),
    ],
)
def test_bins_end_with_their_edge(share: float, name: str) -> None:
    found = measure_occlusion(dataset_of([asked("1", "count")]), ids("1"), np.array([share]))
    assert found[name] == Proportion(1, 1)


def test_what_cannot_be_told() -> None:
    with pytest.raises(InputError, match="come without programs, so it is not known"):
        max_occlusion(dataset_of([asked("1")], questions="people.json"), {0: BEHIND})
    unfit = question("query_color unique filter_shape[cube] scene", "red", 0)
    with pytest.raises(InputError, match=r"question 0 does not fit the scene of image 0 \(`unique"):
        max_occlusion(dataset_of([unfit]), {0: BEHIND})


def test_a_table_of_what_there_is() -> None:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as captured:
        found = measure_occlusion(
            dataset_of([asked("1", "count")] * 2), ids("1", "2"), np.array([0, 0.6])
        )
        show_occlusion(found, console)
    lines = captured.get().splitlines()
    assert lines[0].strip() == "By the most hidden object asked about"
    assert [line.split()[0] for line in lines[4:6]] == ["up", "50%"]
    assert len(lines) == 7
