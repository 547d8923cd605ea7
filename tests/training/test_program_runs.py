"""`macnet.train` of systems that write programs: asked, explained, evaluated, and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import macnet
from macnet.cli import main
from macnet.configuration import with_changes
from macnet.errors import InputError
from macnet.explain.page import make_page
from macnet.models.recipe import Recipe
from macnet.models.registry import find_preset
from macnet.training.log import read_log
from macnet.training.plan import TrainingPlan
from macnet.training.train import Run
from program_training import NAMES, STAGES
from small_data import metadata_of, write_data
from tiny_training import TINY, small_and_quick


@pytest.fixture(scope="module", autouse=True)
def _small_and_quick() -> Iterator[None]:
    with small_and_quick():
        yield


# --- macnet.train, from files ----------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    write_data(folder / "data")
    return folder


def train(folder: Path, name: str, out: str, **options: Any) -> Run:
    usual = {
        "data": folder / "data",
        "model": TINY.get(name),
        "recipe_changes": {"epochs": 2, "images": 4, "questions": 2, "lr": 1e-3},
        **{"size": (16, 16), "cache": folder / "cache", "device": "cpu", "workers": 1},
    }
    return macnet.train(out=folder / out, preset=name, **{**usual, **options})


@pytest.fixture(scope="module", params=NAMES)
def run(request: pytest.FixtureRequest, folder: Path) -> Run:
    """One that learned from the programs of 5 questions."""
    return train(folder, request.param, request.param, programs=5)


def test_a_run_of_all_stages(run: Run) -> None:
    name = metadata_of(run.folder)["preset"]
    lines = read_log(run.folder / "log.jsonl")
    ends = [line for line in lines if line["kind"] == "end"]
    assert [line["stage"] for line in ends] == STAGES[name]
    assert run.steps == sum(line["step"] for line in ends) == {"pg-ee": 9, "n2nmn": 8}[name]
    assert [s["name"] for s in metadata_of(run.folder)["stages"]] == STAGES[name]
    assert all(0 <= x["accuracy"]["programs"] <= 1 for x in lines if x["kind"] == "validation")
    assert metadata_of(run.folder)["recipe"]["programs"] == 5
    assert metadata_of(run.folder)["experiment"] == {"row": None, "share": 1.0, "programs": 5}
    assert run.load().label == f"{name} (5 programs)", "which is no row of table 1"
    curve = run.folder / "drawn.png"
    from macnet.training.curve import draw_curve

    draw_curve(run.folder / "log.jsonl", curve, name)  # though losses may be negative
    assert curve.read_bytes().startswith(b"\x89PNG")


def test_a_run_is_asked_exported_and_explained(run: Run, folder: Path) -> None:
    exported = folder / f"{run.folder.name}.safetensors"
    macnet.export(run, exported)
    image, question = np.full((20, 30, 3), 200, np.uint8), "Are there any cubes?"
    own, other = (macnet.load(path).ask(image, question) for path in (run, exported))
    assert other.probabilities == pytest.approx(own.probabilities, abs=2e-2)  # weights are halves
    true = "exist filter_shape[cube] scene"
    explained = macnet.load(run).explain(image, question, true)
    assert explained.reply == own
    names = {"pg-ee": ("scene", "filter_shape[cube]", "exist"), "n2nmn": ("Find", "Exist")}
    assert explained.true_modules == names[run.load().system.name]
    assert explained.modules
    for place, module in enumerate(explained.modules):
        assert all(i < place for i in module.inputs)
        for attention in (module.image, module.words):
            if attention is not None:
                assert attention.min() >= 0
                assert attention.sum() == pytest.approx(1, abs=1e-4)
    assert len(make_page(explained)) > 1000


def test_an_evaluation_shows_how_many_programs_are_true(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / "evaluated.json"
    given = ["--cache", str(folder / "cache"), "--json", str(out), "--device", "cpu"]
    assert main(["evaluate", str(run.folder), *given, "--workers", "1"]) == 0
    results = json.loads(out.read_bytes())["results"]
    assert results == json.loads(json.dumps(run.results.to_record()))
    assert results["programs"]["Overall"]["total"] == 8
    assert {"Count", "Exist"} <= {*results["programs"]}
    said = capsys.readouterr().out
    assert f"\n{run.load().label} on " in said
    heading = next(line for line in said.splitlines() if "95% interval" in line)
    assert heading.split()[-1] == "programs"
    overall = next(line for line in said.splitlines() if line.split()[:1] == ["Overall"])
    right = results["programs"]["Overall"]
    assert overall.split()[-1] == f"{100 * right['correct'] / right['total']:.2f}"


def test_all_programs_are_learned_from_unless_a_number_is_given(folder: Path) -> None:
    every = train(folder, "pg-ee", "all", programs="all", recipe_changes={"epochs": 0.1})
    assert metadata_of(every.folder)["recipe"]["programs"] == 0
    assert "programs" not in metadata_of(every.folder)["experiment"]
    assert every.load().label == "PG+EE (700K prog.)*"
    assert train(folder, "n2nmn", "each", recipe_changes={"epochs": 0.1}).steps == 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pg-ee", {"programs": 0}, "`programs` is 0; it must be a number from 1, or all"),
        ("pg-ee", {"programs": True}, "`programs` is True; it must be a number from 1, or all"),
        ("pg-ee", {"programs": 17}, "a subset of 17 questions is asked for, but there are 16"),
        ("n2nmn", {"programs": 10**6}, "a subset of 1,000,000 questions is asked for, but there"),
        ("pg-ee", {"programs": -1}, "`programs` is -1; it must be a number from 1, or all"),
        ("pg-ee", {"programs": "ten"}, "`programs` is 'ten'; it must be a number from 1, or all"),
        ("pg-ee", {"programs": 2.5}, "`programs` is 2.5; it must be a number from 1, or all"),
        (
            "sa-mlp",
            {"programs": 5},
            "`recipe.programs` is 5, but sa-mlp does not learn from programs in the stage training",
        ),
        (
            "pg-ee",
            {"programs": 5, "recipe_changes": {"stages": ("executor", "joint")}},
            "`recipe.programs` is 5, but pg-ee does not learn from programs in the stages "
            "executor, joint; leave it out",
        ),
        (
            "n2nmn",
            {"recipe_changes": {"stages": ("joint",)}},
            "`recipe.stages` is 'joint'; choose among cloning, policy search",
        ),
        (
            "sa-mlp",
            {"recipe_changes": {"stages": ("generator",)}},
            "`recipe.stages` is 'generator'; choose among training",
        ),
    ],
)
def test_what_is_refused(name: str, options: Any, message: str, folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        train(folder, name, "refused", **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert not (folder / "refused").exists()


@pytest.mark.usefixtures("small_blocks")
def test_an_endless_world_has_no_number_of_programs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    world = {"data": None, "world_val_images": 2, "size": (24, 16), "workers": None}
    with pytest.raises(InputError, match="an endless world has no subset; give `world_images`"):
        train(folder, "pg-ee", "refused", **world, programs=5)
    assert not (folder / "refused").exists()


# --- rows of table 1 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "programs", "row"),
    [
        ("pg-ee", 0, "PG+EE (700K prog.)*"),
        ("pg-ee", 9_000, "PG+EE (9K prog.)*"),
        ("pg-ee", 18_000, "PG+EE (18K prog.)*"),
        ("pg-ee", 100, None),
        ("n2nmn", 0, "N2NMN*"),
        ("n2nmn", 9_000, None),
    ],
)
def test_the_row_of_table_1_follows_from_the_number_of_programs(
    name: str, programs: int, row: str | None, tmp_path: Path
) -> None:
    system, config = find_preset(name)
    assert system.find_row(config, programs) == row
    assert system.find_row(replace(config, units=7), programs) is None
    recipe = replace(Recipe(), programs=programs)
    made = TrainingPlan(preset=name, model=config, recipe=recipe)
    assert (made.row, made.programs) == (row, programs)
    smaller = with_changes(config, TINY[name])
    assert TrainingPlan(preset=name, model=smaller, recipe=recipe).row is None
    if programs in (9_000, 18_000) and row:
        assert system.label_with(programs) == row
