"""Questions made up at will, for tests of what was answered to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from macnet.data.dataset import Dataset
from macnet.data.question_arrays import TYPES, UNKNOWN, TokenizedQuestion, collect, program_ids
from macnet.data.vocab import ANSWERS, SPECIALS, Vocabulary

WORDS = Vocabulary((*SPECIALS, "what", "is", "it"))


def asked(
    answer: str | None = None, ends_in: str | None = None, *, steps: int = 2, family: int = UNKNOWN
) -> TokenizedQuestion:
    """A question with an answer, whose program ends in a function and has so many steps."""
    number = UNKNOWN if answer is None else ANSWERS.index(answer)
    program = b"" if ends_in is None else program_ids([ends_in, *["unique"] * (steps - 2), "scene"])
    kind = UNKNOWN if ends_in is None else TYPES.index(ends_in)
    return TokenizedQuestion([4, 5, 6], number, program, 0, family, kind)


def dataset_of(
    rows: Sequence[TokenizedQuestion], images: Sequence[int] | None = None, **metadata: Any
) -> Dataset:
    """All of one image, or of these images, each a picture of its own number."""
    of = np.array([0] * len(rows) if images is None else images, np.int32)
    pictures = np.arange(of.max(initial=0) + 1, dtype=np.uint8)[:, None, None, None]
    return Dataset(
        np.tile(pictures, (1, 2, 2, 3)),
        collect(rows),
        of,
        np.arange(len(rows), dtype=np.int32),
        WORDS,
        metadata,
    )


def ids(*answers: str) -> np.ndarray:
    return np.array([ANSWERS.index(answer) for answer in answers], np.int16)
