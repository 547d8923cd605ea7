"""Data that cannot be packed, as one meets it: what is said, and that nothing is left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from macnet.data.question_arrays import QuestionArrays
from sound_data import HEIGHT, IMAGES, WIDTH, assert_sound, packed, run

QUESTIONS = Path("data/questions/CLEVR_train_questions.json")
FOLDER = Path("data/images/train")


def rewritten(change: Callable[[list[dict[str, Any]]], object]) -> None:
    content = json.loads(QUESTIONS.read_text())
    change(content["questions"])
    QUESTIONS.write_text(json.dumps(content))


def remove(images: Sequence[str]) -> None:
    for name in images:
        (FOLDER / name).unlink()


def written(values: np.ndarray) -> None:
    with h5py.File("features.h5", "w") as file:
        file["features"] = values


def features(one: float = 1.0) -> np.ndarray:
    values = np.ones((3, 4, 2, 3), np.float32)
    values[1, 2, 0, 1] = one
    return values


MET: dict[str, tuple[Callable[[], object], str, str]] = {
    "missing images": (
        lambda: remove(IMAGES[1:]),
        "data",
        f"{FOLDER}: 1 of 3 images are there, 2 are missing: {IMAGES[1]}, {IMAGES[2]}; fetch them,",
    ),
    "no image at all": (
        lambda: remove(IMAGES),
        "data",
        f"{FOLDER}: it holds no images named as CLEVR_train_000000.png is",
    ),
    "a truncated picture": (
        lambda: os.truncate(FOLDER / IMAGES[2], 90),
        "data",
        f"{FOLDER / IMAGES[2]}: it cannot be read as an image (Truncated File Read)",
    ),
    "truncated features": (
        lambda: os.truncate("features.h5", 2100),
        "data --images features.h5",
        "features.h5: not HDF5, or damaged or cut short (",
    ),
    "features of another shape": (
        lambda: written(np.ones((3, 24), "f4")),
        "data --images features.h5",
        "features.h5: 'features' has the shape (3, 24); (images, channels, height, width) is",
    ),
    "NaN in features": (
        lambda: written(features(np.nan)),
        "data --images features.h5",
        "features.h5: row 1 of 'features' holds NaN or infinity",
    ),
    "features of fewer images": (
        lambda: written(features()[:2]),
        "data --images features.h5",
        f"features.h5: 2 of 3 images are there, 1 are missing: {IMAGES[2]}; fetch them, or leave",
    ),
    "truncated questions": (
        lambda: os.truncate("questions.h5", 2000),
        "questions.h5 --images features.h5 --vocabulary vocab.json",
        "questions.h5: not HDF5, or damaged or cut short (",
    ),
    "features for questions": (
        lambda: None,
        "features.h5 --images features.h5 --vocabulary vocab.json",
        'features.h5: it has no "questions"; is this a file of questions?',
    ),
    "a question about an absent image": (
        lambda: rewritten(
            lambda q: q[3].update(image_index=7, image_filename="CLEVR_train_000007.png")
        ),
        "data",
        f"{FOLDER}: 3 of 4 images are there, 1 are missing: CLEVR_train_000007.png; fetch them,",
    ),
    "an index twice": (
        lambda: rewritten(lambda q: q[3].update(question_index=1)),
        "data",
        f'{QUESTIONS}: 2 of its questions have the "question_index" 1',
    ),
    "an image twice": (
        lambda: shutil.copy(FOLDER / IMAGES[0], FOLDER / "CLEVR_train_0000000.png"),
        "data",
        f"{FOLDER}: CLEVR_train_000000.png and CLEVR_train_0000000.png are both image 0",
    ),
    "JSON cut in the middle": (
        lambda: os.truncate(QUESTIONS, 1000),
        "data",
        f"{QUESTIONS}: not JSON, or cut short at byte 1,000 (",
    ),
    "people's questions for CLEVR's": (
        lambda: shutil.copy("humans/CLEVR-Humans-train.json", QUESTIONS),
        "data",
        f'{QUESTIONS}: question 0: it has no "question_index"; is this CLEVR-Humans?',
    ),
    "CLEVR's questions for people's": (
        lambda: shutil.copy(QUESTIONS, "humans/CLEVR-Humans-train.json"),
        "humans --images data",
        'humans/CLEVR-Humans-train.json: question 0: it has a "question_index"; is this CLEVR?',
    ),
    "people's questions without images": (
        lambda: None,
        "humans",
        "humans: these come without images; say with --images where CLEVR's are",
    ),
    "no dataset": (
        lambda: None,
        "cache",
        "cache: not a dataset; it has neither questions/CLEVR_train_questions.json nor",
    ),
    "no folder": (lambda: None, "nowhere", "nowhere: there is no such folder; give the folder of"),
    "no such split": (
        lambda: None,
        "data --split val",
        "data: it has no split 'val'; it has train",
    ),
    "a size that no memory would hold": (
        lambda: None,
        "data --size 24x4097",
        "--size is 24x4097; it must be at least 1x1 and at most 4096x4096",
    ),
    "no vocabulary": (
        lambda: None,
        "data --vocabulary x.json",
        "x.json: there is no such file",
    ),
}


@pytest.mark.parametrize("case", MET)
def test_what_is_said_of(case: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damage, arguments, expected = MET[case]
    damage()
    before = {path for path in here.rglob("*") if "new" not in path.parts}
    said = run(capfd, f"pack {arguments} new")
    assert said is not None
    assert said.startswith(f"macnet: {expected}")
    assert before == {path for path in here.rglob("*") if "new" not in path.parts}
    assert not list(here.glob("new/.*.part"))


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_disk_that_is_full_at_any_moment(
    call: str, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = getattr(os, call), 0
    columns = len(fields(QuestionArrays))  # each is an array of its own

    def until_full(*arguments: Any) -> Any:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        room -= 1
        return real(*arguments)

    monkeypatch.setattr(os, call, until_full)
    for moment in range(20):
        room = moment
        said = run(capfd, f"pack data new --size {WIDTH}x{HEIGHT}")
        assert not list(here.glob("new/.*.part"))
        if said is None:
            break
        kind = "questions" if moment < columns else "images"
        assert re.match(rf"macnet: new/{kind}-\w+: no space left; make room, and the same", said)
        shutil.rmtree("new")
    assert moment > columns
    assert_sound(packed(here / "data", here / "new"))
