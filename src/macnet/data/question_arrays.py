"""Questions as arrays of numbers, the form in which they are packed and put into batches.

Readers and generators of questions give rows; `collect` makes arrays of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import NamedTuple

import numpy as np

from macnet.clevr.program import QUESTION_TYPE_OF
from macnet.data.vocab import PROGRAM_TOKENS

TYPES = tuple(QUESTION_TYPE_OF)
"""CLEVR's 13 question types: a type is the function that a question's program ends in."""

UNKNOWN = -1
"""No label: an unlabelled question's answer, type or family, or the index of a filler. Losses and
accuracies ignore it."""
OUT_OF_VOCABULARY = -2
"""A known answer that the vocabulary lacks. The loss ignores it; an accuracy counts it as wrong."""

_PROGRAM_ID = {token: i for i, token in enumerate(PROGRAM_TOKENS)}
_TYPE_OF = np.full(256, UNKNOWN, np.int16)
_TYPE_OF[[_PROGRAM_ID[name] for name in TYPES]] = np.arange(len(TYPES))


class TokenizedQuestion(NamedTuple):
    """A question as numbers."""

    tokens: Sequence[int]
    answer: int  # id in the vocabulary's answers, OUT_OF_VOCABULARY or UNKNOWN
    program: bytes  # token ids in prefix form; empty if there is no program
    image: int  # id of the image in its split
    family: int = UNKNOWN  # of CLEVR's 90
    type: int = UNKNOWN  # id in the format's question types


@dataclass(frozen=True)
class QuestionArrays:
    """Q questions of at most S words, whose programs have at most L tokens."""

    tokens: np.ndarray
    """(Q, S) uint16 word ids; 0 is padding."""
    lengths: np.ndarray
    """(Q,) uint16: number of words before the padding."""
    answers: np.ndarray
    """(Q,) int16 ids in the vocabulary's answers, OUT_OF_VOCABULARY, or UNKNOWN if unlabelled."""
    types: np.ndarray
    """(Q,) int16 ids in the format's question types, or UNKNOWN."""
    programs: np.ndarray
    """(Q, L) uint8: prefix form in ids of the format's program tokens; 0 is padding."""
    images: np.ndarray
    """(Q,) int32: ids of the images in their split."""
    families: np.ndarray
    """(Q,) int16: question families (CLEVR has 90), or UNKNOWN."""

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different lengths: {lengths}")

    def __len__(self) -> int:
        return len(self.tokens)


def to_table(questions: QuestionArrays, words: int = 0, steps: int = 0) -> np.ndarray:
    """(Q, S + L + 3) int16: tokens, programs, lengths, answers, types; a batch is then one gather.

    S and L are at least `words` and `steps`.
    """
    q = questions
    wide = (_widened(q.tokens, words), _widened(q.programs, steps))
    columns = (column[:, None] for column in (q.lengths, q.answers, q.types))
    return np.concatenate([c.astype(np.int16) for c in (*wide, *columns)], axis=1)


def from_table(
    table: np.ndarray, words: int, images: np.ndarray, families: np.ndarray
) -> QuestionArrays:
    """The arrays that make up a table with this S, without columns that are padding alone."""
    lengths, answers, types = table[:, -3:].T
    tokens, programs = table[:, :words], table[:, words:-3]
    return QuestionArrays(
        tokens[:, tokens.any(0)].astype(np.uint16),
        lengths.astype(np.uint16),
        answers.copy(),
        types.copy(),
        programs[:, programs.any(0)].astype(np.uint8),
        images.astype(np.int32),
        families.astype(np.int16),
    )


def _widened(column: np.ndarray, width: int) -> np.ndarray:
    return np.pad(column, ((0, 0), (0, max(0, width - column.shape[1]))))


def program_ids(prefix: Iterable[str]) -> bytes:
    """Ids of a CLEVR program's tokens in prefix form, one byte each."""
    return bytes([_PROGRAM_ID[token] for token in prefix])


def program_types(programs: np.ndarray) -> np.ndarray:
    """(Q, L) CLEVR programs in prefix form → (Q,) int16: their question types, or UNKNOWN."""
    if not programs.shape[1]:
        return np.full(len(programs), UNKNOWN, np.int16)
    types: np.ndarray = _TYPE_OF[programs[:, 0]]
    return types


def collect(rows: Iterable[TokenizedQuestion]) -> QuestionArrays:
    """Arrays of at least one question, padded to the longest."""
    tokens, answers, given, images, families, types = zip(*rows, strict=True)
    padded, lengths = _padded(tokens, np.uint16)
    programs, _ = _padded(given, np.uint8)
    return QuestionArrays(
        padded,
        lengths,
        np.array(answers, np.int16),
        np.array(types, np.int16),
        programs,
        np.array(images, np.int32),
        np.array(families, np.int16),
    )


def _padded(ragged: Sequence[Sequence[int]], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, ragged), np.uint16, len(ragged))
    filled = np.arange(lengths.max()) < lengths[:, None]
    padded: np.ndarray = np.zeros(filled.shape, dtype)
    padded[filled] = np.fromiter(chain.from_iterable(ragged), dtype, lengths.sum())
    return padded, lengths
