"""Dataset formats: the one place that knows what a dataset's labels are and how its files lie.

Nothing after `data` looks behind a `DatasetFormat`. To add one, write a subclass and register it:

    class GQA(DatasetFormat):
        def read(self, path: Path, split: str) -> QuestionTexts: ...

    FORMATS["gqa"] = GQA("gqa", "{split}_questions.json")

Readers are imported when they are used: to ask a network takes neither msgspec nor h5py.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from macnet.clevr.program import QUESTION_TYPE_OF
from macnet.clevr.release import UNFINISHED, image_name, image_pattern, images_folder
from macnet.data.question_arrays import TYPES, QuestionArrays
from macnet.data.question_texts import QuestionTexts
from macnet.data.unknown_words import without_unk
from macnet.data.vocab import ANSWERS, PROGRAM_TOKENS, Vocabulary
from macnet.errors import InputError


@dataclass(frozen=True)
class DatasetFormat(ABC):
    """The labels of a kind of dataset, where its files are, and how they are read.

    Images are named by the questions about them. A format whose image names follow from their ids
    overrides `image_files` and `image_name`.
    """

    name: str
    questions_path: str
    """Path of a split's questions below the root, with "{split}" for the split's name."""
    answers: tuple[str, ...] | None = None
    """All possible answers; None if they are collected from the training split."""
    question_types: tuple[str, ...] = ()
    """Names of the question types; if there are none, they are collected from the training split,
    whose questions need not have types."""
    type_groups: Mapping[str, str] = field(default_factory=dict)
    """The group under which a report shows each type; a type that is not here is its own group."""
    program_tokens: tuple[str, ...] = ()
    """Tokens of functional programs; empty if questions have none."""
    image_formats: tuple[str, ...] | None = None
    """Pillow's names of the image file formats; None for all that it reads."""

    @abstractmethod
    def read(self, path: Path, split: str) -> QuestionTexts:
        """The questions of a file. An `InputError` says what is wrong with it."""

    def encode(
        self, path: Path, split: str, vocabulary: Vocabulary, *, training: bool
    ) -> tuple[QuestionArrays, dict[str, Any]]:
        """The questions of a file as arrays, and metadata: words, origin, image_names.

        `training` says whether a network is trained on them: see `data.unknown_words`.
        """
        texts = self.read(path, split)
        return texts.encode(path, vocabulary, self.question_types, training=training)

    def find_questions(self, root: Path, split: str) -> Path | None:
        """The file with the questions of a split; None if `root` has none in this format."""
        path = root / self.questions_path.replace("{split}", split)
        return path if path.exists() else None

    def splits(self, root: Path) -> list[str]:
        """The names of the splits below `root`."""
        folder, name = os.path.split(self.questions_path)
        before, after = name.split("{split}")
        found = (root / folder).glob(f"{before}*{after}")
        return sorted(path.name.removeprefix(before).removesuffix(after) for path in found)

    def training_split(self, split: str) -> str:
        """The split whose words and labels are used for `split`."""
        return split if "train" in split else "train"

    def validation_split(self, split: str) -> str:
        """The split to validate on when training on `split`."""
        return split.replace("train", "val") if "train" in split else "val"

    def find_images(self, root: Path, split: str, images: Path | None) -> Path:
        """The folder with the images of a split, or an HDF5 file of their features.

        `images` says where they are if not below `root`.
        """
        found = images or root
        if not (found.is_dir() or is_hdf5(found)):
            raise InputError(f"{found}: there is no such folder of images")
        return found

    def image_files(self, folder: Path, split: str, names: Sequence[str]) -> dict[int, Path]:
        """The image files that are in a folder, by id; `names` are the metadata's image_names."""
        paths = ((i, folder / name) for i, name in enumerate(names))
        return {i: path for i, path in paths if path.is_file()}

    def image_name(self, split: str, image: int, names: Sequence[str]) -> str:
        """The file name of an image, given its id."""
        return names[image]


def is_hdf5(path: Path) -> bool:
    """Whether this is a file with an HDF5 suffix: of features, or of questions."""
    return path.suffix in (".h5", ".hdf5") and path.is_file()


# --- CLEVR -----------------------------------------------------------------------------------


