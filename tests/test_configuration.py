"""Configurations: changed by name, saved, compared."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macnet.configuration import differences, with_changes
from macnet.errors import InputError
from macnet.models.config import MACConfig
from macnet.models.presets import ABLATIONS, REFERENCE, ablation
from macnet.models.recipe import Recipe


@pytest.mark.parametrize("row", ABLATIONS)
def test_a_record_restores_what_it_was_made_of(row: str) -> None:
    config = ablation(row, "reference" if row == "MAC" else "paper")
    record = json.loads(json.dumps(asdict(config)))
    assert with_changes(MACConfig(), record) == config


def test_a_nested_configuration_is_changed_in_part() -> None:
    config = with_changes(REFERENCE, {"p": 4, "dropout": {"memory": 0.3}})
    assert (config.p, config.d) == (4, REFERENCE.d)
    assert asdict(config.dropout) == {**asdict(REFERENCE.dropout), "memory": 0.3}


def test_a_list_becomes_what_the_field_has() -> None:
    assert with_changes(Recipe(), {"trainable": ["question", "output"]}).trainable == (
        "question",
        "output",
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"depth": 3}, r"there is no field 'model.depth'; choose among d, p, image"),
        ({"dropout": {"x": 3}}, r"no field 'model.dropout.x'; choose among words, var"),
        ({"d": "many"}, r"d is 'many'; it must be a whole number from 1"),
        ({"dropout": 0.1}, r"dropout is 0.1; choose a Dropout"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        with_changes(MACConfig(), changes, "model.")


def test_one_word_is_no_list() -> None:
    with pytest.raises(InputError, match=r"recipe.trainable is 'question'; it must be a list"):
        with_changes(Recipe(), {"trainable": "question"}, "recipe.")


RECORDS = st.recursive(
    st.integers(0, 3) | st.text(max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
).filter(lambda record: isinstance(record, dict))


@given(RECORDS, RECORDS)
def test_differences_are_told_exactly_where_there_are_some(one: Any, other: Any) -> None:
    assert bool(differences(one, other)) == (one != other)


def test_where_two_records_differ() -> None:
    one = {"recipe": {"lr": 0.1, "clip": 8}, "seed": 1}
    other = {"recipe": {"lr": 0.2, "clip": 8}, "start": "x"}
    assert differences(one, other) == [
        "recipe.lr is 0.1 there and 0.2 here",
        "seed is 1 there and None here",
        "start is None there and 'x' here",
    ]
    assert differences(one, one) == []
