"""Counts that agree with counting by hand, and with counting slowly."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asked_data import asked, dataset_of, ids
from macnet.clevr.program import QUESTION_TYPE_OF
from macnet.data.formats import VQA_JSON
from macnet.data.question_arrays import OUT_OF_VOCABULARY, TYPES, UNKNOWN, TokenizedQuestion
from macnet.data.vocab import ANSWERS
from macnet.errors import InputError
from macnet.evaluation.accuracy import Proportion, Results, measure
from macnet.paper import COLUMNS

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
    assert results.overall == Proportion(4, 9)
    assert results.groups == {
        "Count": Proportion(2, 4),
        "Exist": Proportion(0, 1),
        "Compare Numbers": Proportion(1, 2),
        "Query Attribute": Proportion(0, 1),
        "Compare Attribute": Proportion(0, 0),
    }
    assert tuple(results.types) == TYPES
    assert results.types["less_than"] == Proportion(1, 1)
    assert results.types["equal_integer"] == Proportion(0, 1)
    assert results.types["greater_than"] == Proportion(0, 0)
    assert results.families == {1: Proportion(0, 1), 70: Proportion(1, 2), 84: Proportion(1, 2)}
    assert results.lengths == {
        3: Proportion(1, 3),
        4: Proportion(1, 2),
        5: Proportion(1, 2),
        9: Proportion(0, 1),
    }
    # Of the counts, 3 became 4 and 10 became yes.
    assert results.off_by_one == Proportion(1, 2)
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
    assert record["overall"]["correct"] == 4
    assert record["overall"]["total"] == 9
    assert record["overall"]["accuracy"] == 4 / 9
    assert record["groups"]["Compare Attribute"] == {
        "accuracy": None,
        "interval": [0.0, 1.0],
        "correct": 0,
        "total": 0,
    }
    assert list(record["groups"]) == list(COLUMNS)
    assert list(record["types"]) == list(TYPES)
    assert list(record["families"]) == ["1", "70", "84"]
    assert record["program_lengths"]["4"]["total"] == 2
    assert record["count_errors"] == {
        "total": 2,
        "off_by_one": 1,
        "by_difference": {"1": 1, "no number": 1},
    }
    yes, no = (record["answers"].index(word) for word in ("yes", "no"))
    assert [yes, no, 2] in record["confusion"]
    assert sum(times for *_, times in record["confusion"]) == 9


rows = st.builds(
    asked,
    st.none() | st.sampled_from(ANSWERS),
    st.none() | st.sampled_from(TYPES),
    steps=st.integers(2, 6),
    family=st.integers(UNKNOWN, 89),
)


def slowly(
    asked_of: list[tuple[TokenizedQuestion, str]],
    kind: Callable[[TokenizedQuestion], Hashable | None],
) -> dict[Hashable, Proportion]:
    """Shares by kind, one question at a time; None is no kind."""
    right, count = Counter[Hashable](), Counter[Hashable]()
    for row, answer in asked_of:
        if (k := kind(row)) is not None:
            count[k] += 1
            right[k] += ANSWERS[row.answer] == answer
    return {k: Proportion(right[k], count[k]) for k in count}


def function_of(row: TokenizedQuestion) -> str | None:
    by_id = {dataset_of([asked(None, name)]).questions.programs[0, 0]: name for name in TYPES}
    return by_id[row.program[0]] if row.program else None


@settings(max_examples=50, deadline=None)
@given(st.data(), st.lists(rows, min_size=1, max_size=40), st.integers(0, 40))
def test_it_counts_as_one_would_slowly(
    data: st.DataObject, rows: list[TokenizedQuestion], left: int
) -> None:
    answered = data.draw(st.lists(st.sampled_from(ANSWERS), min_size=len(rows), max_size=len(rows)))
    dataset = dataset_of(rows)
    dataset = replace(dataset, selected=dataset.selected[left % len(rows) :])
    predictions = ids(*answered)
    predictions[: left % len(rows)] = UNKNOWN
    counted = [
        (row, answer)
        for row, answer in list(zip(rows, answered, strict=True))[left % len(rows) :]
        if row.answer != UNKNOWN
    ]
    if not counted:
        with pytest.raises(InputError, match="without answers"):
            measure(dataset, predictions)
        return
    results = measure(dataset, predictions)

    def there(shares: Mapping[str, Proportion]) -> dict[str, Proportion]:
        return {key: share for key, share in shares.items() if share.total}

    assert {"": results.overall} == slowly(counted, lambda row: "")
    assert there(results.types) == slowly(counted, function_of)
    assert there(results.groups) == slowly(
        counted, lambda row: QUESTION_TYPE_OF.get(function_of(row) or "")
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
    assert results.off_by_one == Proportion(sum(near), sum(counts.values()))
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
    assert Proportion(right, count).interval == pytest.approx((low, high), abs=5e-5)
    # What holds of the right answers holds of the wrong ones.
    assert Proportion(count - right, count).interval == pytest.approx((1 - high, 1 - low), abs=5e-5)


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_the_ends_of_an_interval_are_just_credible(count: int, part: float) -> None:
    share = Proportion(round(part * count), count)
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
    assert math.isnan(Proportion(0, 0).value)
    assert Proportion(0, 0).interval == (0.0, 1.0)


def test_a_set_that_cannot_be_measured_is_refused() -> None:
    unlabelled = dataset_of([asked(None, "count")] * 3, questions="CLEVR_test_questions.json")
    with pytest.raises(InputError, match=r"CLEVR_test_questions\.json: .* come without answers"):
        measure(unlabelled, ids("1", "2", "3"))
    empty = replace(BY_HAND, selected=BY_HAND.selected[:0])
    with pytest.raises(InputError, match="it holds no questions"):
        measure(empty, ANSWERED)


def test_predictions_that_are_no_answers_are_a_mistake() -> None:
    for wrong in (UNKNOWN, len(ANSWERS)):
        with pytest.raises(ValueError, match="no ids of answers"):
            measure(BY_HAND, np.full(10, wrong, np.int16))


# --- other datasets --------------------------------------------------------------------------


OTHER = replace(VQA_JSON, question_types=("what", "where", "why"), type_groups={"why": "Hard"})


def test_types_and_groups_are_those_of_the_format() -> None:
    dataset = dataset_of([asked("red"), asked("no"), asked("2"), asked("yes")])
    types = np.array([0, 2, 2, UNKNOWN], np.int8)
    dataset = replace(dataset, format=OTHER, questions=replace(dataset.questions, types=types))
    results = measure(dataset, ids("red", "no", "3", "yes"))
    assert results.types == {
        "what": Proportion(1, 1),
        "where": Proportion(0, 0),
        "why": Proportion(1, 2),
    }
    assert results.groups == {
        "what": Proportion(1, 1),
        "where": Proportion(0, 0),
        "Hard": Proportion(1, 2),
    }
    assert results.accuracies() == {"overall": 0.75, "what": 1.0, "Hard": 0.5}


def test_without_types_and_programs_there_is_the_overall_accuracy_only() -> None:
    dataset = replace(dataset_of([asked("red"), asked("no")]), format=VQA_JSON)
    results = measure(dataset, ids("red", "yes"))
    assert results.accuracies() == {"overall": 0.5}
    assert not any((results.groups, results.types, results.families, results.lengths))
    assert json.loads(json.dumps(results.to_record()))["groups"] == {}


def test_an_answer_that_is_not_in_the_vocabulary_is_always_wrong() -> None:
    dataset = dataset_of([asked("red", "query_color"), asked("no", "exist"), asked("2", "count")])
    truth = np.array([dataset.questions.answers[0], OUT_OF_VOCABULARY, UNKNOWN])
    dataset = replace(dataset, questions=replace(dataset.questions, answers=truth))
    results = measure(dataset, ids("red", "yes", "2"))
    assert results.overall == Proportion(1, 2)
    assert results.groups["Exist"] == Proportion(0, 1)
    assert results.confusion.total() == 1
    assert results.confusions() == []


def test_confusions_of_20_000_answers_take_memory_for_those_that_occur_only() -> None:
    words = replace(BY_HAND.vocabulary, answers=tuple(f"a{i}" for i in range(20_000)))
    dataset = replace(dataset_of([asked("no")] * 4), vocabulary=words)
    truth = np.array([19_999, 19_999, 7, 3], np.int16)
    dataset = replace(dataset, questions=replace(dataset.questions, answers=truth))
    tracemalloc.start()
    results = measure(dataset, np.array([0, 0, 19_998, 3], np.int16))
    record = results.to_record()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6  # a table of all pairs would have 3.2e9 bytes
    assert results.confusion == {(19_999, 0): 2, (7, 19_998): 1, (3, 3): 1}
    assert results.confusions() == [("a19999", "a0", 2), ("a7", "a19998", 1)]
    assert record["confusion"] == [[3, 3, 1], [7, 19_998, 1], [19_999, 0, 2]]


def test_150_000_questions_take_well_under_a_second() -> None:
    few = BY_HAND.questions
    many = {name: np.tile(c, (15_000, *[1] * (c.ndim - 1))) for name, c in vars(few).items()}
    dataset = replace(
        BY_HAND, questions=replace(few, **many), selected=np.arange(150_000, dtype=np.int32)
    )
    start = time.perf_counter()
    results: Results = measure(dataset, np.tile(ANSWERED, 15_000))
    assert time.perf_counter() - start < 1
    assert results.overall == Proportion(60_000, 135_000)