class CLEVRFormat(DatasetFormat):
    """CLEVR v1.0 and CoGenT as released, and worlds that macnet generates."""

    def read(self, path: Path, split: str) -> QuestionTexts:
        from macnet.data.clevr_json import read_question_file, to_texts

        questions, is_generated = read_question_file(path, split=split)
        released = "CoGenT" if self.training_split(split) == "trainA" else "CLEVR"
        return QuestionTexts(to_texts(questions), "generated" if is_generated else released)

    def find_questions(self, root: Path, split: str) -> Path | None:
        if (root / UNFINISHED).exists():
            raise InputError(
                f"{root}: this world is unfinished; run the same `macnet generate` again to its end"
            )
        return super().find_questions(root, split)

    def training_split(self, split: str) -> str:
        return "trainA" if split[-1:] in ("A", "B") else "train"

    def find_images(self, root: Path, split: str, images: Path | None) -> Path:
        folder = images or root
        if is_hdf5(folder):
            return folder
        inside, name = images_folder(folder, split), image_pattern(split)
        if inside.is_dir():
            return inside
        if folder.is_dir() and any(name.fullmatch(p.name) for p in folder.iterdir()):
            return folder
        raise InputError(f"{inside}: there is no such folder of images")

    def image_files(self, folder: Path, split: str, names: Sequence[str] = ()) -> dict[int, Path]:
        """Files named otherwise than the release names the split's images are ignored."""
        files: dict[int, Path] = {}
        name = image_pattern(split)
        with os.scandir(folder) as entries:
            for entry in entries:
                match = name.fullmatch(entry.name)
                if match and entry.is_file():
                    path, index = Path(entry.path), int(match[1])
                    if other := files.get(index):
                        both = " and ".join(sorted([path.name, other.name]))
                        raise InputError(f"{folder}: {both} are both image {index}; keep one")
                    files[index] = path
        if not files:
            raise InputError(f"{folder}: it holds no images named as {image_name(split, 0)} is")
        return files

    def image_name(self, split: str, image: int, names: Sequence[str] = ()) -> str:
        return image_name(split, image)


class CLEVRHumansFormat(CLEVRFormat):
    """People's questions about CLEVR's images: CLEVR's answers, but no types and no programs."""

    def read(self, path: Path, split: str) -> QuestionTexts:
        from macnet.data.clevr_json import read_question_file, to_texts

        questions, is_generated = read_question_file(path, split=split, numbered=False)
        origin = "generated" if is_generated else "CLEVR-Humans"
        return QuestionTexts(to_texts(questions), origin)

    def find_images(self, root: Path, split: str, images: Path | None) -> Path:
        if images is None:
            raise InputError(
                f"{root}: these come without images; say with `images` where CLEVR's are"
            )
        return super().find_images(root, split, images)


class CLEVRHDF5Format(CLEVRHumansFormat):
    """Questions files of public CLEVR repositories: one split each, in the ids of a vocab.json."""

    def read(self, path: Path, split: str) -> QuestionTexts:
        raise InputError(
            f"{path}: it holds numbers; give the vocab.json of their words as `vocabulary`, and no "
            "`min_count`"
        )

    def encode(
        self, path: Path, split: str, vocabulary: Vocabulary, *, training: bool
    ) -> tuple[QuestionArrays, dict[str, Any]]:
        from macnet.data.clevr_h5 import read_questions_h5

        arrays = read_questions_h5(path, vocabulary)
        words = f"{len(arrays):,} questions came as numbers, all in the vocabulary"
        if not training:
            arrays = without_unk(arrays, vocabulary)
        return arrays, {"words": words, "origin": "unknown"}

    def find_questions(self, root: Path, split: str) -> Path | None:
        return root if is_hdf5(root) else None

    def splits(self, root: Path) -> list[str]:
        return []


# --- others ----------------------------------------------------------------------------------


class VQAJSONFormat(DatasetFormat):
    """A list of questions and image names for each split: see `data.vqa_json`."""

    def read(self, path: Path, split: str) -> QuestionTexts:
        from macnet.data.vqa_json import read_vqa_json

        return read_vqa_json(path, self.name)


_LABELS: dict[str, Any] = {
    "answers": ANSWERS,
    "question_types": TYPES,
    "type_groups": QUESTION_TYPE_OF,
    "program_tokens": PROGRAM_TOKENS,
    "image_formats": ("PNG",),
}
CLEVR = CLEVRFormat("clevr", "questions/CLEVR_{split}_questions.json", **_LABELS)
CLEVR_HUMANS = CLEVRHumansFormat("clevr-humans", "CLEVR-Humans-{split}.json", **_LABELS)
CLEVR_HDF5 = CLEVRHDF5Format("clevr-hdf5", "", **_LABELS)
VQA_JSON = VQAJSONFormat("vqa-json", "{split}.json")

FORMATS: dict[str, DatasetFormat] = {
    format.name: format for format in (CLEVR, CLEVR_HUMANS, CLEVR_HDF5, VQA_JSON)
}
"""The formats by name, in the order in which a root is tried for them. Add your own."""
