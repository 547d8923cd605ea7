"""A split that is ready to learn from: its images, its questions, and which of them count.

Images and questions are memory-mapped: nothing of them is read before it is used.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from macnet.data.questions import Questions
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError


@dataclass(frozen=True)
class Subset:
    """Which questions of a training set to learn from, for curves over its size.

    The paper takes questions at random, so that a tenth of them still shows most images; other
    implementations take images with all their questions, which is another experiment. The same seed
    nests: a tenth holds the hundredth.
    """

    by: Literal["question", "image"]
    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        if self.by not in ("question", "image"):
            raise InputError(f"a subset is taken by question or by image, not by {self.by!r}")
        if not 0 < self.share <= 1:
            raise InputError(f"a subset's share is {self.share}; it must lie in (0, 1]")

    def choose(self, images: np.ndarray) -> np.ndarray:
        """Of questions about these images, the positions of those that count, in order."""
        if self.by == "question":
            return np.flatnonzero(self._drawn(len(images)))
        distinct, image = np.unique(images, return_inverse=True)
        return np.flatnonzero(self._drawn(len(distinct))[image])

    def _drawn(self, count: int) -> np.ndarray:
        """(count,) bool: the first of an order of all, so that a share holds every smaller one."""
        few = max(1, round(self.share * count))
        chosen = np.zeros(count, bool)
        chosen[random_order(count, f"{self.seed}/subset")[:few]] = True
        return chosen


@dataclass(frozen=True)
class Dataset:
    images: np.ndarray
    """(I, H, W, 3) uint8 pictures, or (I, H, W, C) float16 features."""
    questions: Questions
    rows: np.ndarray
    """(Q,) int32: which of `images` a question is about."""
    chosen: np.ndarray
    """(q,) int32: the questions that count."""
    vocabulary: Vocabulary
    about: dict[str, Any]
    """Where it comes from and what was left out: to be kept with whatever is learned from it.

    Its "origin" is CLEVR, CoGenT, CLEVR-Humans, generated or unknown.
    """

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def name(self) -> str:
        """For people: where its questions are from."""
        return str(self.about.get("questions", "the dataset"))

    @property
    def answers(self) -> np.ndarray:
        """(q,) int8: the right ones, of the questions that count; UNKNOWN in a test split."""
        answers: np.ndarray = self.questions.answers[self.chosen]
        return answers

    def refuse_empty(self) -> None:
        if not len(self):
            raise InputError(f"{self.name}: it holds no questions; choose another --split")

    def subset(self, rule: Subset) -> Self:
        kept = self.chosen[rule.choose(self.rows[self.chosen])]
        rules = [*self.about.get("subsets", []), vars(rule).copy()]
        return replace(self, chosen=kept, about={**self.about, "subsets": rules})


def random_order(count: int, seed: str) -> np.ndarray:
    """A permutation. It rests on raw random bits, which NumPy promises never to change."""
    digest = hashlib.blake2b(seed.encode(), digest_size=16).digest()
    bits = np.random.PCG64(int.from_bytes(digest, "little")).random_raw(count)
    return np.argsort(bits, kind="stable")


def rows_of(images: np.ndarray, index: np.ndarray) -> np.ndarray:
    """(Q,) int32: where the images asked about stand in an index; −1 for those not there."""
    order = np.argsort(index, kind="stable")
    place = np.searchsorted(index, images, sorter=order).clip(max=len(index) - 1)
    found = order[place]
    return np.where(index[found] == images, found, -1).astype(np.int32)
