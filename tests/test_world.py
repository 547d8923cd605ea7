"""A world is a function of its seed; its stream stops and goes on without a trace."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from macnet.clevr.questions import BLOCK, Question
from macnet.clevr.scene import COGENT
from macnet.clevr.world import Batch, Stream, World, make_questions, make_scenes
from macnet.errors import InputError

WORLD = World(seed=3, width=48, height=32, questions_per_image=3)
PER_BATCH = 40
BATCHES = 8  # 320 images: past the end of the first block


def take(
    count: int, per_batch: int = PER_BATCH, world: World = WORLD, **options: Any
) -> list[Batch]:
    with Stream(world, per_batch, **options) as stream:
        return [next(stream) for _ in range(count)]


def assert_same(some: list[Batch], others: list[Batch]) -> None:
    assert len(some) == len(others)
    for a, b in zip(some, others, strict=True):
        assert a.scenes == b.scenes
        assert a.questions == b.questions
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.objects, b.objects)


@pytest.fixture(scope="module")
def unbroken() -> list[Batch]:
    return take(BATCHES)


def test_a_batch_holds_what_it_says(unbroken: list[Batch]) -> None:
    for batch in unbroken:
        assert batch.images.shape == (PER_BATCH, 32, 48, 3)
        assert batch.images.dtype == torch.uint8
        assert batch.objects.shape == (PER_BATCH, 32, 48)
        assert len(batch.scenes) == len(batch.questions) == PER_BATCH
        for scene, mask, questions in zip(
            batch.scenes, batch.objects, batch.questions, strict=True
        ):
            assert set(mask.unique().tolist()) == {-1, *range(len(scene.objects))}
            assert len(questions) == 3
            assert all(isinstance(question, Question) for question in questions)


def test_a_stream_is_its_world(unbroken: list[Batch]) -> None:
    scenes = [scene for batch in unbroken for scene in batch.scenes]
    asked = [questions for batch in unbroken for questions in batch.questions]
    assert make_scenes(WORLD, "train", range(245, 260), "cpu") == scenes[245:260]
    assert make_questions(WORLD, "train", 0, scenes[:BLOCK]) == asked[:BLOCK]
    assert make_questions(WORLD, "train", 1, scenes[BLOCK:]) == asked[BLOCK:]


@pytest.mark.parametrize("batches", [1, 6, 7])  # before, across and after a block's end
def test_going_on_is_as_if_never_stopped(unbroken: list[Batch], batches: int) -> None:
    with Stream(WORLD, PER_BATCH) as stopped:
        for _ in range(batches):
            next(stopped)
    rest = take(BATCHES - batches, start=stopped.position)
    assert_same(rest, unbroken[batches:])


def test_workers_change_nothing(unbroken: list[Batch]) -> None:
    start = 5 * PER_BATCH
    assert_same(take(3, start=start, workers=2), unbroken[5:])


def test_batches_may_be_larger_than_a_block(unbroken: list[Batch]) -> None:
    (batch,) = take(1, per_batch=300)
    assert batch.scenes == [scene for part in unbroken for scene in part.scenes][:300]


def words(question: Question) -> list[str]:
    return question.text.split()


def test_questions_are_encoded_where_they_are_made(unbroken: list[Batch]) -> None:
    (batch,) = take(1, encode=words)
    assert batch.questions == [[words(q) for q in asked] for asked in unbroken[0].questions]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_on_a_gpu_images_stay_there_and_going_on_is_exact() -> None:
    batches = take(4, per_batch=100, device="cuda", workers=2)
    assert all(batch.images.is_cuda and batch.objects.is_cuda for batch in batches)
    assert_same(take(2, per_batch=100, device="cuda", start=200), batches[2:])


@pytest.mark.parametrize("other", [{"seed": 4}, {"condition": "A"}])
def test_another_world_is_another_world(unbroken: list[Batch], other: dict[str, Any]) -> None:
    world = World(**{"seed": 3, "width": 48, "height": 32} | other)
    scenes = make_scenes(world, "train", range(10), "cpu")
    assert not set(scenes) & set(unbroken[0].scenes)
    assert make_scenes(world, "val", range(10), "cpu") != scenes


@pytest.mark.parametrize("condition", ["A", "B"])
def test_a_condition_decides_the_colours(condition: Any) -> None:
    world = World(seed=1, condition=condition, width=48, height=32)
    objects = [o for scene in make_scenes(world, "val", range(30), "cpu") for o in scene.objects]
    assert {o.shape for o in objects} == set(COGENT[condition])
    assert all(o.color in COGENT[condition][o.shape] for o in objects)


@pytest.mark.parametrize("start", [-40, 1, 39])
def test_a_start_within_a_batch_is_refused(start: int) -> None:
    with pytest.raises(ValueError, match="multiple of 40"):
        Stream(WORLD, PER_BATCH, start=start)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"width": 0}, "--size is 0x320"),
        ({"width": 23, "height": 16}, "--size is 23x16; it must be at least 24x16"),
        ({"height": -1}, "--size is 480x-1"),
        ({"questions_per_image": 0}, "--questions-per-image is 0"),
        ({"questions_per_image": 91}, "--questions-per-image is 91"),
        ({"quality": "best"}, "--quality is 'best'"),
        ({"condition": "C"}, "--condition is 'C'"),
    ],
)
def test_settings_that_make_no_world(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        World(seed=1, **settings)


def fail(question: Question) -> None:
    raise RuntimeError("cannot encode")


def test_a_failure_in_a_worker_is_a_failure_here() -> None:
    with (
        pytest.raises(RuntimeError, match="cannot encode"),
        Stream(WORLD, PER_BATCH, workers=1, encode=fail) as stream,
    ):
        next(stream)


def test_the_gpu_machine_needs_no_argument_parser() -> None:
    check = (
        "import sys, macnet.clevr.world;"
        "print(*{'tyro', 'msgspec', 'PIL', 'matplotlib'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


@pytest.mark.parametrize("step", ["render", "all_visible"])
def test_a_stream_goes_on_exactly_after_a_failure(
    step: str, unbroken: list[Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stream(WORLD, PER_BATCH) as stream:
        with monkeypatch.context() as patched:
            patched.setattr(f"macnet.clevr.world.{step}", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
        assert stream.position == 0
        assert_same([next(stream)], unbroken[:1])


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
