"""Recipes say what was published, and refuse what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from macnet.data.dataset import Subset
from macnet.errors import InputError
from macnet.models.recipe import Recipe
from macnet.models.registry import SYSTEMS
from macnet.models.system import Stage


def test_the_papers_recipe_for_mac() -> None:
    recipe = SYSTEMS["mac"].training.find_recipe("paper")
    assert (recipe.optimizer, recipe.lr, recipe.schedule) == ("adam", 1e-4, "constant")
    assert recipe.images * recipe.questions == 64
    assert (recipe.ema, recipe.ema_warmup) == (0.999, False)
    assert (recipe.clip, recipe.weight_decay, recipe.warmup) == (8, 0, 0)
    assert (recipe.precision, recipe.trainable) == ("float32", ())
    assert recipe.patience > 0, "early stopping on validation accuracy"
    assert recipe == Recipe()


def test_the_fast_recipe() -> None:
    recipe = SYSTEMS["mac"].training.find_recipe("fast")
    assert recipe.questions == 10
    assert recipe.schedule == "cosine"
    assert recipe.warmup > 0
    assert recipe.precision == "bfloat16"


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_can_be_taught(system: str) -> None:
    training = SYSTEMS[system].training
    for name in ("paper", "fast", *(["humans"] if training.humans is not None else [])):
        for stage in training.stages:
            assert isinstance(stage.recipe(training.find_recipe(name)), Recipe)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": -1.0}, r"`recipe\.lr` is -1\.0; it must be a number from 0"),
        ({"lr": float("nan")}, r"`recipe\.lr` is nan"),
        ({"epochs": 1e308}, r"`recipe\.epochs` is 1e\+308; .* a number from 0 to 1,000,000,000"),
        ({"warmup": float("inf")}, r"`recipe\.warmup` is inf; it must be a number from 0 to"),
        (
            {"images": 10**400},
            r"`recipe\.images` is 10+; it must be a whole number from 1 to 1,000",
        ),
        ({"lr": "fast"}, r"`recipe\.lr` is 'fast'"),
        ({"images": 0}, r"`recipe\.images` is 0; it must be a whole number from 1"),
        ({"images": 1.5}, r"`recipe\.images` is 1\.5; it must be a whole number"),
        ({"questions": True}, r"`recipe\.questions` is True"),
        ({"epochs": 0}, r"`recipe\.epochs` is 0; it must be above 0"),
        ({"validate_every": 0.0}, r"`recipe\.validate_every` is 0\.0; it must be above 0"),
        ({"jitter": 1.5}, r"`recipe\.jitter` is 1\.5; it must be 1 at most"),
        ({"rotation": 181}, r"`recipe\.rotation` is 181; it must be 180 at most"),
        ({"rotation": -1.0}, r"`recipe\.rotation` is -1\.0; it must be a number from 0"),
        ({"ema": 1.0}, r"`recipe\.ema` is 1\.0; it must be below 1"),
        ({"ema_warmup": 1}, r"`recipe\.ema_warmup` is 1; choose True or False"),
        ({"optimizer": "sgd"}, r"`recipe\.optimizer` is 'sgd'; choose one of adam, adamw"),
        ({"precision": "float16"}, r"`recipe\.precision` is 'float16'; choose one of float32, bf"),
        ({"schedule": "linear"}, r"`recipe\.schedule` is 'linear'; choose one of constant, au"),
    ],
)
def test_what_no_recipe_has(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe(**changes)


def test_an_unknown_recipe() -> None:
    with pytest.raises(InputError, match="`recipe` is 'slow'; choose paper, fast or humans"):
        SYSTEMS["mac"].training.find_recipe("slow")


@pytest.mark.parametrize("system", ["lstm", "cnn-lstm"])
def test_baselines_fine_tune_the_question_encoder_on_clevr_humans(system: str) -> None:
    training = SYSTEMS[system].training
    paper, humans = training.paper, training.find_recipe("humans")
    assert (humans.trainable, humans.lr, humans.patience) == (("question",), 1e-4, 0)
    assert humans.images * humans.questions == 64
    steps = -(-17_817 // 64)  # in an epoch
    assert round(humans.epochs * steps) == 100_000
    assert round(humans.validate_every * steps) == 500
    assert (humans.clip, humans.ema, humans.schedule) == (paper.clip, paper.ema, paper.schedule)


def test_mac_fine_tunes_with_the_papers_recipe() -> None:
    assert SYSTEMS["mac"].training.find_recipe("humans") == Recipe()


def test_a_system_without_published_fine_tuning() -> None:
    message = (
        "`recipe` is humans, but no fine-tuning .* give paper, and the parts .*`recipe.trainable`"
    )
    with pytest.raises(InputError, match=message):
        SYSTEMS["q-type"].training.find_recipe("humans")


def test_a_stage_changes_the_recipe_of_the_run() -> None:
    stage = Stage(name="first", changes={"lr": 5e-4}, factors={"epochs": 0.5})
    assert stage.recipe(Recipe(clip=1, epochs=3)) == Recipe(clip=1, lr=5e-4, epochs=1.5)
    taught = Stage(name="first", uses_programs=True)
    for programs, shape in ((0, (8, 5)), (9, (40, 1))):
        recipe = taught.recipe(Recipe(images=8, questions=5, programs=programs))
        assert (recipe.images, recipe.questions) == shape
    with pytest.raises(TypeError, match="rate"):
        Stage(name="first", changes={"rate": 5e-4}).recipe(Recipe())


def test_a_stage_learns_from_as_many_programs_as_the_recipe_says() -> None:
    stage = Stage(name="first", uses_programs=True)
    assert stage.subset(Recipe(), seed=3) is None, "all"
    assert stage.subset(Recipe(programs=9), seed=3) == Subset("question", count=9, seed=3)
    assert Stage(name="second").subset(Recipe(programs=9), seed=3) is None


def test_stages_by_name() -> None:
    training = SYSTEMS["pg-ee"].training
    assert [stage.name for stage in training.find_stages(Recipe())] == [
        *("generator", "executor", "joint")
    ]
    (joint,) = training.find_stages(training.find_recipe("humans"))
    assert joint.recipe(training.find_recipe("humans")).lr == 1e-4
    with pytest.raises(
        InputError, match=r"`recipe\.stages` is 'all'; choose among generator, exec"
    ):
        training.find_stages(Recipe(stages=("all",)))
