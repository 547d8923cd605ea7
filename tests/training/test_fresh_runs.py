"""Training on new questions in every epoch: from files and worlds, resumed, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

import macnet
from broken_off import StoppedAfter
from known_scenes import VOCABULARY, scenes_dataset
from macnet.clevr.generate import generate_world
from macnet.clevr.world import World
from macnet.cli import main
from macnet.data.dataset import Subset
from macnet.data.fresh_questions import FreshQuestionBatches
from macnet.data.replay import ReplayMixture
from macnet.errors import InputError
from macnet.evaluation.evaluate import evaluate
from macnet.models.recipe import Recipe
from macnet.paper import find_published
from macnet.training.plan import TrainingPlan
from macnet.training.train import Run
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from small_data import metadata_of, write_data, write_humans
from tiny_training import TINY, assert_equal, plan, small_and_quick

RECIPE = Recipe(images=4, questions=3)
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture(scope="module", autouse=True)
def _small_and_quick() -> Iterator[None]:
    with small_and_quick(workers=False):
        yield


def training_data(**options: Any) -> TrainingData:
    usual: dict[str, Any] = {"fresh_questions": True, **options}
    return TrainingData(scenes_dataset(22), scenes_dataset(5), **usual)


# --- the data of a run -----------------------------------------------------------------------


def opened(data: TrainingData, position: int = 0, recipe: Recipe = RECIPE) -> Any:
    return data.open(recipe, None, seed=5, device=CPU, position=position, workers=0)


def test_they_take_the_place_of_the_own_ones() -> None:
    data = training_data()
    with closing(opened(data)) as source:
        assert isinstance(source, FreshQuestionBatches)
        assert data.steps_per_epoch(source, RECIPE, None) == 6, "22 images, four at a time"
        batches = [next(source) for _ in range(3)]
    assert all(len(batch.question_index) == 12 for batch in batches)
    with closing(opened(data, position=2)) as source:
        assert all(map(torch.equal, next(source), batches[2]))
    assert data.to_record()["train"]["fresh_questions"] is True
    assert "fresh_questions" not in training_data(fresh_questions=False).to_record()["train"]


def test_with_replay() -> None:
    data = training_data(replay=scenes_dataset(12), replay_share=0.5)
    recipe = replace(RECIPE, questions=2)
    with closing(opened(data, recipe=recipe)) as source:
        assert isinstance(source, ReplayMixture)
        new, old = next(source), next(source)
    assert new.questions.shape == old.questions.shape
    assert len(set(map(tuple, old.questions.tolist()))) == 1, "its own question, again and again"
    assert len(set(map(tuple, new.questions.tolist()))) == 8


def test_more_questions_about_an_image_than_it_has_own_ones() -> None:
    training_data().check(replace(RECIPE, questions=90), None)
    training_data().check(replace(RECIPE, questions=1, images=64), None)
    with pytest.raises(InputError, match=r"`recipe.questions` is 91; it must be 90 at most"):
        training_data().check(replace(RECIPE, questions=91), None)
    with pytest.raises(InputError, match="known scenes makes 22 groups of 1 question"):
        training_data().check(replace(RECIPE, questions=1, images=10_000), None)


def test_what_does_not_go_together() -> None:
    with pytest.raises(InputError, match="leave out one of `programs` and `fresh_questions`"):
        training_data().check(RECIPE, Subset("question", count=5), programs=True)
    for train in (replace(scenes_dataset(5), scenes=None), World(1, width=24, height=16)):
        with pytest.raises(InputError, match="`fresh_questions` are about a dataset of which"):
            TrainingData(train, scenes_dataset(5), fresh_questions=True)


# --- a run, stopped and resumed --------------------------------------------------------------


def trainer(folder: Path, made: TrainingPlan) -> Trainer:
    return Trainer(folder, made, training_data(), device=CPU, save_every=3600)


@pytest.mark.parametrize("stop", [2, 6, 9])  # in the first epoch, at its end, in the second
def test_a_run_resumes_bit_for_bit(stop: int, tmp_path: Path) -> None:
    made = plan(epochs=2, questions=3)
    trainer(tmp_path / "unbroken", made).train()
    with StoppedAfter(stop), pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "stopped", made).train()
    trainer(tmp_path / "stopped", made).train(resume=True)
    assert_equal(tmp_path / "stopped", tmp_path / "unbroken")


@pytest.mark.parametrize("name", ["pg-ee", "n2nmn"])
def test_systems_that_learn_from_programs(name: str, tmp_path: Path) -> None:
    model = {**TINY[name], **({"program_length": 30} if name == "pg-ee" else {})}
    few = {"images": 8, "questions": 2, "epochs": 1, "ema": 0}
    assert trainer(tmp_path / name, plan(name, model, **few)).train()


# --- macnet.train ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh")
    world, counts = World(seed=3, width=24, height=16), {"train": 9, "val": 4, "test": 0}
    generate_world(folder / "world", world, counts, device="cpu", workers=0)
    write_data(folder / "data")
    write_humans(folder / "humans")
    replace(VOCABULARY, answers=VOCABULARY.answers[1:]).save(folder / "few answers.json")
    return folder


def train(folder: Path, out: str, **options: Any) -> Run:
    usual: dict[str, Any] = {
        **{"preset": "q-type", "size": (24, 16), "cache": folder / "cache", "device": "cpu"},
        **{"recipe_changes": {"epochs": 2, "images": 4, "questions": 3}, "workers": 1},
    }
    return macnet.train(out=folder / out, **{**usual, **options})


WORLDS: dict[str, dict[str, Any]] = {
    "on disk": {"data": "world"},
    "fixed": {"world_images": 9, "world_val_images": 4},
}


@pytest.mark.parametrize("world", WORLDS)
def test_no_number_of_the_paper_stands_beside_it(world: str, folder: Path) -> None:
    options = {k: folder / v if k == "data" else v for k, v in WORLDS[world].items()}
    own, fresh = (
        train(folder, f"{world} {fresh}", fresh_questions=fresh, **options)
        for fresh in (False, True)
    )
    assert find_published(own.load().row, own.load().share) is not None
    assert fresh.load().row == own.load().row == "Q-type baseline"
    assert fresh.load().share is None
    assert evaluate(own, cache=folder / "cache", device="cpu").paper is not None
    assert evaluate(fresh, cache=folder / "cache", device="cpu").paper is None
    tuned = train(folder, f"{world} tuned", start=fresh, **options)
    assert tuned.load().share is None, "nor beside what was trained from it"
    record = metadata_of(fresh.folder)
    assert record["data"]["train"]["fresh_questions"] is True
    assert record["experiment"] == {"row": "Q-type baseline", "share": None}
    assert (fresh.steps, fresh.questions) == (3, 9 * 3), "in its epoch, three about each image"
    with pytest.raises(InputError, match="it holds a run of another configuration"):
        train(folder, f"{world} True", resume=True, **options)


def test_the_command_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", str(folder / "world"), "--out", str(folder / "said"), "--fresh-questions"]
    quick = "--preset q-type --recipe.epochs 1 --recipe.images 4 --size 24x16 --device cpu"
    assert main([*given, *quick.split(), "--cache", str(folder / "cache")]) == 0
    said = capsys.readouterr().out
    assert "training on new questions in every epoch about 9 images; the paper's acc" in said
    assert "\nvalidating on 40 questions about 4 images; " in said
    assert "paper" not in said.partition("validating")[2]


def test_a_small_dataset_lacks_words_that_new_questions_have(folder: Path) -> None:
    """Its vocabulary grows by them, and a network's that it starts from."""
    own = train(folder, "own", data=folder / "world").load().vocabulary
    grown = train(folder, "grown", data=folder / "world", fresh_questions=True).load().vocabulary
    assert grown.words[: len(own)] == own.words
    assert set(VOCABULARY.words) <= set(grown.words)
    later = train(folder, "on", data=folder / "world", fresh_questions=True, start=folder / "own")
    assert later.load().vocabulary == grown


