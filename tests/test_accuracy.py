"""Counts that agree with counting by hand, and with counting slowly."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asked_data import asked, dataset_of, ids
from macnet.clevr.program import COLUMN_OF
from macnet.data.questions import TYPES, UNKNOWN, Row
from macnet.data.vocab import ANSWERS
from macnet.errors import InputError
from macnet.evaluation.accuracy import COLUMNS, Results, Share, measure

BY_HAND = dataset_of(
    [
        asked("2", "count", steps=5, family=84),
        asked("3", "count", steps=5, family=84),
        asked("4", "count", steps=3, family=70),
        asked("10", "count", steps=3, family=70),
        asked("yes", "exist", steps=3, family=1),
        asked("no", "less_than", steps=4),
        asked("yes", "equal_integer", steps=4),
        asked("red", "query_color", steps=9),
        asked("no"),  # as people ask: without a program
        asked(None, "count", steps=7, family=3),  # as in a test split
    ],
    origin="CLEVR",
)
ANSWERED = ids("2", "4", "4", "yes", "no", "no", "no", "blue", "no", "5")


def test_by_hand() -> None:
    results = measure(BY_HAND, ANSWERED)
    assert results.origin == "CLEVR"
    assert results.overall == Share(4, 9)
    assert results.columns == {
        "Count": Share(2, 4),
        "Exist": Share(0, 1),
        "Compare Numbers": Share(1, 2),
        "Query Attribute": Share(0, 1),
        "Compare Attribute": Share(0, 0),
    }
    assert tuple(results.types) == TYPES
    assert results.types["less_than"] == Share(1, 1)
    assert results.types["equal_integer"] == Share(0, 1)
    assert results.types["greater_than"] == Share(0, 0)
    assert results.families == {1: Share(0, 1), 70: Share(1, 2), 84: Share(1, 2)}
    assert results.lengths == {3: Share(1, 3), 4: Share(1, 2), 5: Share(1, 2), 9: Share(0, 1)}
    # Of the counts, 3 became 4 and 10 became yes.
    assert results.off_by_one == Share(1, 2)
    assert results.count_errors == {1: 1, None: 1}
    assert results.confusions() == [
        ("yes", "no", 2),
        ("10", "yes", 1),
        ("3", "4", 1),
        ("red", "blue", 1),
    ]
    assert results.accuracies() == {
        "overall": 4 / 9,
        "Count": 0.5,
        "Exist": 0.0,
        "Compare Numbers": 0.5,
        "Query Attribute": 0.0,
    }


def test_the_columns_are_those_of_table_1() -> None:
    assert COLUMNS == (
        "Count",
        "Exist",
        "Compare Numbers",
        "Query Attribute",
        "Compare Attribute",
    )


def test_the_record_is_json_and_holds_all_of_it() -> None:
    record = json.loads(json.dumps(measure(BY_HAND, ANSWERED).to_record(), allow_nan=False))
    assert record["overall"]["right"] == 4
    assert record["overall"]["count"] == 9
    assert record["overall"]["accuracy"] == 4 / 9
    assert record["columns"]["Compare Attribute"] == {
        "accuracy": None,
        "interval": [0.0, 1.0],
        "right": 0,
        "count": 0,
    }
    assert list(record["columns"]) == list(COLUMNS)
    assert list(record["types"]) == list(TYPES)
    assert list(record["families"]) == ["1", "70", "84"]
    assert record["program_lengths"]["4"]["count"] == 2
    errors = {"count": 2, "off_by_one": 1, "share": 0.5}
    assert record["counting_errors"] == {**errors, "answered_less_right": {"1": 1, "no number": 1}}
    yes, no = (record["answers"].index(word) for word in ("yes", "no"))
    assert record["confusion"][yes][no] == 2
    assert sum(map(sum, record["confusion"])) == 9


rows = st.builds(
    asked,
    st.none() | st.sampled_from(ANSWERS),
    st.none() | st.sampled_from(TYPES),
    steps=st.integers(2, 6),
    family=st.integers(UNKNOWN, 89),
)


def slowly(
    asked_of: list[tuple[Row, str]], kind: Callable[[Row], Hashable | None]
) -> dict[Hashable, Share]:
    """Shares by kind, one question at a time; None is no kind."""
    right, count = Counter[Hashable](), Counter[Hashable]()
    for row, answer in asked_of:
        if (k := kind(row)) is not None:
            count[k] += 1
            right[k] += ANSWERS[row.answer] == answer
    return {k: Share(right[k], count[k]) for k in count}


def function_of(row: Row) -> str | None:
    by_id = {dataset_of([asked(None, name)]).questions.programs[0, 0]: name for name in TYPES}
    return by_id[row.program[0]] if row.program else None


@settings(max_examples=50, deadline=None)
@given(st.data(), st.lists(rows, min_size=1, max_size=40), st.integers(0, 40))
def test_it_counts_as_one_would_slowly(data: st.DataObject, rows: list[Row], left: int) -> None:
    answered = data.draw(st.lists(st.sampled_from(ANSWERS), min_size=len(rows), max_size=len(rows)))
    dataset = dataset_of(rows)
    dataset = replace(dataset, chosen=dataset.chosen[left % len(rows) :])
    predictions = ids(*answered)
    predictions[: left % len(rows)] = UNKNOWN
    counted = [
        (row, answer)
        for row, answer in list(zip(rows, answered, strict=True))[left % len(rows) :]
        if row.answer != UNKNOWN
    ]
    if not counted:
        with pytest.raises(InputError, match="--predictions"):
            measure(dataset, predictions)
        return
    results = measure(dataset, predictions)

    def there(shares: Mapping[str, Share]) -> dict[str, Share]:
        return {key: share for key, share in shares.items() if share.count}

    assert {"": results.overall} == slowly(counted, lambda row: "")
    assert there(results.types) == slowly(counted, function_of)
    assert there(results.columns) == slowly(
        counted, lambda row: COLUMN_OF.get(function_of(row) or "")
    )
    assert results.families == slowly(
        counted, lambda row: None if row.family == UNKNOWN else row.family
    )
    assert results.lengths == slowly(counted, lambda row: len(row.program) or None)
    pairs = Counter((ANSWERS[row.answer], answer) for row, answer in counted)
    for i, right in enumerate(ANSWERS):
        for j, answer in enumerate(ANSWERS):
            assert results.confusion[i, j] == pairs[right, answer]
    wrong = {pair: n for pair, n in pairs.items() if pair[0] != pair[1]}
    assert {(right, answer): n for right, answer, n in results.confusions()} == wrong
    often = [n for *_, n in results.confusions()]
    assert often == sorted(often, reverse=True)
    numbers = {str(n): n for n in range(11)}
    counts = {pair: n for pair, n in wrong.items() if pair[0] in numbers}
    near = [
        n
        for (right, answer), n in counts.items()
        if abs(numbers[right] - numbers.get(answer, 99)) == 1
    ]
    assert results.off_by_one == Share(sum(near), sum(counts.values()))
    off = Counter[int | None]()
    for (right, answer), n in counts.items():
        off[numbers[answer] - numbers[right] if answer in numbers else None] += n
    assert results.count_errors == off


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [
        # As published: Newcombe 1998, "Two-sided confidence intervals for the single proportion".
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval(right: int, count: int, low: float, high: float) -> None:
    assert Share(right, count).interval == pytest.approx((low, high), abs=5e-5)
    # What holds of the right answers holds of the wrong ones.
    assert Share(count - right, count).interval == pytest.approx((1 - high, 1 - low), abs=5e-5)


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_the_ends_of_an_interval_are_just_credible(count: int, part: float) -> None:
    share = Share(round(part * count), count)
    low, high = share.interval
    assert 0 <= low <= share.value + 1e-12
    assert share.value - 1e-12 <= high <= 1
    for end in (low, high):
        # So far from a true accuracy of `end`, 1.96 standard deviations, is what was seen.
        distance = abs(end - share.value)
        assert distance == pytest.approx(
            1.959964 * math.sqrt(end * (1 - end) / count), rel=1e-5, abs=1e-7
        )


def test_nothing_counted_is_nothing_known() -> None:
    assert math.isnan(Share(0, 0).value)
    assert Share(0, 0).interval == (0.0, 1.0)


def test_a_set_that_cannot_be_measured_is_refused() -> None:
    unlabelled = dataset_of([asked(None, "count")] * 3, questions="CLEVR_test_questions.json")
    with pytest.raises(InputError, match=r"CLEVR_test_questions\.json: .* --predictions FILE"):
        measure(unlabelled, ids("1", "2", "3"))
    empty = replace(BY_HAND, chosen=BY_HAND.chosen[:0])
    with pytest.raises(InputError, match="it holds no questions"):
        measure(empty, ANSWERED)


def test_predictions_that_are_no_answers_are_a_mistake() -> None:
    for wrong in (UNKNOWN, len(ANSWERS)):
        with pytest.raises(ValueError, match="no answers' ids"):
            measure(BY_HAND, np.full(10, wrong, np.int16))


def test_150_000_questions_take_well_under_a_second() -> None:
    few = BY_HAND.questions
    many = {name: np.tile(c, (15_000, *[1] * (c.ndim - 1))) for name, c in vars(few).items()}
    dataset = replace(
        BY_HAND, questions=replace(few, **many), chosen=np.arange(150_000, dtype=np.int32)
    )
    start = time.perf_counter()
    results: Results = measure(dataset, np.tile(ANSWERED, 15_000))
    assert time.perf_counter() - start < 1
    assert results.overall == Share(60_000, 135_000)
