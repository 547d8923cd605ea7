"""What README and docs show is run as it stands: blocks of Python, and every command's flags."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from macnet.clevr.generate import generate
from macnet.clevr.world import World
from macnet.cli import commands as table
from macnet.cli.commands import COMMANDS
from macnet.cli.main import main
from macnet.cli.train import command

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


class Block(NamedTuple):
    page: str
    code: str


def blocks(language: str) -> list[Block]:
    """Of all pages, in order."""
    return [
        Block(page.name, code)
        for page in PAGES
        for code in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.M)
    ]


# --- Python ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, sound: Path) -> Path:
    """What the blocks find: a clone in which `make run` was run, and files of the community's."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs/scene.png", folder / "docs")
    generate(
        folder / "out/world",
        World(seed=1, width=48, height=32),
        {"train": 8, "val": 0, "test": 0},
        device="cpu",
        workers=0,
    )
    shutil.copy(sound / "vocab.json", folder)
    shutil.copy(sound / "questions.h5", folder / "val_questions.h5")
    return folder


@pytest.mark.parametrize(
    "block", [pytest.param(b, id=f"{b.page}-{i}") for i, b in enumerate(blocks("python"))]
)
def test_a_block_of_python_runs_as_it_stands(
    block: Block, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone)
    small = block.code.replace("width=128, height=128", "width=32, height=32")  # drawn sooner
    exec(compile(small, block.page, "exec"), {"__name__": "__main__"})


def readme(name: str) -> str:
    """The block of Python in the README that uses this."""
    (block,) = (b for b in blocks("python") if b.page == "README.md" and f"{name}(" in b.code)
    return block.code


def test_the_five_lines_of_the_readme_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(readme("macnet.load"), {})
    answer, probability = capsys.readouterr().out.split()
    assert answer == "blue"
    assert 0 <= float(probability) < 0.01
    assert len(readme("macnet.load").strip().splitlines()) == 5


def test_the_network_of_the_readme_answers() -> None:
    names: dict[str, Any] = {}
    exec(readme("MACNetwork"), names)
    assert names["logits"].shape == (6, 28)
    assert len(names["steps"]) == 12


# --- commands --------------------------------------------------------------------------------


def commands() -> list[str]:
    """Every line of a shell that calls macnet; a backslash joins it to the next."""
    lines = (
        line.strip().removeprefix("$ ")
        for language in ("sh", "")
        for block in blocks(language)
        for line in block.code.replace("\\\n", " ").splitlines()
    )
    found = (re.sub(r"^torchrun .* -m macnet ", "macnet ", line) for line in lines)
    return [line for line in dict.fromkeys(found) if line.startswith("macnet ")]


def idle(run: Callable[..., None]) -> Callable[..., None]:
    """The same flags, and nothing done."""
    return functools.wraps(run)(lambda *_, **__: None)


@pytest.mark.parametrize("line", commands())
def test_a_command_is_understood(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its options are there; what RUN and DATA stand for is not, so it is not carried out."""

    def flags_of_train(arguments: list[str]) -> Callable[..., None]:
        files = re.compile(r"--(from|overrides) \S+ ?")  # which are not there to be read
        made = command(shlex.split(files.sub("", shlex.join(arguments))))
        assert isinstance(made, functools.partial)
        return functools.partial(idle(made.func), **made.keywords)

    monkeypatch.setattr(table, "command", flags_of_train)
    monkeypatch.setattr(table, "COMMANDS", {name: idle(run) for name, run in COMMANDS.items()})
    assert main(shlex.split(line, comments=True)[1:]) == 0, capsys.readouterr().err


def test_there_are_commands_to_understand() -> None:
    assert len(commands()) > 30
    assert {line.split()[1] for line in commands()} >= {*COMMANDS} - {"compare"}
