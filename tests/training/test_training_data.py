"""Training data: the batches they give, and which datasets do not go together."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from macnet.clevr.world import World
from macnet.data.batches import Batches, BatchSource
from macnet.data.block_encoder import world_texts
from macnet.data.dataset import Dataset, Subset
from macnet.data.endless import EndlessBatches
from macnet.data.question_arrays import UNKNOWN
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError
from macnet.models.recipe import Recipe
from macnet.training.training_data import EPOCH, TrainingData
from tiny_training import dataset, training_data

RECIPE = Recipe(images=4, questions=3)
WORLD = World(seed=1, width=24, height=16)
pytestmark = pytest.mark.usefixtures("small_blocks")


def opened(
    of: TrainingData, position: int = 0, subset: Subset | None = None, recipe: Recipe = RECIPE
) -> BatchSource:
    return of.open(recipe, subset, seed=5, device=torch.device("cpu"), position=position, workers=0)


def which(source: BatchSource, steps: int) -> list[list[int]]:
    with closing(source):
        return [source.gather(source.sample()).question_index.tolist() for _ in range(steps)]


def test_the_data_spec() -> None:
    made = training_data()
    assert made.data_spec() == DataSpec(len(made.vocabulary), 28, 13, True, 3, 16, 16)
    features = replace(dataset(), images=np.zeros((12, 2, 5, 7), np.float16))
    assert TrainingData(features, features).data_spec() == DataSpec(
        len(made.vocabulary), 28, 13, False, 7, 2, 5
    )


def test_batches_of_a_dataset_from_any_position() -> None:
    plain = Batches(dataset(), images=4, questions=3, seed=5)
    wanted = [next(plain).question_index.tolist() for _ in range(9)]
    assert which(opened(training_data()), 9) == wanted
    assert which(opened(training_data(), position=4), 5) == wanted[4:]


def test_a_subset() -> None:
    rule = Subset("question", 0.25)
    chosen = {*dataset().subset(rule).selected.tolist()}
    source = opened(training_data(), subset=rule)
    steps = source.steps or 0
    assert training_data().steps_per_epoch(source, RECIPE, rule) == 6 > steps, "as of all"
    seen = [n for step in which(source, steps) for n in step if n != UNKNOWN]
    assert sorted(seen) == sorted(chosen)


@pytest.mark.parametrize("position", [0, 1, 5])
def test_replay_is_mixed_in(position: int) -> None:
    old = dataset(20, seed=7)
    mixed = replace(training_data(), replay=old, replay_share=1 / 3)
    news, olds = which(opened(training_data()), 12), which(opened(TrainingData(old, old)), 12)
    expected = [(olds if n % 3 == 2 else news).pop(0) for n in range(12)]
    assert which(opened(mixed, position), 6) == expected[position : position + 6]
    with closing(opened(mixed)) as source:
        assert mixed.steps_per_epoch(source, RECIPE, None) == 9, "six new, half as many old"
    assert mixed.to_record()["replay"]["share"] == 1 / 3


def beside_the_world() -> Dataset:
    """A dataset in its words, of pictures as large."""
    part = dataset(8, 1, Vocabulary.build([*world_texts(), "is it bright dark yes or no"]))
    return replace(part, images=np.zeros((8, 16, 24, 3), np.uint8))


def test_an_endless_world() -> None:
    val = beside_the_world()
    endless = TrainingData(WORLD, val)
    with closing(opened(endless)) as source:
        assert isinstance(source, EndlessBatches)
        assert endless.steps_per_epoch(source, RECIPE, None) == -(-EPOCH // 12)
    first = which(opened(endless), 3)
    assert which(opened(endless, position=2), 1) == first[2:]
    assert len(first[0]) == 12, "as many questions about each image as the recipe says"
    assert endless.to_record()["train"]["seed"] == 1


def test_an_endless_world_with_replay() -> None:
    val = beside_the_world()
    mixed = TrainingData(WORLD, val, replay=val, replay_share=0.5)
    worlds, olds = (
        which(opened(TrainingData(WORLD, val)), 2),
        which(opened(TrainingData(val, val)), 2),
    )
    assert which(opened(mixed), 4) == [worlds[0], olds[0], worlds[1], olds[1]]


def test_an_endless_world_has_no_subset() -> None:
    with pytest.raises(InputError, match="an endless world has no subset; give `world_images`"):
        opened(TrainingData(WORLD, beside_the_world()), subset=Subset("image", 0.1))


def without(part: Dataset, answers: np.ndarray) -> Dataset:
    return replace(part, questions=replace(part.questions, answers=answers))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selected": np.zeros(0, np.int32)}, "made of seed 0: it holds no questions"),
        (
            {"vocabulary": Vocabulary.build(["else"])},
            "made of seed 0: its vocabulary is another than",
        ),
        ({"images": np.zeros((12, 8, 16, 3), np.uint8)}, r"its images are \(8, 16, 3\) of uint8"),
        ({"images": np.zeros((12, 16, 16, 3), np.float16)}, "its images are .* of float16, those"),
    ],
)
def test_datasets_that_do_not_fit_together(changes: dict[str, Any], message: str) -> None:
    strange = replace(dataset(), **changes)
    with pytest.raises(InputError, match=message):
        TrainingData(strange, dataset(8, seed=1))
    with pytest.raises(InputError, match=message):
        TrainingData(dataset(8, seed=1), dataset(8, seed=1), replay=strange, replay_share=0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"images": 100_000},
            "`recipe.images` is 100,000, but made of seed 0 makes 24 groups of 3 ",
        ),
        (
            {"images": 214},
            "`recipe.images` is 214, but made of seed 0 makes 24 groups of 3 question",
        ),
        (
            {"questions": 9_999},
            "`recipe.questions` is 9,999, but made of seed 0 has 4 questions about",
        ),
    ],
)
def test_a_batch_that_is_larger_than_the_data(change: dict[str, Any], message: str) -> None:
    """Its memory is taken before a step is made."""
    for of in (
        training_data(),
        TrainingData(dataset(), dataset(8, seed=1), replay=dataset(999), replay_share=0.5),
    ):
        with pytest.raises(InputError, match=message):
            opened(of, recipe=replace(RECIPE, **change))


def test_a_batch_that_is_larger_than_the_replay() -> None:
    of = TrainingData(dataset(120), dataset(8, seed=1), replay=dataset(), replay_share=0.5)
    with pytest.raises(InputError, match="is 214, but made of seed 0 makes 24 groups"):
        opened(of, recipe=replace(RECIPE, images=214))


def test_a_batch_of_the_usual_size_is_filled_up() -> None:
    (numbers,) = which(opened(training_data(), recipe=Recipe(images=64, questions=10)), 1)
    assert sorted(n for n in numbers if n != UNKNOWN) == list(range(len(dataset())))
    assert len(numbers) == 640
    # A stage without images has one question about each.
    (numbers,) = which(opened(training_data(), recipe=Recipe(images=640, questions=1)), 1)
    assert len(numbers) == 640


@pytest.mark.parametrize("change", [{"shift": 1}, {"rotation": 3.0}, {"jitter": 0.1}])
def test_only_images_are_augmented(change: dict[str, Any]) -> None:
    features = replace(dataset(), images=np.zeros((12, 14, 14, 8), np.float16))
    with pytest.raises(InputError, match="the data are features; only images can be augmented"):
        opened(TrainingData(features, features), recipe=replace(RECIPE, **change))


def test_questions_without_answers_cannot_be_trained_on() -> None:
    part = dataset()
    answers = part.questions.answers.copy()
    answers[3] = UNKNOWN
    with pytest.raises(InputError, match="made of seed 0: its questions have no answers"):
        TrainingData(without(part, answers), dataset(8, seed=1))
    left_out = replace(without(part, answers), selected=np.delete(part.selected, 3))
    assert TrainingData(left_out, dataset(8, seed=1)).train is left_out, "it does not count"


def test_a_world_with_images_of_another_size() -> None:
    with pytest.raises(
        InputError, match=r"rendered as \(16, 32, 3\), but .* \(16, 24, 3\) of uint8"
    ):
        TrainingData(World(seed=1, width=32, height=16), beside_the_world())


def test_more_questions_about_an_image_than_a_world_has_families() -> None:
    world = replace(WORLD, families=("zero_hop",), questions_per_image=1)
    with pytest.raises(InputError, match=r"`recipe.questions` is 7; it must be 6 at most"):
        opened(TrainingData(world, beside_the_world()), recipe=replace(RECIPE, questions=7))
