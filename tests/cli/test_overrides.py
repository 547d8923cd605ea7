"""What is trained: the preset, then the ablation, then the file, then the flags."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tyro

from macnet.cli.overrides import Flags, choose
from macnet.configuration import with_changes
from macnet.errors import InputError
from macnet.models.config import MACConfig
from macnet.models.presets import ablation, preset
from macnet.models.recipe import Recipe
from macnet.models.registry import PRESETS
from macnet.paper import TABLE_2
from macnet.training.plan import TrainingPlan

ROOT = Path(__file__).parents[2]
TOML = """
[model]
d = 64
dropout.memory = 0.25
[recipe]
lr = 1
trainable = ["question"]
"""


def flagged(model: Any, recipe: Any, *arguments: str) -> tuple[Any, Any]:
    """As flags change them."""

    def both(model: Any, recipe: Any) -> tuple[Any, Any]:
        return model, recipe

    command = partial(both, model=model, recipe=recipe)
    return tyro.cli(command, args=arguments, registry=Flags())


def wanted(*arguments: str) -> str:
    with pytest.raises(InputError) as refused:
        choose(arguments)
    return str(refused.value)


# --- what is looked for first ----------------------------------------------------------------


def test_the_default_is_the_paper() -> None:
    assert choose([]) == TrainingPlan(preset="paper", model=MACConfig(), recipe=Recipe())


@pytest.mark.parametrize("form", [["--preset", "reference"], ["--preset=reference"]])
def test_flags_in_both_forms_among_others(form: list[str]) -> None:
    chosen = choose(["data", "--out", "run", "--model.d", "-3", *form, "--recipe.lr=1", "--resume"])
    assert (chosen.preset, chosen.model) == ("reference", preset("reference"))
    assert chosen.recipe == Recipe()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_trained(name: str) -> None:
    training = PRESETS[name].system.training
    assert choose(["--preset", name]).model == PRESETS[name].config
    assert choose(["--preset", name, "--recipe", "fast"]).recipe == training.find_recipe("fast")


@pytest.mark.parametrize("row", TABLE_2)
def test_every_row_of_table_2(row: str) -> None:
    assert choose(["--ablation", row]).model == ablation(row)


def test_an_ablation_changes_the_preset() -> None:
    chosen = choose(["--ablation=w/ memory gate", "--preset", "reference"])
    assert chosen.model == with_changes(preset("reference"), {"gate": True})


def test_a_flag_without_its_value_is_for_the_parser_to_refuse() -> None:
    assert choose(["--preset"]) == choose([])


def test_unknown_names() -> None:
    assert wanted("--preset", "mac2").startswith("`preset` is 'mac2'; choose one of paper,")
    assert wanted("--recipe", "slow") == "`recipe` is 'slow'; choose paper, fast or humans"
    assert wanted("--ablation", "w/ luck").startswith("`ablation` is 'w/ luck'; choose one of")
    assert wanted("--preset", "lstm", "--ablation", "w/ memory gate") == (
        "`ablation` is 'w/ memory gate', but the paper ablates only MAC"
    )


# --- the file --------------------------------------------------------------------------------


def test_a_file_changes_what_the_preset_says_and_flags_what_the_file_says(tmp_path: Path) -> None:
    toml, other = tmp_path / "o.toml", tmp_path / "o.json"
    toml.write_text(TOML)
    other.write_text(
        '{"model": {"d": 64, "dropout": {"memory": 0.25}},'
        ' "recipe": {"lr": 1, "trainable": ["question"]}}'
    )
    chosen = choose(
        ["--preset", "reference", "--ablation", "state dimension 128", "--overrides", str(toml)]
    )
    assert chosen.model == preset("reference", d=64, dropout={"memory": 0.25})
    assert chosen.recipe == Recipe(lr=1, trainable=("question",))
    again = choose([f"--overrides={other}", "--preset=reference"])
    assert (again.model, again.recipe) == (chosen.model, chosen.recipe)
    model, recipe = flagged(
        chosen.model, chosen.recipe, "--model.dropout.memory", "0.5", "--recipe.lr", "0.1"
    )
    assert model == preset("reference", d=64, dropout={"memory": 0.5})
    assert recipe == Recipe(lr=0.1, trainable=("question",))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("o.toml", "[model]\ndepth = 3", "there is no field 'model.depth'; choose among d, p,"),
        ("o.toml", "[model.dropout]\nx = 3", "there is no field 'model.dropout.x'; choose among"),
        ("o.toml", "[recipe]\nrate = 3", "there is no field 'recipe.rate'; choose among images,"),
        ("o.toml", "[model]\nd = -3", "d is -3; it must be a whole number from 1"),
        ("o.toml", "[model]\nd = 2024-05-06", "d is datetime.date(2024, 5, 6); it must be"),
        ("o.toml", "[model]\ndropout = 0.1", "dropout is 0.1; choose a Dropout"),
        ("o.toml", "[recipe]\nlr = nan", "recipe.lr is nan; it must be a number from 0"),
        (
            "o.toml",
            "[recipe]\ntrainable = 'output'",
            "recipe.trainable is 'output'; it must be a list",
        ),
        ("o.toml", "[train]\nlr = 3", "there is no table 'train'; choose model or recipe"),
        ("o.toml", "model = 3", "model is 3; it must be a table of fields"),
        ("o.toml", "model = ", "not TOML (Invalid value"),
        ("o.toml", "\udcff", "not TOML ("),
        ("o.json", "{", "not JSON, or cut short ("),
        ("o.json", "[1]", "it must hold the tables model and recipe"),
        ("o.yaml", "model:", "overrides are a .toml or a .json"),
    ],
)
def test_a_file_that_does_not_fit(name: str, content: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode(errors="surrogateescape"))
    said = wanted("--overrides", str(path))
    assert said.startswith(f"{path}: {expected}")
    assert "\n" not in said


def test_no_file(tmp_path: Path) -> None:
    missing = tmp_path / "o.toml"
    assert wanted("--overrides", str(missing)) == f"{missing}: there is no such file"
    missing.mkdir()
    assert wanted("--overrides", str(missing)) == f"{missing}: this is a folder, not a file"


# --- flags -----------------------------------------------------------------------------------


def test_flags_of_every_kind() -> None:
    arguments = "--model.d 64 --model.attend nothing --model.control none --model.gate "
    arguments += "--model.gate-bias -1 --model.no-separate --model.separate "
    arguments += (
        "--model.dropout.no-variational-words --recipe.trainable question output --recipe.lr 3e-4"
    )
    model, recipe = flagged(MACConfig(), Recipe(), *arguments.split())
    assert model == preset(
        "paper",
        d=64,
        attend="nothing",
        control="none",
        gate=True,
        gate_bias=-1.0,
        dropout={"variational_words": False},
    )
    assert recipe == Recipe(lr=3e-4, trainable=("question", "output"))


@pytest.mark.parametrize("name", PRESETS)
def test_no_flag_leaves_a_preset_as_it_is(name: str) -> None:
    config = PRESETS[name].config
    assert flagged(config, Recipe()) == (config, Recipe())


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--model.d=-3", "`model.d` is -3; it must be a whole number from 1"),
        ("--model.dropout.memory=1", "`model.dropout.memory` is 1.0; it must be a number from 0"),
        ("--model.gate-bias=1", "`model.gate_bias` is 1.0 but gate is False; choose gate True"),
        ("--recipe.lr=nan", "`recipe.lr` is nan; it must be a number from 0"),
        ("--recipe.epochs=0", "`recipe.epochs` is 0.0; it must be above 0"),
    ],
)
def test_bad_values_of_flags(flag: str, expected: str) -> None:
    with pytest.raises(InputError) as refused:
        flagged(MACConfig(), Recipe(), flag)
    assert str(refused.value).startswith(expected)


@pytest.mark.parametrize("flag", ["--model.image", "--model.channels"])
def test_what_follows_from_the_data_has_no_flag(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        flagged(MACConfig(), Recipe(), flag, "3")
    assert "Unrecognized options" in capsys.readouterr().err
    cnn_lstm = PRESETS["cnn-lstm"].config
    assert flagged(cnn_lstm, Recipe(), "--model.channels", "7")[0].channels == 7


@pytest.mark.parametrize(("name", "preset"), [("small_mac", "small"), ("small_lstm", "lstm")])
def test_the_files_of_make_run(name: str, preset: str) -> None:
    """They say themselves by which command they are used, and `make run` uses it."""
    file = f"examples/{name}.toml"
    text = (ROOT / file).read_text()
    chosen = choose(["--preset", preset, "--recipe", "fast", "--overrides", str(ROOT / file)])
    said = tomllib.loads(text)
    assert {**vars(chosen.recipe), **said["recipe"]} == vars(chosen.recipe)
    numbers = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in said.get("model", {}).items()
    }
    assert {**vars(chosen.model), **numbers} == vars(chosen.model)
    in_makefile = (ROOT / "Makefile").read_text()
    for part in (f"--overrides {file}", "--size 64x64", "--recipe fast", f"--preset {preset}"):
        assert part in text
        assert part in in_makefile