def test_features(folder: Path) -> None:
    for split, count in (("train", 9), ("val", 4)):
        with h5py.File(folder / f"{split}.h5", "w") as file:
            file["features"] = torch.rand(count, 6, 4, 4).numpy()
    features = {"images": folder / "train.h5", "val_images": folder / "val.h5"}
    run = train(folder, "features", data=folder / "world", fresh_questions=True, **features)
    assert run.load().data_spec.channels == 6


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "endless": ({}, "`fresh_questions` is given, but all questions about a world without an end"),
    "part": (
        {"world_images": 4, "subset_questions": 0.5},
        "`subset_questions` is given, but `fresh_questions` replaces all of them",
    ),
    "no scenes": ({"data": "data"}, "`fresh_questions` is given, but there is no file /.*_scenes"),
    "answers": (
        {"data": "world", "vocabulary": "few answers.json"},
        "the vocabulary lacks 1 of the generated world's answers, first '0'; take one that has all",
    ),
    "people's": ({"data": "humans", "images": "data"}, "has the format clevr-humans; only quest"),
    "programs": (
        {"data": "world", "preset": "pg-ee", "programs": 5, "model": TINY["pg-ee"]},
        "leave out one of `programs` and `fresh_questions`",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, folder: Path) -> None:
    options, message = REFUSED[name]
    files = ("data", "images", "vocabulary")
    places = {key: folder / value for key, value in options.items() if key in files}
    with pytest.raises(InputError, match=message):
        train(folder, "refused", fresh_questions=True, **{**options, **places})
    assert not (folder / "refused").exists()
