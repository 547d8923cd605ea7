"""A world is a function of its seed; its stream stops and goes on without a trace."""

import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from macnet.clevr.families import QUESTION_FAMILIES
from macnet.clevr.questions import Question, TemplateInstance
from macnet.clevr.scene import COGENT_COLORS
from macnet.clevr.scene_array import array_to_scenes
from macnet.clevr.stream import Block, Stream
from macnet.clevr.world import World, generate_questions, generate_scenes
from macnet.errors import InputError

pytestmark = pytest.mark.usefixtures("small_blocks")
WORLD = World(seed=3, width=36, height=24, questions_per_image=3)
IMAGES_PER_BLOCK = 50  # images


def take(count: int, **options: Any) -> list[Block]:
    with Stream(WORLD, **options) as stream:
        return [next(stream) for _ in range(count)]


def assert_same(some: list[Block], others: list[Block]) -> None:
    assert len(some) == len(others)
    for a, b in zip(some, others, strict=True):
        assert a.number == b.number
        assert a.scenes.tobytes() == b.scenes.tobytes()
        assert a.questions == b.questions
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.objects, b.objects)


@pytest.fixture(scope="module")
def unbroken(small_blocks: int) -> list[Block]:
    return take(3)


def test_a_block_holds_what_it_says(unbroken: list[Block]) -> None:
    assert [block.number for block in unbroken] == [0, 1, 2]
    for block in unbroken:
        assert block.images.shape == (IMAGES_PER_BLOCK, 24, 36, 3)
        assert block.images.dtype == torch.uint8
        assert block.objects.shape == (IMAGES_PER_BLOCK, 24, 36)
        scenes = array_to_scenes(block.scenes)
        for scene, mask, questions in zip(scenes, block.objects, block.questions, strict=True):
            assert set(mask.unique().tolist()) == {-1, *range(len(scene.objects))}
            assert len(questions) == 3
            assert all(isinstance(question, Question) for question in questions)


def test_a_stream_is_its_world(unbroken: list[Block]) -> None:
    scenes = [scene for block in unbroken for scene in array_to_scenes(block.scenes)]
    assert (
        generate_scenes(WORLD, "train", range(2 * IMAGES_PER_BLOCK + 9), "cpu")
        == scenes[: 2 * IMAGES_PER_BLOCK + 9]
    )
    for block in unbroken:
        asked = generate_questions(WORLD, "train", block.number, array_to_scenes(block.scenes))
        assert asked == block.questions


def test_going_on_is_as_if_never_stopped(unbroken: list[Block]) -> None:
    with Stream(WORLD) as stopped:
        next(stopped)
    assert_same(take(1, position=stopped.position), unbroken[1:2])


@pytest.mark.usefixtures("warm_workers")
def test_workers_change_nothing(unbroken: list[Block]) -> None:
    assert_same(take(2, position=1, workers=2), unbroken[1:])


def test_shards_share_out_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("macnet.clevr.stream.render", _blank)
    monkeypatch.setattr("macnet.clevr.render.MIN_VISIBLE_SHARE", 0.0)
    monkeypatch.setattr("macnet.clevr.world.generate_questions", lambda *_: None)
    numbers = [[block.number for block in take(3, shard=(k, 2))] for k in range(2)]
    assert numbers == [[0, 2, 4], [1, 3, 5]]
    assert [block.number for block in take(2, shard=(1, 2), position=1)] == [3, 5]


def _blank(scenes: np.ndarray, *_: object, **__: object) -> list[torch.Tensor]:
    return [torch.zeros(len(scenes))] * 3


