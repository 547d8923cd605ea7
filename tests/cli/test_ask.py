"""`macnet ask`: about a picture, or about a scene it draws; and what it refuses."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import macnet
from macnet import checkpoint
from macnet.checkpoint import BEST
from macnet.cli import main
from macnet.data.vocab import ANSWERS
from small_data import sentence
from tiny_networks import write_network

QUESTION = "What color is the cube?"
SCENE = np.random.default_rng(0).integers(0, 256, (32, 48, 4), dtype=np.uint8)
LINE = re.compile(r"  (\w+) +(\d+\.\d)%( █+)?")


@pytest.fixture(scope="module", autouse=True)
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("asked") / "run")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where there is a picture; the network is the one that is shipped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint, "SHIPPED", run / BEST)
    Image.fromarray(SCENE).save("scene.png")
    return tmp_path


def asks(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[list[str], list[str]]:
    """The lines of what it says, and of what it remarks."""
    capsys.readouterr()
    assert main(["ask", *map(str, arguments)]) == 0
    said = capsys.readouterr()
    return said.out.splitlines(), said.err.splitlines()


# --- about a picture -------------------------------------------------------------------------


def test_the_answer_first_then_the_likeliest(capsys: pytest.CaptureFixture[str]) -> None:
    (answer, *likely), remarks = asks(capsys, "scene.png", QUESTION)
    expected = macnet.load().ask("scene.png", QUESTION)
    assert (answer, remarks) == (expected.answer, [])
    assert len(likely) == 5
    for line, (name, share) in zip(likely, expected.probabilities.items(), strict=False):
        parts = LINE.fullmatch(line)
        assert parts, line
        assert parts[1] == name
        assert float(parts[2]) == pytest.approx(100 * share, abs=0.051)
        assert len((parts[3] or " ").strip()) == round(40 * share)


@pytest.mark.parametrize(("top", "shown"), [(1, 1), (3, 3), (28, 28), (1000, 28)])
def test_as_many_answers_as_there_are(
    top: int, shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, _ = asks(capsys, "scene.png", "--top", str(top), QUESTION)
    assert len(lines) == 1 + shown
    assert lines[0] == lines[1].split()[0]
    assert {line.split()[0] for line in lines} <= set(ANSWERS)


def test_of_another_network(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_network(here / "other", seed=1)
    by_default, _ = asks(capsys, "scene.png", QUESTION)
    by_folder, _ = asks(capsys, "scene.png", QUESTION, "--model", other)
    by_file, _ = asks(capsys, "--model", other / BEST, "scene.png", QUESTION)
    assert by_folder == by_file != by_default


def test_words_it_has_never_read(capsys: pytest.CaptureFixture[str]) -> None:
    slipped, remarks = asks(capsys, "scene.png", "What colour is teh cube?")
    assert slipped == asks(capsys, "scene.png", QUESTION)[0]
    assert remarks == ["It read 'colour' as 'color', 'teh' as 'the'."]
    _, remarks = asks(capsys, "scene.png", "Gibt es einen \x1b[31mroter Würfel, shpere 🙂")
    assert remarks == [
        "It read 'shpere' as 'sphere'.",
        "It has never read 'gibt', 'es', 'einen', '\\x1b[31mroter', 'würfel', '🙂', "
        "and left them out.",
    ]
    _, (remark,) = asks(capsys, "scene.png", f"Is it a cube, {'w' * 100_000}?")
    assert len(remark) < 100
    assert len(sentence(capsys, "ask", "scene.png", "w" * 100_000)) < 200


def test_garbage_is_collected_again(capsys: pytest.CaptureFixture[str]) -> None:
    asks(capsys, "scene.png", QUESTION)
    assert gc.isenabled()
    sentence(capsys, "ask", "scene.png", "")
    assert gc.isenabled()


WATCHED = """
import gc, os, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            print("collected" if gc.isenabled() else "not collected", file=sys.stderr)
            os._exit(0)
sys.meta_path.insert(0, Finder())
from macnet.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", [["ask"], ["explain", "--out", "out.png"]])
def test_no_garbage_is_collected_while_torch_is_loaded(
    command: list[str], here: Path, run: Path
) -> None:
    """It would take as long as the answer."""
    Image.fromarray(SCENE).save(here / "scene.png")
    name, *options = command
    arguments = [name, "scene.png", QUESTION, "--model", str(run), *options]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stderr == "not collected\n"


# --- about a fresh scene ---------------------------------------------------------------------


def test_a_fresh_scene(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said, (remark,) = asks(capsys, QUESTION)
    found = re.fullmatch(r"(scene-(\d+)\.png): a new scene; --seed (\2) generates it again", remark)
    assert found, remark
    with Image.open(found[1]) as image:
        assert image.size == (480, 320)
    assert asks(capsys, found[1], QUESTION)[0] == said
    again, (remark,) = asks(capsys, QUESTION, "--seed", found[2], "--save", "new/again.PNG")
    assert remark == f"new/again.PNG: a new scene; --seed {found[2]} generates it again"
    assert again == said
    assert (here / "new/again.PNG").read_bytes() == (here / found[1]).read_bytes()
    asks(capsys, QUESTION, "--seed", str(int(found[2]) + 1), "--save", "other.png")
    assert (here / "other.png").read_bytes() != (here / found[1]).read_bytes()


def test_a_scene_that_cannot_be_asked_about_is_not_kept(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for question, expected in (
        (" ", "the question is empty; ask one in the words"),
        ("cube " * 500, "the question has 500 words; 255 is the most"),
    ):
        assert sentence(capsys, "ask", question).startswith(expected)
    assert [path.name for path in here.iterdir()] == ["scene.png"]


# --- what it refuses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "there is no question; ask one, such as"),
        (["nope.png"], "nope.png: there is no such file, and no question about it"),
        (["scene.png"], "scene.png: this is a file; put a question about it, in quotes, after it"),
        (["scene.png", ""], "the question is empty; ask one in the words"),
        (["scene.png", "cube " * 500], "the question has 500 words; 255 is the most"),
        (["nothing.png", QUESTION], "nothing.png: there is no such file"),
        ([".", QUESTION], ".: this is a folder, not a file"),
        ([__file__, QUESTION], f"{__file__}: it cannot be read as an image"),
        (["scene.png", QUESTION, "--top", "0"], "--top is 0; it must be at least 1"),
        (["scene.png", QUESTION, "--model", "x"], "x: there is no such file"),
        (["scene.png", QUESTION, "--model", "."], ".: there is no best.safetensors in it"),
        (["scene.png", QUESTION, "--model", "scene.png"], "scene.png: it is damaged, or no check"),
        (["scene.png", QUESTION, "--device", "tpu"], "--device is 'tpu'"),
        (["scene.png", QUESTION, "--seed", "1"], "--seed is given, but scene.png is what to ask"),
        (["scene.png", QUESTION, "--save", "a.png"], "--save is given, but scene.png is what to"),
        ([QUESTION, "--save", "a.jpg"], "--save is a.jpg; its name must end in .png"),
    ],
)
def test_what_cannot_be(
    arguments: list[str], expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence(capsys, "ask", *arguments).startswith(expected)
    assert [path.name for path in here.iterdir()] == ["scene.png"]


def test_without_the_network_that_is_shipped(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpoint, "SHIPPED", here / "mac.safetensors")
    assert sentence(capsys, "ask", "scene.png", QUESTION) == (
        f"{here}/mac.safetensors: the network that comes with macnet is missing; install macnet "
        "again, or give a run of your own"
    )
