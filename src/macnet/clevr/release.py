"""The layout of CLEVR on disk: names of files, and the records in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from macnet.clevr.questions import Question
from macnet.clevr.scene import Scene, from_record
from macnet.errors import InputError
from macnet.files import read_json

WORLD_FORMAT = 1  # of generated worlds: increment it when the same settings give other bytes
SPLITS = ("train", "val", "test")
UNFINISHED = ".unfinished"  # a folder in the root of a world that is not complete yet


def image_name(split: str, index: int) -> str:
    """File name of an image."""
    return f"CLEVR_{split}_{index:06d}.png"


def image_pattern(split: str) -> re.Pattern[str]:
    """Matches the file names of a split's images; its group is their index."""
    return re.compile(rf"CLEVR_{re.escape(split)}_(\d{{6,9}})\.png", re.ASCII)


def images_folder(root: Path, split: str) -> Path:
    """Folder of the images of a split."""
    return root / "images" / split


def scenes_file(root: Path, split: str) -> Path:
    """JSON file of the scenes of a split."""
    return root / "scenes" / f"CLEVR_{split}_scenes.json"


def questions_file(root: Path, split: str) -> Path:
    """JSON file of the questions of a split."""
    return root / "questions" / f"CLEVR_{split}_questions.json"


def is_unlabeled(split: str) -> bool:
    """Whether a split is a test split, of which neither scenes nor answers are released."""
    return split.startswith("test")


def info_record(split: str) -> dict[str, str]:
    """The "info" of a file; without a date, so that a world is reproducible to the byte."""
    return {"date": "undated", "version": "1.0", "split": split, "license": "made by macnet"}


def question_record(question: Question, split: str, image: int) -> dict[str, Any]:
    """A question in the released schema, without its `question_index`."""
    record: dict[str, Any] = {
        "split": split,
        "image_index": image,
        "image_filename": image_name(split, image),
        "question": question.text,
    }
    if not is_unlabeled(split):
        record["answer"] = question.answer
        record["question_family_index"] = question.family
        record["program"] = question.program
    return record


def read_records(path: Path, key: str) -> list[Mapping[str, Any]]:
    """The records of a scene or question file, each with its `image_filename`.

    A handwritten scene without a name gets one.
    """
    content = read_json(path)
    records = content.get(key) if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise InputError(f'{path}: it has no list "{key}"')
    for i, record in enumerate(records):
        if key == "scenes" and isinstance(record, dict):
            record.setdefault("image_filename", f"scene_{i:06d}.png")
        name = record.get("image_filename") if isinstance(record, dict) else None
        if not isinstance(name, str):
            raise InputError(f'{path}: entry {i} of "{key}" has no "image_filename"')
        # It becomes a path, so it must not lead out of the folder.
        if not name.endswith(".png") or not name.isprintable() or PurePath(name).name != name:
            raise InputError(f'{path}: entry {i} of "{key}" has the image_filename {name!r}')
    return records


def read_scenes(path: Path) -> dict[str, Scene]:
    """The scenes of a scene file, by their `image_filename`."""
    records = read_records(path, "scenes")
    scenes = {
        record["image_filename"]: from_record(record, f"{path}: scene {i}")
        for i, record in enumerate(records)
    }
    if len(scenes) < len(records):
        raise InputError(f"{path}: two of its scenes have the same image_filename")
    if not scenes:
        raise InputError(f"{path}: it holds no scenes")
    return scenes
