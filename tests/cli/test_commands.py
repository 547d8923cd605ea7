"""What `macnet --help` shows, and how the library's arguments become flags."""

from __future__ import annotations

import re
import shlex

import pytest

import macnet
from macnet.cli import main
from macnet.cli.commands import COMMANDS, GROUPS, flag_of, overview, parse
from macnet.cli.main import with_flags


def test_help_lists_asking_and_training_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = re.findall(r"^  (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert listed[:4] == ["ask", "explain", "train", "evaluate"]
    assert listed == list(COMMANDS)


def test_help_has_groups_and_fits_a_terminal() -> None:
    lines = overview().splitlines()
    assert [f"{title}:" in lines for title in GROUPS] == [True] * len(GROUPS)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_can_be_parsed(name: str) -> None:
    program, *arguments = shlex.split(COMMANDS[name].example)
    assert program == "macnet"
    assert arguments[0] == name
    assert callable(parse(arguments))


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"macnet {macnet.__version__}\n"


@pytest.mark.parametrize(
    ("typed", "meant"), [("trian", "train"), ("evalute", "evaluate"), ("aks", "ask")]
)
def test_a_mistyped_command(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "argument", "flag"),
    [
        ("train", "recipe.lr", "--recipe.lr"),
        ("train", "validate_on", "--validate-on"),
        ("generate", "out", "OUT"),
        ("train", "out", "--out"),
        ("evaluate", "run", "RUN"),
    ],
)
def test_arguments_become_flags_or_places(command: str, argument: str, flag: str) -> None:
    assert flag_of(command, argument) == flag


def test_messages_of_the_library_are_translated() -> None:
    message = "`min_count` is 0; see `macnet pack`, and give `images`"
    assert with_flags(message, ["pack"]) == (
        "--min-count is 0; see `macnet pack`, and give --images"
    )
    assert with_flags(message, []) == message


def test_every_public_name_of_macnet_is_there() -> None:
    for name in macnet.__all__:
        assert getattr(macnet, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        macnet.lod  # noqa: B018
