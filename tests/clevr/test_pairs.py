"""Lists of pairs are short, and nothing that matters is missing from them."""

import itertools
import random

import pytest
import torch
from torch import Tensor

from macnet.clevr import light
from macnet.clevr.columns import concatenate, narrow, split
from macnet.clevr.light import build_lighting
from macnet.clevr.pairs import (
    Spans,
    expand_counts,
    find_neighbors,
    pixel_candidates,
    rasterize,
    remove_spans,
)
from macnet.clevr.render import FILTER_WIDTH, Samples, _intersect, _pixel_centers
from macnet.clevr.scene import Scene, sample_scenes
from macnet.clevr.scene_array import scenes_to_array
from macnet.clevr.shapes import Bodies, build_bodies, build_cameras

CPU = torch.device("cpu")


def sample(seed: str, count: int) -> list[Scene]:
    return sample_scenes([random.Random(f"{seed}/{i}") for i in range(count)])


def odd_lamps(scene: Scene) -> Scene:
    """Right above a body, between bodies, and hardly higher than they are."""
    first = scene.objects[0]
    return Scene(
        scene.objects, scene.camera, ((first.x, first.y, 4.0), (1.0, 1.0, 0.9), (2, -3, 2))
    )


SCENES = [*sample("pairs", 3), *map(odd_lamps, sample("odd", 3))]


def cells(spans: Spans) -> set[tuple[int, int, int]]:
    span, column = expand_counts(spans.length, spans.first)
    return set(
        zip(*(k.tolist() for k in (spans.rectangle[span], column, spans.row[span])), strict=True)
    )


def test_counts_expand_to_owners_and_ranks() -> None:
    owner, rank = expand_counts(torch.tensor([2, 0, 3]))
    assert owner.tolist() == [0, 0, 2, 2, 2]
    assert rank.tolist() == [0, 1, 0, 1, 2]
    _, rank = expand_counts(torch.tensor([2, 0, 3]), torch.tensor([10, 20, 30]))
    assert rank.tolist() == [10, 11, 30, 31, 32]


def test_rectangles_are_rasterized_within_limits() -> None:
    low, high = torch.tensor([[-1.5, 3.2], [0.5, 1.0]]), torch.tensor([[1.5, 9.0], [1.5, 2.0]])
    expected = {(0, x, y) for x in (0, 1) for y in (0, 1)} | {(1, x, 1) for x in (3, 4, 5)}
    assert cells(rasterize(low, high, (6, 4))) == expected


def test_the_middle_of_a_span_can_be_removed() -> None:
    spans = Spans(*torch.tensor([[0, 1, 2], [5, 6, 7], [0, 10, 20], [4, 4, 4]]))
    middle = Spans(*torch.tensor([[1, 2], [6, 7], [11, 24], [2, 0]]))
    left = cells(remove_spans(spans, torch.tensor([1, 2]), middle))
    assert left == cells(spans) - cells(middle)
    assert len(left) == 10


def test_tables_are_split_and_concatenated() -> None:
    table = (torch.arange(10), Samples(*torch.arange(30).view(3, 10)))
    parts = split(table, [3, 0, 7])
    assert [part[0].tolist() for part in parts] == [[0, 1, 2], [], [*range(3, 10)]]
    assert isinstance(parts[0][1], Samples)
    assert narrow(table, 4, 2)[1].y.tolist() == [24, 25]
    numbers, samples = concatenate(parts)
    assert torch.equal(numbers, table[0])
    assert all(map(torch.equal, samples, table[1]))


@pytest.mark.parametrize(("width", "height"), [(60, 40), (32, 48)])
def test_every_ray_that_hits_a_body_is_a_candidate(width: int, height: int) -> None:
    """All rays of all supersamples are intersected with all bodies."""
    array = scenes_to_array(SCENES[:3])
    bodies, cameras = build_bodies(array, CPU), build_cameras(array, CPU)
    listed = set(
        zip(*(k.tolist() for k in pixel_candidates(bodies, cameras, width, height)), strict=True)
    )
    centers = _pixel_centers(len(array), width, height, CPU)
    pixel, body = torch.nonzero(centers.scene[:, None] == bodies.scene).unbind(1)
    hit = torch.zeros(len(pixel), dtype=torch.bool)
    for right, down in itertools.product((-0.375, -0.125, 0, 0.125, 0.375), repeat=2):
        x = centers.x + right * FILTER_WIDTH / width
        y = centers.y + down * FILTER_WIDTH / height
        hit |= _intersect(bodies, cameras, Samples(centers.scene, x, y), pixel, body) < torch.inf
    hits = set(zip(pixel[hit].tolist(), body[hit].tolist(), strict=True))
    assert hits <= listed
    assert len(listed) < 3 * len(hits)


def test_shadows_are_those_of_all_texels_that_they_might_cover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clipping rows to outlines, and filling umbras, changes no bit of the shadow map."""
    array = scenes_to_array(SCENES)
    bodies = build_bodies(array, CPU)

    def shadows() -> Tensor:
        return build_lighting(array, bodies, find_neighbors(bodies), 128).shadows

    ours = shadows()
    monkeypatch.setattr(light, "_shadow_spans", unclipped)
    assert torch.equal(ours, shadows())
    assert 0.02 < (ours == 1).float().mean() < (ours > 0).float().mean() < 0.5


def unclipped(bodies: Bodies, lights: light.Lights, resolution: int) -> tuple[Spans, Spans]:
    penumbra = lights.penumbra.view(4, -1)[:, bodies.scene]
    x, y = light._cast_boxes(bodies, lights, resolution, False, penumbra)
    low, high = torch.stack([x.amin(0), y.amin(0)]), torch.stack([x.amax(0), y.amax(0)])
    spans = rasterize(low, high, (resolution, resolution))
    return spans, Spans(*(column[:0] for column in spans))