def test_who_waits_for_a_task_is_told_that_it_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a thread that works ahead, when the workers end before it."""
    begun: list[Future[Any]] = []

    class Idle(Executor):
        def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            begun.append(Future())
            return begun[-1]

    monkeypatch.setattr("macnet.clevr.stream.pool", lambda workers: nullcontext(Idle()))
    stream = Stream(WORLD, workers=1)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(next, stream)
        while not begun:
            time.sleep(0.001)
        time.sleep(0.05)  # it waits now
        for future in begun:
            future.cancel()
        with pytest.raises(CancelledError):
            waiting.result(timeout=10)


def words(asked: Sequence[Sequence[Question | TemplateInstance]]) -> int:
    return sum(len(question.text.split()) for questions in asked for question in questions)


@pytest.mark.usefixtures("warm_workers")
def test_questions_are_encoded_where_they_are_made(unbroken: list[Block]) -> None:
    (block,) = take(1, encode=words, workers=1, position=1)
    assert block.questions == words(unbroken[1].questions)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_images_stay_there_and_going_on_is_exact() -> None:
    blocks = take(6, device="cuda", workers=2)
    assert all(block.images.is_cuda and block.objects.is_cuda for block in blocks)
    assert_same(take(3, device="cuda", position=3), blocks[3:])


@pytest.mark.parametrize("other", [{"seed": 4}, {"condition": "A"}])
def test_another_world_is_another_world(unbroken: list[Block], other: dict[str, Any]) -> None:
    world = World(**{"seed": 3, "width": 36, "height": 24} | other)
    scenes = generate_scenes(world, "train", range(10), "cpu")
    assert not set(scenes) & set(array_to_scenes(unbroken[0].scenes))
    assert generate_scenes(world, "val", range(10), "cpu") != scenes


@pytest.mark.parametrize("condition", ["A", "B"])
def test_a_condition_decides_the_colours(condition: Any) -> None:
    world = World(seed=1, condition=condition, width=48, height=32)
    objects = [
        o for scene in generate_scenes(world, "val", range(30), "cpu") for o in scene.objects
    ]
    assert {o.shape for o in objects} == set(COGENT_COLORS[condition])
    assert all(o.color in COGENT_COLORS[condition][o.shape] for o in objects)


EASIER = World(
    seed=1, width=48, height=32, num_objects=(2, 4), families=("zero_hop", "same_relate")
)


def test_an_easier_world_has_fewer_objects_and_simpler_questions() -> None:
    with Stream(EASIER) as stream:
        block = next(stream)
    scenes = array_to_scenes(block.scenes)
    assert {len(scene.objects) for scene in scenes} == {2, 3, 4}
    assert scenes[:9] == generate_scenes(EASIER, "train", range(9), "cpu")
    asked = {QUESTION_FAMILIES[q.family].group for few in block.questions for q in few}
    assert asked == {"zero_hop", "same_relate"}


def test_only_an_easier_world_mentions_how_it_differs_from_clevr() -> None:
    own = {"num_objects": [2, 4], "families": ["same_relate", "zero_hop"]}
    assert EASIER.deviations == own
    assert str(EASIER) == "world 1 of 2 to 4 objects with questions of same_relate, zero_hop"
    record = {"seed": 1, "condition": None, "width": 48, "height": 32, "quality": "fast"}
    record |= {"questions_per_image": 10}
    assert EASIER.to_record() == {**record, **own}
    assert replace(EASIER, families=("zero_hop", "zero_hop", "same_relate")) == EASIER
    clevr = World(seed=1, width=48, height=32, num_objects=[3, 10])  # type: ignore[arg-type]
    assert (clevr.to_record(), str(clevr)) == (record, "world 1")


@pytest.mark.parametrize("where", [{"position": -1}, {"shard": (2, 2)}, {"shard": (-1, 2)}])
def test_a_start_outside_the_stream_is_refused(where: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="there is no block"):
        Stream(WORLD, **where)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"width": 0}, "`size` is 0x320"),
        ({"width": 23, "height": 16}, "`size` is 23x16; it must be at least 24x16"),
        ({"height": -1}, "`size` is 480x-1"),
        ({"questions_per_image": 0}, "`questions_per_image` is 0"),
        ({"questions_per_image": 91}, "`questions_per_image` is 91"),
        ({"quality": "best"}, "`quality` is 'best'"),
        ({"condition": "C"}, "`condition` is 'C'"),
        ({"num_objects": (0, 3)}, "`num_objects` is 0 3; it must be the smallest and the largest"),
        ({"num_objects": (4, 3)}, "`num_objects` is 4 3"),
        ({"num_objects": (3,)}, "`num_objects` is 3; it must be the smallest and the largest"),
        ({"num_objects": (3, 11)}, "`num_objects` is 3 11; .* from 1 to 10"),
        ({"families": ("four_hop",)}, "`families` has 'four_hop'; known are compare_integer, "),
        ({"families": ("zero_hop",)}, "`questions_per_image` is 10; it must lie between 1 and 6"),
    ],
)
def test_settings_that_make_no_world(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        World(seed=1, **settings)


def fail(asked: list[list[TemplateInstance]]) -> None:
    raise RuntimeError("cannot encode")


@pytest.mark.usefixtures("warm_workers")
def test_a_failure_in_a_worker_is_a_failure_here() -> None:
    with (
        pytest.raises(RuntimeError, match="cannot encode"),
        Stream(WORLD, workers=1, encode=fail) as stream,
    ):
        next(stream)


@pytest.mark.parametrize("step", ["render", "VisibilityTest"])
def test_a_stream_goes_on_exactly_after_a_failure(
    step: str, unbroken: list[Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stream(WORLD) as stream:
        with monkeypatch.context() as patched:
            patched.setattr(f"macnet.clevr.stream.{step}", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
        assert stream.position == 0
        assert_same([next(stream)], unbroken[:1])


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
