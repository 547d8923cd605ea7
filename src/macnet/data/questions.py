"""Questions as columns of numbers, the form in which they are packed and put into batches.

Whoever reads a file or makes a world gives rows; `collect` makes columns of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import NamedTuple

import numpy as np

from macnet.clevr.program import COLUMN_OF
from macnet.data.vocab import PROGRAM_TOKENS

TYPES = tuple(COLUMN_OF)
"""The type of a question is the function its program ends in; there are 13."""

UNKNOWN = -1
"""Stands for an answer, a type, a family or a question that there is not; losses and counts pass
over it."""

_PROGRAM_ID = {token: i for i, token in enumerate(PROGRAM_TOKENS)}
_TYPE_OF = np.full(256, UNKNOWN, np.int8)
_TYPE_OF[[_PROGRAM_ID[name] for name in TYPES]] = np.arange(len(TYPES))


class Row(NamedTuple):
    """One question."""

    tokens: Sequence[int]
    answer: int  # in the vocabulary's answers, or UNKNOWN
    program: bytes  # what `program_ids` gives; empty where there is none
    image: int  # as the release numbers the images of a split
    family: int = UNKNOWN  # of the release's 90


@dataclass(frozen=True)
class Questions:
    """Q questions of at most S words and L steps."""

    tokens: np.ndarray
    """(Q, S) uint16 words; 0 is padding."""
    lengths: np.ndarray
    """(Q,) uint16: words before the padding."""
    answers: np.ndarray
    """(Q,) int8; UNKNOWN in a test split."""
    types: np.ndarray
    """(Q,) int8: which of `TYPES`; UNKNOWN where there is no program."""
    programs: np.ndarray
    """(Q, L) uint8: prefix form in ids of `PROGRAM_TOKENS`; 0 is padding."""
    images: np.ndarray
    """(Q,) int32: as the release numbers the images of a split."""
    families: np.ndarray
    """(Q,) int8: of the release's 90; UNKNOWN where a file tells none."""

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different lengths: {lengths}")

    def __len__(self) -> int:
        return len(self.tokens)


def side_by_side(questions: Questions, words: int = 0, steps: int = 0) -> np.ndarray:
    """(Q, S + L + 3) int16: tokens, programs, lengths, answers, types; a batch is then one gather.

    The first two are at least so wide.
    """
    q = questions
    wide = (_widened(q.tokens, words), _widened(q.programs, steps))
    columns = (column[:, None] for column in (q.lengths, q.answers, q.types))
    return np.concatenate([c.astype(np.int16) for c in (*wide, *columns)], axis=1)


def _widened(column: np.ndarray, width: int) -> np.ndarray:
    return np.pad(column, ((0, 0), (0, max(0, width - column.shape[1]))))


def program_ids(prefix: Iterable[str]) -> bytes:
    """A program in prefix form, a byte to a step."""
    return bytes([_PROGRAM_ID[token] for token in prefix])


def types_of(programs: np.ndarray) -> np.ndarray:
    """(Q, L) programs → (Q,) int8: their types."""
    if not programs.shape[1]:
        return np.full(len(programs), UNKNOWN, np.int8)
    types: np.ndarray = _TYPE_OF[programs[:, 0]]
    return types


def collect(rows: Iterable[Row]) -> Questions:
    tokens, answers, given, images, families = zip(*rows, strict=True)
    padded, lengths = _padded(tokens, np.uint16)
    programs, _ = _padded(given, np.uint8)
    return Questions(
        padded,
        lengths,
        np.array(answers, np.int8),
        types_of(programs),
        programs,
        np.array(images, np.int32),
        np.array(families, np.int8),
    )


def _padded(ragged: Sequence[Sequence[int]], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, ragged), np.uint16, len(ragged))
    filled = np.arange(lengths.max()) < lengths[:, None]
    padded: np.ndarray = np.zeros(filled.shape, dtype)
    padded[filled] = np.fromiter(chain.from_iterable(ragged), dtype, lengths.sum())
    return padded, lengths
