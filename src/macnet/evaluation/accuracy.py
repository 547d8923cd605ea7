"""Accuracy of predicted answers: overall, by kind of question, and which answers are confused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from macnet.data.dataset import Dataset
from macnet.data.formats import DatasetFormat
from macnet.data.question_arrays import UNKNOWN
from macnet.data.vocab import PAD
from macnet.errors import InputError

Z = 1.959963984540054
"""Within ±Z lies 95% of a normal distribution."""


@dataclass(frozen=True)
class Proportion:
    """A proportion of a number of cases, with its uncertainty."""

    correct: int
    total: int

    @property
    def value(self) -> float:
        """The proportion, from 0 to 1; NaN if there are no cases."""
        return self.correct / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval, which stays within [0, 1] and holds for a few cases too."""
        n = self.total
        if not n:
            return 0.0, 1.0
        p, more = self.value, Z * Z / n
        middle = (p + more / 2) / (1 + more)
        half = math.sqrt(p * (1 - p) * more + more * more / 4) / (1 + more)
        return max(0.0, middle - half), min(1.0, middle + half)

    def percent(self, digits: int = 2) -> str:
        """The proportion in percent, for tables."""
        return f"{100 * self.value:.{digits}f}" if self.total else "–"

    def percent_interval(self, digits: int = 2) -> str:
        """The interval in percent, for tables."""
        return " – ".join(f"{100 * end:.{digits}f}" for end in self.interval)

    def to_record(self) -> dict[str, Any]:
        """The proportion for JSON."""
        return {
            "accuracy": to_json(self.value),
            "interval": list(self.interval),
            "correct": self.correct,
            "total": self.total,
        }


def to_json(value: Any) -> Any:
    """Mappings and lists of numbers and of what has a record, for JSON, which has no NaN."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else value
    return value.to_record() if hasattr(value, "to_record") else value


@dataclass(frozen=True)
class Results:
    """Accuracy on the questions whose answer is known."""

    origin: str
    """The origin of the dataset: CLEVR, generated, …"""
    format: DatasetFormat
    answers: tuple[str, ...]
    """The possible answers, by id."""
    overall: Proportion
    groups: Mapping[str, Proportion]
    """Accuracy by group of question types: all groups of the format, even without questions."""
    types: Mapping[str, Proportion]
    """Accuracy by question type: all types of the format, even without questions."""
    families: Mapping[int, Proportion]
    """Accuracy by the number of the question family; only families with questions."""
    lengths: Mapping[int, Proportion]
    """Accuracy by the number of steps in the question's program."""
    programs: Mapping[str, Proportion]
    """How many of the written programs are true: "Overall", and by group of question types.

    Empty if no program is written, or none is known.
    """
    confusion: Counter[tuple[int, int]]
    """How often the first, the correct answer, was answered by the second; both by id.

    Questions whose correct answer is not among the answers are not in it.
    """

    @property
    def count_errors(self) -> dict[int | None, int]:
        """Wrong answers where a number is correct, by predicted minus correct number.

        None stands for predictions that are no number.
        """
        times = Counter[int | None]()
        for correct, predicted, count in self.confusions():
            if correct.isdecimal():
                off = int(predicted) - int(correct) if predicted.isdecimal() else None
                times[off] += count
        return dict(times)

    @property
    def off_by_one(self) -> Proportion:
        """The proportion of count errors that are off by one."""
        errors = self.count_errors
        return Proportion(errors.get(-1, 0) + errors.get(1, 0), sum(errors.values()))

    def accuracies(self) -> dict[str, float]:
        """Accuracy overall and of each group with questions, as logged during training."""
        asked = {name: group.value for name, group in self.groups.items() if group.total}
        written = {"programs": self.programs["Overall"].value} if self.programs else {}
        return {"overall": self.overall.value, **asked, **written}

    def confusions(self) -> list[tuple[str, str, int]]:
        """Wrong answers as (correct, predicted, times), the most frequent first."""
        ranked = sorted(self.confusion.items(), key=lambda item: (-item[1], item[0]))
        return [
            (self.answers[correct], self.answers[predicted], times)
            for (correct, predicted), times in ranked
            if correct != predicted
        ]

    def to_record(self) -> dict[str, Any]:
        """All results for JSON."""
        errors = sorted(self.count_errors.items(), key=lambda item: (item[0] is None, item[0]))
        return {
            "origin": self.origin,
            "overall": self.overall.to_record(),
            "groups": to_json(self.groups),
            "types": to_json(self.types),
            "families": to_json(self.families),
            "program_lengths": to_json(self.lengths),
            "programs": to_json(self.programs),
            "count_errors": {
                "total": self.off_by_one.total,
                "off_by_one": self.off_by_one.correct,
                "by_difference": {
                    "no number" if off is None else str(off): times for off, times in errors
                },
            },
            "answers": list(self.answers),
            "confusion": sorted([*pair, times] for pair, times in self.confusion.items()),
        }


