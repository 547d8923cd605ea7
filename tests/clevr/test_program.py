"""Programs: the executor against a naive one, the linear forms, the question types."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.clevr.program import (
    OPERATIONS,
    NotUniqueError,
    answer,
    from_postfix,
    from_prefix,
    possible_answers,
    question_type,
    to_postfix,
    to_prefix,
)
from macnet.clevr.scene import ATTRIBUTES, RELATIONS, Object, Scene, from_record
from naive_program import naive_answer, scenes
from real_clevr import real_clevr

# Any well-formed program, in postfix form, grown from what each function takes and gives: each step
# begins another set of objects, changes the last one, or makes one of the last two.
Tokens = st.SearchStrategy[list[str]]
STEPS = [
    *[["scene"]] * 12,
    *([f"filter_{name}[{value}]"] for name in ATTRIBUTES for value in ATTRIBUTES[name]),
    *[["unique", f"relate[{relation}]"] for relation in RELATIONS] * 3,
    *[["unique", f"same_{attribute}"] for attribute in ATTRIBUTES] * 3,
    *[["union"], ["intersect"]] * 6,
]


def grow(steps: list[list[str]]) -> list[str]:
    sets = [["scene"]]
    for step in steps:
        if step == ["scene"]:
            sets.append([*step])
        elif step not in (["union"], ["intersect"]):
            sets[-1] += step
        elif len(sets) > 1:
            last = sets.pop()
            sets[-1] += [*last, *step]
    return [*chain.from_iterable(sets), *["union"] * (len(sets) - 1)]


objects: Tokens = st.lists(st.sampled_from(STEPS), max_size=12).map(grow)
whole_programs = st.one_of(
    st.builds(lambda x, f: [*x, f], objects, st.sampled_from(["count", "exist"])),
    st.builds(lambda x, a: [*x, "unique", f"query_{a}"], objects, st.sampled_from([*ATTRIBUTES])),
    st.builds(
        lambda x, y, a: [*x, "unique", f"query_{a}", *y, "unique", f"query_{a}", f"equal_{a}"],
        objects,
        objects,
        st.sampled_from([*ATTRIBUTES]),
    ),
    st.builds(
        lambda x, y, f: [*x, "count", *y, "count", f],
        objects,
        objects,
        st.sampled_from(["equal_integer", "less_than", "greater_than"]),
    ),
)


# Of few objects, so that `unique` is often right to presume that there is one.
@given(scenes(fewest=1, most=4), whole_programs)
@settings(deadline=None, max_examples=400)
def test_any_program_is_answered_as_by_the_book(scene: Scene, tokens: list[str]) -> None:
    program = from_postfix(tokens)
    try:
        expected = naive_answer(program, scene)
    except NotUniqueError:
        with pytest.raises(NotUniqueError, match="objects"):
            answer(program, scene)
    else:
        assert answer(program, scene) == expected
        assert expected in possible_answers(program[-1]["function"])


@given(whole_programs)
@settings(deadline=None)
def test_linear_forms_round_trip(tokens: list[str]) -> None:
    program = from_postfix(tokens)
    assert to_postfix(program) == tokens
    assert from_prefix(to_prefix(program)) == program


def test_the_forms_of_one_program() -> None:
    tokens = ["scene", "filter_shape[cube]", "count", "scene", "filter_size[large]", "count"]
    program = from_postfix([*tokens, "less_than"])
    assert program[1] == {
        "function": "filter_shape",
        "inputs": [0],
        "value_inputs": ["cube"],
    }
    assert program[-1] == {"function": "less_than", "inputs": [2, 5], "value_inputs": []}
    assert to_prefix(program) == [
        *("less_than", "count", "filter_shape[cube]", "scene"),
        *("count", "filter_size[large]", "scene"),
    ]


@pytest.mark.parametrize(
    ("read", "tokens", "complaint"),
    [
        (from_postfix, ["scene", "paint[red]"], "unknown function 'paint'"),
        (from_prefix, ["paint[red]", "scene"], "unknown function 'paint'"),
        (from_postfix, ["scene", "union"], "'union' lacks an input"),
        (from_prefix, ["union", "scene"], "'union' lacks an input"),
        (from_postfix, ["scene", "scene"], "makes 2 programs"),
        (from_prefix, ["scene", "scene"], "makes 2 programs"),
        (from_postfix, [], "makes 0 programs"),
    ],
)
def test_a_malformed_form_is_named(read: Any, tokens: list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(tokens)


def test_same_leaves_out_the_object_itself() -> None:
    ball = Object("large", "red", "metal", "sphere", 0.0, 0.0, 0.0)
    cube = Object("large", "blue", "rubber", "cube", 2.0, 2.0, 0.0)
    lonely = from_postfix(["scene", "filter_color[red]", "unique", "same_color", "exist"])
    assert answer(lonely, Scene((ball, cube))) == "no"
    in_company = from_postfix(["scene", "filter_color[red]", "unique", "same_size", "count"])
    assert answer(in_company, Scene((ball, cube))) == "1"


def test_question_types_and_their_answers() -> None:
    types = {
        "count": "Count",
        "exist": "Exist",
        "equal_integer": "Compare Numbers",
        "less_than": "Compare Numbers",
        "greater_than": "Compare Numbers",
        "query_color": "Query Attribute",
        "equal_shape": "Compare Attribute",
    }
    for function, expected in types.items():
        assert question_type([{"function": "scene"}, {"function": function}]) == expected
    every_answer = {
        a
        for function in OPERATIONS
        if function in types or function.startswith("query_")
        for a in possible_answers(function)
    }
    assert len(every_answer) == 28  # as in the release


def test_all_real_questions_are_answered_as_recorded() -> None:
    folder = real_clevr("clevr_val100")
    records = json.loads((folder / "scenes" / "CLEVR_val_scenes.json").read_text())["scenes"]
    scenes = {r["image_index"]: from_record(r, f"scene {r['image_index']}") for r in records}
    file = folder / "questions" / "CLEVR_val_questions.json"
    questions = json.loads(file.read_text())["questions"]
    assert len(questions) == 1000
    for q in questions:
        scene = scenes[q["image_index"]]
        assert answer(q["program"], scene) == q["answer"] == naive_answer(q["program"], scene)
        assert answer(from_prefix(to_prefix(q["program"])), scene) == q["answer"]
