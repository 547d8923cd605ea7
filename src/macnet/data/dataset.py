"""A dataset in memory-mapped arrays: its images, its questions, and a selection of them.

Nothing of the arrays is read before it is used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from macnet.data.formats import CLEVR, DatasetFormat
from macnet.data.question_arrays import QuestionArrays
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError


@dataclass(frozen=True)
class Subset:
    """A random subset of a training set's questions, for curves over its size.

    The paper takes questions at random, so that a tenth of them still shows most images; other
    implementations take images with all their questions, which is another experiment. Subsets of
    the same seed are nested: a tenth contains the hundredth.
    """

    by: Literal["question", "image"]
    share: float = 1
    seed: int = 0
    count: int | None = None
    """So many questions, or images, instead of a share."""

    def __post_init__(self) -> None:
        if self.by not in ("question", "image"):
            raise InputError(f"a subset is taken by question or by image, not by {self.by!r}")
        if not 0 < self.share <= 1:
            raise InputError(f"a subset's share is {self.share}; it must lie in (0, 1]")
        if self.count is not None and self.count < 1:
            raise InputError(f"a subset's count is {self.count}; it must be at least 1")

    def select(self, images: np.ndarray) -> np.ndarray:
        """The indices, in order, of the selected of questions about these images."""
        if self.by == "question":
            return np.flatnonzero(self._mask(len(images)))
        distinct, image = np.unique(images, return_inverse=True)
        return np.flatnonzero(self._mask(len(distinct))[image])

    def _mask(self, count: int) -> np.ndarray:
        """(count,) bool: the first of an order of all, so that a share contains smaller ones."""
        few = max(1, round(self.share * count)) if self.count is None else self.count
        if few > count:
            raise InputError(
                f"a subset of {few:,} {self.by}s is asked for, but there are {count:,}; ask for "
                "no more"
            )
        mask = np.zeros(count, bool)
        mask[random_order(count, f"{self.seed}/subset")[:few]] = True
        return mask


@dataclass(frozen=True)
class Dataset:
    """I images and Q questions about them, of which q are selected."""

    images: np.ndarray
    """(I, H, W, 3) uint8 pixels, or (I, H, W, C) float16 features."""
    questions: QuestionArrays
    image_rows: np.ndarray
    """(Q,) int32: the row in `images` of each question's image; −1 if it is missing."""
    selected: np.ndarray
    """(q,) int32: the questions that count."""
    vocabulary: Vocabulary
    metadata: dict[str, Any]
    """Where it comes from and what was left out, to be saved with a network trained on it.

    "format" is its format's name; "origin" says whose questions it has, such as CLEVR, CoGenT,
    CLEVR-Humans, generated or unknown; "question_types" are there if they were collected.
    """
    format: DatasetFormat = CLEVR
    """Its labels: question types and program tokens. Collected types are in it."""
    scenes: np.ndarray | None = None
    """(I,) of SCENE_DTYPE: what is in each image, if that is known; cameras and lamps may not be.
    """

    def __len__(self) -> int:
        """The number of selected questions."""
        return len(self.selected)

    @property
    def name(self) -> str:
        """Where its questions are from, for messages."""
        return str(self.metadata.get("questions", "the dataset"))

    @property
    def answers(self) -> np.ndarray:
        """(q,) int16: the correct answers of the selected questions; UNKNOWN in a test split."""
        answers: np.ndarray = self.questions.answers[self.selected]
        return answers

    def spec(self) -> DataSpec:
        """The sizes of a network for this dataset."""
        _, height, width, channels = self.images.shape
        return DataSpec(
            vocabulary=len(self.vocabulary),
            answers=len(self.vocabulary.answers),
            question_types=len(self.format.question_types),
            pixels=self.images.dtype.kind == "u",
            channels=channels,
            height=height,
            width=width,
        )

    def check_not_empty(self) -> None:
        """Raise an error if no question is selected."""
        if not len(self):
            raise InputError(f"{self.name}: it holds no questions; choose another `split`")

    def subset(self, subset: Subset) -> Self:
        """The same dataset with fewer selected questions."""
        kept = self.selected[subset.select(self.image_rows[self.selected])]
        rule = {key: value for key, value in vars(subset).items() if value is not None}
        subsets = [*self.metadata.get("subsets", []), rule]
        return replace(self, selected=kept, metadata={**self.metadata, "subsets": subsets})


def random_order(count: int, seed: str) -> np.ndarray:
    """A permutation. It rests on raw random bits, which NumPy promises never to change."""
    digest = hashlib.blake2b(seed.encode(), digest_size=16).digest()
    bits = np.random.PCG64(int.from_bytes(digest, "little")).random_raw(count)
    return np.argsort(bits, kind="stable")


def rows_of(images: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """(Q,) int32: the positions of image ids (Q,) in an array of ids; −1 for those not in it."""
    if not len(ids):
        return np.full(len(images), -1, np.int32)
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids, images, sorter=order).clip(max=len(ids) - 1)
    found = order[place]
    return np.where(ids[found] == images, found, -1).astype(np.int32)