def measure(
    dataset: Dataset, predictions: np.ndarray, programs: np.ndarray | None = None
) -> Results:
    """Compare predictions (Q,), one for each question of the dataset, with the known answers.

    `programs` (Q,) says of which questions the true program was written. A negative answer other
    than UNKNOWN is known, but none of the vocabulary's: always wrong.
    """
    dataset.check_not_empty()
    questions, answers = dataset.questions, dataset.vocabulary.answers
    known = dataset.selected[dataset.answers != UNKNOWN]
    if not len(known):
        raise InputError(f"{dataset.name}: its questions come without answers")
    truth, predicted = (a[known].astype(np.int64) for a in (questions.answers, predictions))
    if predicted.min() < 0 or predicted.max() >= len(answers):
        span = f"from {predicted.min()} to {predicted.max()}"
        raise ValueError(f"predictions run {span}, which are no ids of answers")
    correct = truth == predicted
    types, names = questions.types[known], dataset.format.question_types
    group_of = [dataset.format.type_groups.get(name, name) for name in names]
    groups = tuple(dict.fromkeys(group_of))
    to_group = np.array([*map(groups.index, group_of), UNKNOWN])  # type −1 leads to the last
    steps = np.count_nonzero(questions.programs[known] != PAD, axis=1)
    written: dict[str, Proportion] = {}
    if programs is not None and (has_program := steps > 0).any():
        is_true, of_group = programs[known][has_program], to_group[types][has_program]
        by_group = zip(groups, by_kind(of_group, is_true, len(groups)), strict=True)
        written = {"Overall": Proportion(int(is_true.sum()), len(is_true)), **dict(by_group)}
    families = by_kind(questions.families[known], correct)
    lengths = by_kind(np.where(steps == 0, UNKNOWN, steps), correct)
    return Results(
        origin=str(dataset.metadata.get("origin", "unknown")),
        format=dataset.format,
        answers=answers,
        overall=Proportion(int(correct.sum()), len(correct)),
        groups=dict(zip(groups, by_kind(to_group[types], correct, len(groups)), strict=True)),
        types=dict(zip(names, by_kind(types, correct, len(names)), strict=True)),
        families={family: found for family, found in enumerate(families) if found.total},
        lengths={length: found for length, found in enumerate(lengths) if found.total},
        programs=written,
        confusion=Counter(zip(*(a[truth >= 0].tolist() for a in (truth, predicted)), strict=True)),
    )


def by_kind(kinds: np.ndarray, correct: np.ndarray, at_least: int = 0) -> list[Proportion]:
    """The accuracy on questions of kind 0, 1, …; those of an unknown kind are left out."""
    known = kinds != UNKNOWN
    totals = np.bincount(kinds[known], minlength=at_least)
    corrects = np.bincount(kinds[known & correct], minlength=len(totals))
    return [Proportion(*pair) for pair in zip(corrects.tolist(), totals.tolist(), strict=True)]
