"""Where a split of a dataset lies on disk, whosever it is, and whether all of it is there."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from macnet.clevr.release import UNFINISHED, image_name, images_folder, questions_file
from macnet.errors import InputError

Kind = Literal["clevr", "humans", "community"]
"""Whose questions: CLEVR's, as CoGenT's and our own are; people's; the community's, in HDF5."""


@dataclass(frozen=True)
class Split:
    name: str
    questions: Path
    images: Path
    """The folder of its pictures, or a file of their features."""
    kind: Kind


def find_split(root: Path, split: str, images: Path | None = None) -> Split:
    """Where a split's questions and images are.

    `root` is as `find_questions` wants it. Of CLEVR-Humans and of an HDF5 file, which come without
    images, `images` must say where CLEVR is, or be the folder of the split's images, or a file of
    their features; of others it may.
    """
    questions, kind = find_questions(root, split)
    if images is None and kind != "clevr":
        raise InputError(f"{root}: these come without images; say with --images where CLEVR's are")
    return Split(split, questions, _find_images(images or root, split), kind)


def find_questions(root: Path, split: str) -> tuple[Path, Kind]:
    """The file of a split's questions.

    `root` is the folder of CLEVR, CoGenT or a generated world, or one with the JSON files of
    CLEVR-Humans, or an HDF5 file of the community's questions.
    """
    if _is_hdf5(root):
        return root, "community"
    if not root.is_dir():
        what = "this is a file; give" if root.exists() else "there is no such folder; give"
        raise InputError(f"{root}: {what} the folder of a dataset")
    if (root / UNFINISHED).exists():
        raise InputError(
            f"{root}: this world is unfinished; run the same `macnet generate` again to its end"
        )
    files: dict[Kind, Path] = {
        "clevr": questions_file(root, split),
        "humans": root / f"CLEVR-Humans-{split}.json",
    }
    found: list[Kind] = [kind for kind, file in files.items() if file.exists()]
    if not found:
        raise InputError(_not_found(root, split, files.values()))
    if len(found) > 1:
        raise InputError(
            f"{root}: it holds both CLEVR and CLEVR-Humans; move the CLEVR-Humans-*.json to a "
            "folder of their own"
        )
    return files[found[0]], found[0]


def _is_hdf5(path: Path) -> bool:
    return path.suffix in (".h5", ".hdf5") and path.is_file()


def training_split(split: str) -> str:
    """The split one learns from before one is asked this one: CoGenT's are all about trainA."""
    return "trainA" if split[-1:] in ("A", "B") else "train"


def _not_found(root: Path, split: str, looked_for: Iterable[Path]) -> str:
    here = [
        *(path.stem[6:-10] for path in (root / "questions").glob("CLEVR_*_questions.json")),
        *(path.stem[13:] for path in root.glob("CLEVR-Humans-*.json")),
    ]
    if here:
        return f"{root}: it has no split {split!r}; it has {', '.join(sorted(here))}"
    names = " nor ".join(str(path.relative_to(root)) for path in looked_for)
    return f"{root}: not a dataset; it has neither {names}"


def _find_images(folder: Path, split: str) -> Path:
    if _is_hdf5(folder):
        return folder
    inside = images_folder(folder, split)
    if inside.is_dir():
        return inside
    name = _image_name(split)
    if folder.is_dir() and any(name.fullmatch(path.name) for path in folder.iterdir()):
        return folder
    raise InputError(f"{inside}: there is no such folder of images")


def _image_name(split: str) -> re.Pattern[str]:
    return re.compile(rf"CLEVR_{re.escape(split)}_(\d{{6,9}})\.png", re.ASCII)


def image_files(folder: Path, split: str) -> dict[int, Path]:
    """The images of a split by their index.

    Files count that are named as the release names the split's; whatever else lies there is passed
    over.
    """
    files: dict[int, Path] = {}
    name = _image_name(split)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = name.fullmatch(entry.name)
                if match and entry.is_file():
                    path, index = Path(entry.path), int(match[1])
                    if other := files.get(index):
                        names = " and ".join(sorted([path.name, other.name]))
                        raise InputError(f"{folder}: {names} are both image {index}; keep one")
                    files[index] = path
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{folder}: there is no such folder of images") from None
    if not files:
        raise InputError(f"{folder}: it holds no images named as {image_name(split, 0)} is")
    return files


def refuse_missing(split: Split, asked: Iterable[int], there: Collection[int]) -> None:
    """Say how many of the images that are asked about are not there, and name the first."""
    wanted = set(asked)
    missing = sorted(wanted.difference(there))
    if missing:
        first = ", ".join(image_name(split.name, i) for i in missing[:3])
        raise InputError(
            f"{split.images}: {len(wanted) - len(missing):,} of {len(wanted):,} images are there, "
            f"{len(missing):,} are missing: {first}{', …' if missing[3:] else ''}; fetch them, or "
            f"leave out what {split.questions.name} asks about them (macnet pack --skip-missing)"
        )
