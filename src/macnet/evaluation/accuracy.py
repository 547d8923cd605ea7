"""How often answers are right: in all, by kind of question, and what is answered instead."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from macnet.clevr.program import COLUMN_OF
from macnet.data.dataset import Dataset
from macnet.data.questions import TYPES, UNKNOWN
from macnet.data.vocab import PAD
from macnet.errors import InputError

COLUMNS: tuple[str, ...] = tuple(dict.fromkeys(COLUMN_OF.values()))
"""Of the paper's table 1, in its order."""

Z = 1.959963984540054
"""Within ±Z lies 95% of a normal distribution."""

_COLUMN = np.array([COLUMNS.index(COLUMN_OF[name]) for name in TYPES])


@dataclass(frozen=True)
class Share:
    right: int
    count: int

    @property
    def value(self) -> float:
        """Not a number where nothing was counted."""
        return self.right / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, of 95%: it stays within [0, 1] and holds for a few questions too."""
        n = self.count
        if not n:
            return 0.0, 1.0
        p, more = self.value, Z * Z / n
        middle = (p + more / 2) / (1 + more)
        half = math.sqrt(p * (1 - p) * more + more * more / 4) / (1 + more)
        return max(0.0, middle - half), min(1.0, middle + half)

    def to_record(self) -> dict[str, Any]:
        return {
            "accuracy": self.value if self.count else None,
            "interval": list(self.interval),
            "right": self.right,
            "count": self.count,
        }


@dataclass(frozen=True)
class Results:
    """Of the questions whose answer is known."""

    origin: str
    """What the questions are of: CLEVR, a generated world, …"""
    answers: tuple[str, ...]
    """By id."""
    overall: Share
    columns: Mapping[str, Share]
    """All of `COLUMNS`, even if there is no such question."""
    types: Mapping[str, Share]
    """All of `TYPES`."""
    families: Mapping[int, Share]
    """Those that there are, by number."""
    lengths: Mapping[int, Share]
    """By the number of steps in a question's program."""
    confusion: np.ndarray
    """(answers, answers) int64: how often the first, which is right, was answered by the second."""

    @property
    def count_errors(self) -> dict[int | None, int]:
        """Of the wrong answers where a number is right, which is so of all Count questions and of
        no others, how many are off by how far: below 0 too low, None no number at all."""
        times = Counter[int | None]()
        for right, given, count in self.confusions():
            if right.isdecimal():
                times[int(given) - int(right) if given.isdecimal() else None] += count
        return dict(times)

    @property
    def off_by_one(self) -> Share:
        """Of all of those, the numbers just before and after the right one."""
        errors = self.count_errors
        return Share(errors.get(-1, 0) + errors.get(1, 0), sum(errors.values()))

    def accuracies(self) -> dict[str, float]:
        """Overall and of each column that has questions: what is followed while a network learns"""
        asked = {name: share.value for name, share in self.columns.items() if share.count}
        return {"overall": self.overall.value, **asked}

    def confusions(self) -> list[tuple[str, str, int]]:
        """Wrong answers: what was right, what was answered, how often; the most frequent first."""
        wrong = self.confusion * (1 - np.eye(len(self.answers), dtype=np.int64))
        order = np.argsort(-wrong, axis=None, kind="stable")[: np.count_nonzero(wrong)]
        return [
            (self.answers[right], self.answers[given], int(wrong[right, given]))
            for right, given in zip(*np.unravel_index(order, wrong.shape), strict=True)
        ]

    def to_record(self) -> dict[str, Any]:
        """All of it, for JSON."""
        by: dict[str, Mapping[Any, Share]] = {
            "columns": self.columns,
            "types": self.types,
            "families": self.families,
            "program_lengths": self.lengths,
        }
        return {
            "origin": self.origin,
            "overall": self.overall.to_record(),
            **{
                name: {str(key): share.to_record() for key, share in shares.items()}
                for name, shares in by.items()
            },
            "counting_errors": {
                "count": self.off_by_one.count,
                "off_by_one": self.off_by_one.right,
                "share": self.off_by_one.to_record()["accuracy"],
                "answered_less_right": {
                    "no number" if off is None else str(off): times
                    for off, times in sorted(
                        self.count_errors.items(), key=lambda item: (item[0] is None, item[0])
                    )
                },
            },
            "answers": list(self.answers),
            "confusion": self.confusion.tolist(),
        }


def measure(dataset: Dataset, predictions: np.ndarray) -> Results:
    """Compare answers (Q,), one for each question of the set, with the right ones."""
    dataset.refuse_empty()
    questions, answers = dataset.questions, dataset.vocabulary.answers
    known = dataset.chosen[dataset.answers != UNKNOWN]
    if not len(known):
        raise InputError(
            f"{dataset.name}: its questions come without answers, so there is nothing to "
            "compare with; write down the network's with --predictions FILE"
        )
    truth, given = questions.answers[known].astype(np.int64), predictions[known].astype(np.int64)
    if given.min() < 0 or given.max() >= len(answers):
        raise ValueError(f"predictions run from {given.min()} to {given.max()}: no answers' ids")
    right = truth == given
    types, size = questions.types[known], len(answers)
    columns = np.where(types == UNKNOWN, UNKNOWN, _COLUMN[types])
    steps = np.count_nonzero(questions.programs[known] != PAD, axis=1)
    return Results(
        origin=str(dataset.about.get("origin", "unknown")),
        answers=answers,
        overall=Share(int(right.sum()), len(right)),
        columns=dict(zip(COLUMNS, _shares(columns, right, len(COLUMNS)), strict=True)),
        types=dict(zip(TYPES, _shares(types, right, len(TYPES)), strict=True)),
        families=_that_occur(_shares(questions.families[known], right)),
        lengths=_that_occur(_shares(np.where(steps == 0, UNKNOWN, steps), right)),
        confusion=np.bincount(truth * size + given, minlength=size**2).reshape(size, size),
    )


def _shares(kinds: np.ndarray, right: np.ndarray, at_least: int = 0) -> list[Share]:
    """Of questions of kind 0, 1, …; those of an unknown kind are passed over."""
    known = kinds != UNKNOWN
    counts = np.bincount(kinds[known], minlength=at_least)
    rights = np.bincount(kinds[known & right], minlength=len(counts))
    return [Share(*pair) for pair in zip(rights.tolist(), counts.tolist(), strict=True)]


def _that_occur(shares: Sequence[Share]) -> dict[int, Share]:
    return {kind: share for kind, share in enumerate(shares) if share.count}
