"""Examples and the page on the model: they run as written, and name what is there."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
import torch

from macnet.cli import main
from macnet.models import (
    config,
    control,
    encoders,
    layers,
    lstm,
    mac,
    presets,
    read,
    reference,
    write,
)
from macnet.models.kernels import deferred_grad
from macnet.models.mac import MACNetwork
from macnet.models.presets import ABLATIONS, PRESETS, preset

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "model.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
README = (ROOT / "README.md").read_text()
NAMED = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))
ROWS = {
    cells[0]: cells[1:]
    for line in PAGE.splitlines()
    if line.startswith("| ") and (cells := [cell.strip() for cell in line.strip("|").split("|")])
}
MODULES: list[ModuleType] = [
    *(config, control, encoders, layers, lstm, mac, presets, read, reference, write),
    deferred_grad,
]


# --- The example -----------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_the_table_of_a_scene_can_be_learned_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["scene_table.py", "--steps", "3", "--blocks", "1"])
    runpy.run_path(str(ROOT / "examples/scene_table.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"^step 3: loss \d\.\d+, accuracy \d+\.\d%$", printed, re.MULTILINE)
    assert re.search(r"^held-out accuracy: \d+\.\d%$", printed, re.MULTILINE)
    assert re.search(
        r"^held-out accuracy, always the usual answer: [12]\d\.\d%$", printed, re.MULTILINE
    )
    steps = re.findall(r"^  \d: (.+) \| (.+)$", printed, re.MULTILINE)
    assert len(steps) == 4
    assert all(part.count("%") == 2 for step in steps for part in step)


def test_the_page_shows_what_the_example_prints() -> None:
    shown = PAGE[PAGE.index("python examples/scene_table.py") :]
    for line in ("questions to learn from", "held-out accuracy: ", "by kind: ", "  4: "):
        assert line in shown


# --- The page --------------------------------------------------------------------------------


@pytest.mark.parametrize("block", BLOCKS)
def test_code_on_the_page_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(block, {})
    assert capsys.readouterr().out == "torch.Size([6, 20]) torch.Size([6, 196])\n"


def test_the_answers_of_the_readme_are_those_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the bars of answers that are hardly possible, which rounding may reorder."""
    monkeypatch.chdir(tmp_path)
    (shown,) = re.findall(r"```\n(\$ macnet ask .*?)```", README, re.DOTALL)
    asked = re.findall(r"^\$ macnet (.*)\n((?:(?!\$ ).*\n)*)", shown, re.MULTILINE)
    assert len(asked) == 3
    for command, expected in asked:
        assert main(shlex.split(command)) == 0
        out, err = capsys.readouterr()
        lines = [*err.splitlines(), *out.splitlines()]
        assert [line for line in lines if " 0.0%" not in line] == [
            line for line in expected.splitlines() if " 0.0%" not in line
        ]


def test_every_preset_is_on_the_page() -> None:
    assert set(PRESETS) <= NAMED


@pytest.mark.parametrize("row", ABLATIONS)
def test_every_row_of_table_2_is_on_the_page(row: str) -> None:
    changes = ROWS[row][0].split("`")[1] if "`" in ROWS[row][0] else ""
    said = eval(f"dict({changes})")
    assert said.items() <= ABLATIONS[row].items()
    assert set(ABLATIONS[row]) - set(said) <= {"attend"}  # as the line below the table has it


def test_the_page_counts_parameters() -> None:
    counted = 0
    for name, p, numbers in re.findall(r"^\| `([\w-]+)` \| (\w+) \| ([\d,]+) \|$", PAGE, re.M):
        with torch.device("meta"):
            network = MACNetwork(
                preset(name, p=7 if p == "any" else int(p)), vocabulary=90, answers=28
            )
        assert sum(w.numel() for w in network.parameters()) == int(numbers.replace(",", ""))
        counted += 1
    assert counted == 4


def test_files_on_the_page_exist() -> None:
    files = {name for name in NAMED if re.fullmatch(r"[\w/]+\.py", name)}
    assert len(files) > 8
    for name in files:
        assert (ROOT / "src/macnet/models" / name).exists() or (ROOT / name).exists(), name


def test_classes_and_methods_on_the_page_exist() -> None:
    names = {name for name in NAMED if re.fullmatch(r"[A-Z]\w+(\.\w+)?", name)}
    assert len(names) > 15
    for name in names:
        owner, _, member = name.partition(".")
        found = [getattr(module, owner) for module in MODULES if hasattr(module, owner)]
        assert found, name
        assert not member or hasattr(found[0], member), name


def test_fields_and_functions_on_the_page_exist() -> None:
    known = {f.name for f in (*fields(config.MACConfig), *fields(config.Dropout))}
    known |= {name for module in MODULES for name in vars(module)} | {"vocabulary"}
    known |= set(PRESETS) | set(dir(read.ReadUnit)) | {"models"}
    for name in NAMED:
        if re.fullmatch(r"(dropout\.)?[a-z]\w*", name):
            assert name.removeprefix("dropout.") in known, name
