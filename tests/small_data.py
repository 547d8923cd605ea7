"""A dataset of a few small pictures on disk, and the commands that learn from it in a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from macnet.cli import main
from sound_data import COUNT, EXIST

SIDE = 16
COUNTS = {"train": 8, "val": 4, "test": 3}
SMALL = (
    "--size 16x16 --model.d 8 --model.p 2 --model.embedding 6 --model.widths 4 6 8 "
    "--model.blocks 0 1 1 --workers 1 --device cpu"
)
QUICK = "--recipe.epochs 2 --recipe.images 4 --recipe.questions 2 --recipe.lr 0.01"


def records(split: str, count: int, *texts: str) -> list[dict[str, Any]]:
    """Questions about each of so many images: two of CLEVR's, or these of people's."""
    made: list[dict[str, Any]] = []
    for i in range(count):
        metadata = {
            "image_index": i,
            "image_filename": f"CLEVR_{split}_{i:06d}.png",
            "split": split,
        }
        made += ({**metadata, "question": text, "answer": "no"} for text in texts)
        if not texts:
            for text, answer, program in (
                ("How many red things are there?", str(i % 3), COUNT),
                ("Are there any cubes?", "yes", EXIST),
            ):
                labels = {"answer": answer, "question_family_index": 5, "program": program}
                asked = {**metadata, "question_index": len(made), "question": text}
                made.append(asked if split == "test" else {**asked, **labels})
    return made


def write_questions(path: Path, split: str, asked: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"info": {"split": split}, "questions": asked}))


def write_data(root: Path, suffix: str = "", counts: dict[str, int] = COUNTS) -> Path:
    """In the layout of CLEVR, or with a suffix to its splits in that of CoGenT."""
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        split = name + suffix
        write_questions(
            root / f"questions/CLEVR_{split}_questions.json", split, records(split, count)
        )
        (root / "images" / split).mkdir(parents=True)
        for i in range(count):
            noise = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(noise).save(root / "images" / split / f"CLEVR_{split}_{i:06d}.png")
    return root


def write_humans(root: Path) -> Path:
    for split in ("train", "val"):
        asked = records(split, COUNTS[split], "Could a wug hide there?")
        write_questions(root / f"CLEVR-Humans-{split}.json", split, asked)
    return root


def run_train(*arguments: str | Path, code: int = 0) -> None:
    """A small MAC, for two epochs."""
    given = ["train", *map(str, arguments), *SMALL.split(), *QUICK.split()]
    assert main(given) == code


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command says that refuses."""
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    line = captured.err.splitlines()[-1]
    assert line.startswith("macnet: ")
    assert "Traceback" not in captured.err
    return line.removeprefix("macnet: ")


def metadata_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_bytes())
    return found
