"""`macnet explain`: five kinds of file, of any picture or a fresh one; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from macnet.cli import main
from small_data import sentence

QUESTION = "Are there any cubes?"


@pytest.fixture(autouse=True)
def picture(here: Path) -> Path:
    Image.new("RGB", (48, 32), (90, 120, 150)).save(here / "picture.png")
    return here / "picture.png"


def explains(*arguments: str | Path) -> None:
    assert main(["explain", *map(str, arguments)]) == 0


@pytest.mark.parametrize(
    "name", ["figure.png", "figure.svg", "figure.pdf", "film.GIF", "new/folder/page.html"]
)
def test_the_name_says_what_is_written(
    name: str, made: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    explains("picture.png", QUESTION, "--out", name, "--model", made)
    answer, told = capsys.readouterr().out.splitlines()
    assert told == f"{name}: its attention in 2 steps"
    main(["ask", "picture.png", QUESTION, "--model", str(made)])
    assert capsys.readouterr().out.splitlines()[0] == answer
    content = (here / name).read_bytes()
    if name.endswith(".html"):
        assert f'<p class="answer named">{answer}</p>' in content.decode()
    elif name.endswith(("png", "GIF")):
        with Image.open(here / name) as image:
            assert image.format == name[-3:].upper()
            assert (getattr(image, "n_frames", 1) > 2) == name.endswith("GIF")
    else:
        assert content.startswith({"svg": b"<?xml", "pdf": b"%PDF"}[name[-3:]])
    assert [path.name for path in (here / name).parent.iterdir() if ".part" in path.name] == []


def test_the_steps_that_are_shown(made: Path, here: Path) -> None:
    frames = {}
    for steps in ("2", "1-2", "all", "2,1,2"):
        explains("picture.png", QUESTION, "--out", "a.gif", "--model", made, "--steps", steps)
        frames[steps] = (here / "a.gif").read_bytes()
        with Image.open(here / "a.gif") as film:
            assert film.n_frames == (3 if steps == "2" else 4)  # type: ignore[attr-defined]
    assert frames["1-2"] == frames["all"] == frames["2,1,2"]


def test_a_fresh_scene_is_kept(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        explains(QUESTION, "--out", "a.html", "--model", made, "--seed", "7", "--save", "s.png")
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "s.png: a new scene; --seed 7 generates it again"
    first = (here / "a.html").read_bytes()
    explains("s.png", QUESTION, "--out", "b.html", "--model", made)
    assert (here / "b.html").read_bytes() == first


def test_unknown_words_are_named(
    made: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    explains("picture.png", "Are there any cubse?", "--out", "a.html", "--model", made)
    assert capsys.readouterr().err == "It read 'cubse' as 'cubes'.\n"
    assert "It read &#x27;cubse&#x27; as &#x27;cubes&#x27;." in (here / "a.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["picture.png", QUESTION, "--out", "a.eps"],
            "--out is a.eps; its name must end in .png, .svg, .pdf, .gif, .html",
        ),
        (["picture.png", QUESTION, "--out", "a"], "--out is a; its name must end in .png, .svg"),
        (["picture.png", QUESTION, "--out", "a.png"], "--out is a.png, which is a folder"),
        (
            [QUESTION, "--seed", "5", "--out", "scene-5.png"],
            "--out is scene-5.png, which is the image itself; name another file",
        ),
        (
            ["picture.png", QUESTION, "--out", "./picture.png"],
            "--out is picture.png, which is the image itself; name another file",
        ),
        ([QUESTION, "--save", "b.png", "--out", "b.png"], "--out is b.png, which is the image"),
        ([QUESTION, "--save", "b.jpg", "--out", "b.png"], "--save is b.jpg; its name must end in"),
        (["picture.png", QUESTION, "--out", "b.png", "--seed", "1"], "--seed is given, but"),
        (["nowhere.png", QUESTION, "--out", "b.png"], "nowhere.png: there is no such file"),
        (["picture.png", "", "--out", "b.png"], "the question is empty"),
        *(
            (["picture.png", QUESTION, "--out", "b.png", "--steps", steps], expected)
            for steps, expected in (
                ("some", "--steps is some; give all, or numbers such as 1,10-12"),
                ("", "--steps is ; give all, or numbers"),
                ("1-", "--steps is 1-; give all"),
                ("2-1", "--steps has 2-1; steps are counted from 1, upwards"),
                ("0", "--steps has 0; steps are counted from 1"),
                ("1-99999999", "--steps has 99999999; no network has so many steps"),
                ("1,3", "--steps has 3; choose from 1 to 2, for it has no more"),
            )
        ),
        (
            ["picture.png", QUESTION, "--out", "b.html", "--steps", "1"],
            "--steps is given, but a page lets its reader choose; leave it out",
        ),
        (
            ["picture.png", QUESTION, "--out", "b.html", "--keep-resting"],
            "--keep-resting is given, but a page lets its reader choose",
        ),
        (["picture.png", "--out", "b.png"], "picture.png: this is a file; put a question"),
        (["--out", "b.png"], "there is no question"),
    ],
)
def test_what_it_refuses(
    arguments: list[str],
    expected: str,
    made: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "a.png").mkdir()
    before = sorted(here.rglob("*")), (here / "picture.png").read_bytes()
    assert expected in sentence(capsys, "explain", *arguments, "--model", made)
    assert (sorted(here.rglob("*")), (here / "picture.png").read_bytes()) == before


def test_a_system_that_attends_to_nothing(
    data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--size 16x16 --model.units 8 --model.embedding 6 --recipe.epochs 1 --workers 1"
    assert main(["train", str(data), "--preset", "cnn-lstm", "--out", "run", *small.split()]) == 0
    said = sentence(capsys, "explain", "picture.png", QUESTION, "--out", "a.png", "--model", "run")
    assert "has no attention" in said
    assert not (here / "a.png").exists()


def test_out_is_needed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = sentence(capsys, "explain", "picture.png", QUESTION, "--model", made)
    assert said == "--out must be given; see macnet explain --help"
