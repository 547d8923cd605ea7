"""`macnet.train` from Python: its value, and that other functions and commands take it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import macnet
from macnet.cli import main
from macnet.errors import InputError
from macnet.models.presets import preset
from macnet.models.recipe import Recipe
from macnet.training import trainer as trainer_module
from macnet.training.log import read_log
from macnet.training.train import Run
from macnet.training.trainer import Trainer
from small_data import metadata_of, write_data
from tiny_training import same

SMALL = {"d": 8, "p": 2, "embedding": 6, "widths": (4, 6, 8), "blocks": (0, 1, 1)}
QUICK = {"epochs": 2, "images": 4, "questions": 2, "lr": 0.01}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the data, the cache and the runs of this module."""
    folder = tmp_path_factory.mktemp("train")
    write_data(folder / "data")
    return folder


def train(folder: Path, out: str, data: str | None = "data", **options: Any) -> Run:
    where = None if data is None else folder / data
    usual = {"model": SMALL, "recipe_changes": QUICK, "size": (16, 16), "cache": folder / "cache"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "draw_curve", lambda *_: None)
        return macnet.train(
            where, out=folder / out, device="cpu", workers=1, **{**usual, **options}
        )


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return train(folder, "run", seed=3)


def test_the_run_says_what_it_reached(run: Run, folder: Path) -> None:
    assert run.folder == folder / "run"
    assert (run.steps, run.questions, run.was_finished) == (4, 32, False)
    lines = read_log(run.folder / "log.jsonl")
    assert run.seconds == lines[-1]["seconds"] > 0
    best = max(line["accuracy"]["overall"] for line in lines if line["kind"] == "validation")
    assert run.accuracy == run.results.overall.value == best
    assert run.load().metadata["accuracy"] == run.results.accuracies()


def test_what_takes_a_folder_takes_the_run(run: Run, folder: Path) -> None:
    assert macnet.load(run).trained.metadata == run.load().metadata
    same_again = train(folder, "from", start=run, model=None)
    assert same_again.load().vocabulary == run.load().vocabulary
    assert metadata_of(same_again.folder)["start"] == str(folder / "run/best.safetensors")


def test_the_command_evaluates_it_on_what_it_was_validated_on(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--cache", str(folder / "cache"), "--json", str(folder / "evaluated.json")]
    assert main(["evaluate", str(run.folder), "--device", "cpu", "--workers", "1", *given]) == 0
    found = json.loads((folder / "evaluated.json").read_bytes())
    assert found["results"] == json.loads(json.dumps(run.results.to_record()))
    assert found["data"] == metadata_of(run.folder)["data"]["val"]
    assert found["data"]["source"]["split"] == "val"


def test_the_command_gives_the_same_network(run: Run, folder: Path) -> None:
    from small_data import QUICK, SMALL

    given = [str(folder / "data"), "--out", str(folder / "command"), "--seed", "3"]
    options = f"{SMALL} {QUICK} --cache {folder / 'cache'}".split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "draw_curve", lambda *_: None)
        assert main(["train", *given, *options]) == 0
    assert metadata_of(folder / "command") == metadata_of(run.folder)
    assert same(macnet.load(folder / "command").trained.weights, run.load().weights)


def test_a_finished_run_is_not_trained_again(run: Run, folder: Path) -> None:
    again = train(folder, "run", seed=3, resume=True)
    assert again == replace(run, was_finished=True, results=again.results)
    assert again.results.to_record() == run.results.to_record()
    with pytest.raises(InputError, match="it holds a run already; go on with it with `resume`"):
        train(folder, "run", seed=3)


def test_configurations_may_be_whole(run: Run, folder: Path) -> None:
    whole = train(
        folder,
        "whole",
        seed=3,
        model=preset("paper", **SMALL),
        recipe=replace(Recipe(), **QUICK),  # type: ignore[arg-type]
        recipe_changes=None,
    )
    assert metadata_of(whole.folder) == metadata_of(run.folder)


@pytest.mark.usefixtures("small_blocks")
def test_the_generated_world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    world = {"world_images": 4, "world_val_images": 2, "size": (24, 16)}
    found = train(folder, "world", None, **world, ablation="w/ memory gate")
    metadata = metadata_of(found.folder)
    assert metadata["model"]["gate"]
    assert metadata["data"]["val"]["source"] == {"world_seed": 1, "split": "val", "count": 2}
    assert found.results.overall.total == 20


def test_the_trainer_is_shown_before_the_first_step(folder: Path) -> None:
    def stop(trainer: Trainer) -> None:
        assert trainer.plan.recipe.lr == 0.01
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(folder, "shown", on_start=stop)
    assert not (folder / "shown").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "nets"}, "`preset` is 'nets'; choose one of paper"),
        ({"model": {"depth": 3}}, "there is no field 'model.depth'; choose among d"),
        ({"model": Recipe()}, "`model` is Recipe.*; `preset` is paper, of a MACConfig"),
        ({"recipe": "slow"}, "`recipe` is 'slow'; choose paper, fast or humans"),
        ({"recipe_changes": {"lr": -1}}, "`recipe.lr` is -1; it must be a number from 0"),
        ({"data": None, "split": "val"}, "`split` is given, but there is no `data`"),
        ({"world_seed": 2}, "`world_seed` is given, but .* is what to learn from"),
        ({"validate_on": 0}, "`validate_on` is 0; it must be at least 1"),
        ({"save_every": -1}, "`save_every` is -1; it must be a number from 0"),
        ({"seed": 1 << 32}, "`seed` is 4294967296; it must be"),
        ({"device": "tpu"}, "`device` is 'tpu'"),
    ],
)
def test_errors_name_arguments(options: dict[str, Any], message: str, folder: Path) -> None:
    usual = {"out": folder / "refused", "device": "cpu", "data": folder / "data"}
    with pytest.raises(InputError, match=message):
        macnet.train(**{**usual, "cache": folder / "cache", "size": (16, 16), **options})
    assert not (folder / "refused").exists()
