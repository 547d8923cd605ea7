"""A dataset of three images in every kind of file there is, for tests that damage it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from macnet.cli import main
from macnet.data.clevr_h5 import write_questions_h5, write_vocab_json
from macnet.data.dataset import Dataset
from macnet.data.pack import pack_split, pack_vocabulary
from macnet.data.question_arrays import TYPES, UNKNOWN
from macnet.data.resnet import ResNet101
from macnet.data.splits import find_split
from macnet.data.vocab import ANSWERS, PROGRAM_TOKENS

WIDTH, HEIGHT = 12, 8
PROGRESS = re.compile(r"(packing|extracted) \d+/\d+, .*")


def step(function: str, inputs: list[int], *values: str) -> dict[str, Any]:
    return {"function": function, "inputs": inputs, "value_inputs": list(values)}


COUNT = [step("scene", []), step("filter_color", [0], "red"), step("count", [1])]
EXIST = [step("scene", []), step("filter_shape", [0], "cube"), step("exist", [1])]
IMAGES = [f"CLEVR_train_{i:06d}.png" for i in range(3)]


def asked(image: int, text: str, answer: str) -> dict[str, Any]:
    return {
        "image_index": image,
        "image_filename": IMAGES[image],
        "split": "train",
        "question": text,
        "answer": answer,
    }


PEOPLES = [asked(i, f"Could {i} balls hide behind the blob?", "no") for i in range(3)]
RECORDS = [
    {**record, "question_index": number, "question_family_index": 5, "program": program}
    for number, (record, program) in enumerate(
        pair
        for i in range(3)
        for pair in (
            (asked(i, "How many red things are there?", str(i)), COUNT),
            (asked(i, "Are there any cubes?", "yes"), EXIST),
        )
    )
]


def make_sound(root: Path) -> Path:
    """One file of each kind there is, and `cache`, a pack of each kind."""
    for folder in ("data/images/train", "data/questions", "humans"):
        (root / folder).mkdir(parents=True)
    for name, records in (
        ("data/questions/CLEVR_train_questions.json", RECORDS),
        ("humans/CLEVR-Humans-train.json", PEOPLES),
    ):
        (root / name).write_text(json.dumps({"info": {"split": "train"}, "questions": records}))
    rng = np.random.default_rng(0)
    for name in IMAGES:
        noise = rng.integers(0, 256, (HEIGHT, WIDTH, 4), dtype=np.uint8)
        Image.fromarray(noise).save(root / "data/images/train" / name)
    values = rng.random((3, 4, 2, 3), np.float32)
    with h5py.File(root / "features.h5", "w") as file:
        file["features"] = values
    with h5py.File(root / "chunked.h5", "w") as file:
        file.create_dataset("features", data=values, chunks=(1, 4, 2, 3), compression="gzip")
    dataset = packed(root / "data", root / "cache")
    packed(root / "data", root / "cache", images=root / "features.h5")
    dataset.vocabulary.save(root / "words.json")
    write_vocab_json(root / "vocab.json", dataset.vocabulary)
    write_questions_h5(root / "questions.h5", dataset.questions)
    weights = {name: array.clone() for name, array in ResNet101(0).state_dict().items()}
    torch.save(weights, root / "weights.pth")
    save_file(weights, root / "weights.safetensors")
    return root


def packed(
    data: Path, cache: Path, images: Path | None = None, vocabulary: Path | None = None
) -> Dataset:
    words = pack_vocabulary(data, "train", cache, vocabulary)
    return pack_split(find_split(data, "train", images), cache, words, size=(WIDTH, HEIGHT))


def run(capfd: pytest.CaptureFixture[str], command: str) -> str | None:
    """What is said if a command refuses; None if it succeeds."""
    code = main(command.split())
    captured = capfd.readouterr()
    lines = [line for line in captured.err.split("\n")[:-1] if not PROGRESS.fullmatch(line)]
    if code == 0:
        assert lines == []
        return None
    assert code == 2
    assert captured.out == ""
    (line,) = lines
    assert line.startswith("macnet: ")
    assert line.isprintable()
    assert len(line) < 600
    return line


def assert_sound(data: Dataset) -> None:
    q = data.questions
    assert (q.tokens < len(data.vocabulary)).all()
    assert (q.lengths > 0).all()
    assert np.array_equal(q.lengths, (q.tokens != 0).sum(axis=1))
    assert ((q.answers >= UNKNOWN) & (q.answers < len(ANSWERS))).all()
    assert ((q.types >= UNKNOWN) & (q.types < len(TYPES))).all()
    assert (q.programs < len(PROGRAM_TOKENS)).all()
    assert ((data.image_rows >= 0) & (data.image_rows < len(data.images))).all()
    assert np.isfinite(data.images).all()
    assert len(data) == len(q) > 0
