"""Damaged files: each is read as it was meant, or refused in one sentence that names it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from damages import damaged, mutated, resealed
from macnet.clevr.images import read_image
from macnet.data import extract as extraction
from macnet.data.extract import extract_features
from macnet.data.features import open_features
from macnet.data.resnet import load_resnet
from macnet.errors import InputError
from sound_data import HEIGHT, IMAGES, WIDTH, assert_sound, packed, run

SEEDS = range(20)  # of damages, for each kind of file


class Case(NamedTuple):
    file: str
    command: str
    pack: str
    """The kind of pack that is made from the file."""


CASES = {
    "CLEVR": Case("data/questions/CLEVR_train_questions.json", "data", "questions"),
    "Humans": Case("humans/CLEVR-Humans-train.json", "humans --images data", "questions"),
    "picture": Case(f"data/images/train/{IMAGES[1]}", "data", "images"),
    "features": Case("features.h5", "data --images features.h5", "features"),
    "chunked": Case("chunked.h5", "data --images chunked.h5", "features"),
    "questions": Case(
        "questions.h5", "questions.h5 --images features.h5 --vocabulary vocab.json", "questions"
    ),
    "words": Case("words.json", "data --vocabulary words.json", "questions"),
    "vocab": Case("vocab.json", "data --vocabulary vocab.json", "questions"),
}
SAME_KIND = [
    {CASES[a].file, CASES[b].file}
    for a, b in (*((name, name) for name in CASES), ("features", "chunked"), ("words", "vocab"))
]


def refusal(attempt: Callable[[], object]) -> str | None:
    """What is said by something that is no command; None if it succeeds."""
    try:
        attempt()
    except InputError as error:
        said = str(error)
    else:
        return None
    assert len(said) < 900
    return said


def escapes(file: Path, attempt: Callable[[], None], seeds: range | None = None) -> list[str]:
    """What goes wrong with a file that is damaged in many ways."""
    content, found = file.read_bytes(), []
    clever = {".json": mutated, ".png": resealed}.get(file.suffix, damaged)
    for seed in seeds or SEEDS:
        rng = random.Random(f"{file.name}/{seed}")
        damage = rng.choice([clever, damaged])
        file.write_bytes(damage(content, rng))
        try:
            attempt()
        except Exception as error:
            found.append(f"{damage.__name__} {seed}: {type(error).__name__} {error}")
    file.write_bytes(content)
    return found


@pytest.mark.parametrize("name", CASES)
def test_damaged_sources(name: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    data, *options = case.command.split()
    given = dict(zip([flag[2:] for flag in options[::2]], map(Path, options[1::2]), strict=True))

    def attempt() -> None:
        shutil.rmtree("new", ignore_errors=True)
        said = run(capfd, f"pack {data} new --size {WIDTH}x{HEIGHT} {' '.join(options)}")
        if said is None:
            assert_sound(packed(Path(data), Path("new"), **given))
            return
        assert Path(case.file).name in said
        there = [path.name for path in Path().glob("new/*") if path.suffix != ".lock"]
        assert not [name for name in there if name.startswith(".")]
        # Questions about images that are not there are no damage: these may come.
        assert " missing" in said or not [name for name in there if name.startswith(case.pack)]

    attempt()
    assert Path("new").exists()
    assert not escapes(here / case.file, attempt)


def test_a_picture_is_right_or_refused(here: Path) -> None:
    file = here / "picture.png"
    gradient = np.indices((40, 60)).sum(axis=0)[..., None] * [1, 2, 3] % 256
    Image.fromarray(gradient.astype(np.uint8)).save(file)
    content, pixels = file.read_bytes(), read_image(file, 60, 40)
    read = []
    for seed in SEEDS:
        file.write_bytes(damaged(content, random.Random(seed)))
        said = refusal(lambda: read.append(read_image(file, 60, 40)))
        assert said is None or said.startswith(f"{file}: it cannot be read as an image")
    assert 0 < len(read) < len(SEEDS) // 2
    assert all(np.array_equal(found, pixels) for found in read)


@pytest.mark.parametrize("kind", ["words", "images", "features", "questions"])
def test_damaged_packs(kind: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder,) = (here / "cache").glob(f"{kind}-*")
    more = "--images features.h5" if kind == "features" else ""

    def attempt() -> None:
        said = run(capfd, f"pack data cache --size {WIDTH}x{HEIGHT} {more}")
        # Numbers in an array may be any. They have no checksum: to open a pack is not to read it.
        assert said is None or " missing" in said or (str(folder.name) in said and "remove" in said)

    attempt()
    assert len(list(here.glob("cache/[!.]*"))) == 4
    for file in folder.iterdir():
        many = len(SEEDS) if file.suffix == ".json" else len(SEEDS) // 5
        assert not escapes(file, attempt, SEEDS[:many])


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_damaged_weights(name: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def attempt() -> None:
        said = refusal(lambda: load_resnet(here / name, 0))
        assert said is None or said.startswith(f"{here / name}: ")
        assert capfd.readouterr().err == ""

    attempt()
    assert not escapes(here / name, attempt)


@pytest.mark.parametrize("name", ["out.h5", "begun/count.json", "begun/features.h5"])
def test_damaged_extractions(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extraction.CHANNELS_AND_SIDE, 0, (64, 56))
    monkeypatch.setattr(extraction, "SECONDS_BETWEEN_COUNTS", 0.0)
    network = load_resnet(here / "weights.pth", 0)
    images = dict(enumerate(sorted((here / "data/images/train").iterdir())))
    last = images[2].read_bytes()
    images[2].write_bytes(b"")
    out, unfinished = here / "out.h5", here / ".out.h5.unfinished"
    assert refusal(lambda: extract_features(images, out, network, split="train", batch=1))
    images[2].write_bytes(last)
    unfinished.rename(here / "begun")
    if name == "out.h5":
        extract_features(images, out, network, split="train")

    def attempt() -> None:
        if name != "out.h5":
            out.unlink(missing_ok=True)
            shutil.copytree(here / "begun", unfinished, dirs_exist_ok=True)
        said = refusal(lambda: extract_features(images, out, network, split="train"))
        if said is None:
            assert open_features(out).shape == (3, 64, 56, 56)
        else:
            assert said.startswith((f"{out}: ", f"{unfinished}: "))

    attempt()
    assert not escapes(here / name, attempt, SEEDS[: len(SEEDS) // 2])


@pytest.mark.parametrize("name", CASES)
def test_another_thing_in_its_place(
    name: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    file = here / case.file
    data, *options = case.command.split()
    command = f"pack {data} new --size {WIDTH}x{HEIGHT} {' '.join(options)}"
    contents = {other.file: (here / other.file).read_bytes() for other in CASES.values()}
    for other in ("nothing", "empty", "folder", *contents):
        file.unlink()
        if other == "folder":
            file.mkdir()
        elif other != "nothing":
            file.write_bytes(contents.get(other, b""))
        said = run(capfd, command)
        # Files of the same kind in each other's place are no error.
        if said is not None or {other, case.file} not in SAME_KIND:
            assert said is not None
            assert file.name in said, other
            assert not list(here.glob(f"new/{case.pack}-*")) or " missing" in said
            assert not list(here.glob("new/*.part"))
        if file.is_dir():
            file.rmdir()
        file.write_bytes(contents[case.file])
        shutil.rmtree("new", ignore_errors=True)
