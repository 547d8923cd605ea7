"""Layouts are CLEVR's programs, coarser; whatever is written by the grammar can be executed."""

from __future__ import annotations

import random
import re

import pytest
import torch
from torch import Tensor

from layout_checks import sampled, stack_of
from macnet.clevr.families import QUESTION_FAMILIES, QuestionFamily
from macnet.clevr.program import OPERATIONS, from_postfix, to_prefix
from macnet.clevr.questions import NUM_FAMILIES, QuestionGenerator
from macnet.clevr.scene import ATTRIBUTES, sample_scenes
from macnet.data.question_arrays import program_ids
from macnet.models.systems.layouts import (
    ANSWER_MODULES,
    ATTENTION_MODULES,
    EOS,
    INPUTS,
    TOKENS,
    answer_steps,
    count_outputs,
    first_inputs,
    layout_names,
    layouts_of,
    valid_choices,
    valid_tokens,
)
from macnet.models.systems.programs import read_prefix

MAX_STEPS = 12


def padded(programs: list[list[str]], extra: int = 0) -> Tensor:
    """The ids (B, L) of programs in prefix form."""
    width = max(map(len, programs)) + extra
    return torch.tensor([[*program_ids(p), *[0] * (width - len(p))] for p in programs])


def named(layouts: Tensor) -> list[list[str]]:
    """The names of the modules of layouts (B, T), whose <eos> must all come last."""
    rows = [[TOKENS[token] for token in row] for row in layouts.tolist()]
    for row in rows:
        assert row == sorted(row, key=lambda name: name == "<eos>")
    return [[name for name in row if name != "<eos>"] for row in rows]


def literal(prefix: list[str]) -> list[str]:
    """The layout of a program by recursion over its tree: an independent conversion."""
    tokens = iter(prefix)

    def convert(compared: bool) -> list[str]:
        function = re.sub(r"\[.*", "", next(tokens))
        compares = function.startswith("equal") or function in ("less_than", "greater_than")
        count = {"scene": 0, "union": 2, "intersect": 2}.get(function, 1 + compares)
        below = [convert(compares) for _ in range(count)]
        modules = [module for part in below for module in part]
        if function == "scene":
            return ["Scene"]
        if function == "unique" or (compared and re.match("count|query", function)):
            return modules
        if function.startswith("filter"):
            if modules == ["Scene"] or modules == ["Find"]:
                return ["Find"]
            return modules if modules[-1] == "Filter" else [*modules, "Filter"]
        own = {
            "relate": "Transform",
            "union": "Or",
            "intersect": "And",
            "exist": "Exist",
            "count": "Count",
            "equal_integer": "EqualNum",
            "less_than": "LessNum",
            "greater_than": "MoreNum",
        }
        by_kind = {"same": "FindSameProperty", "query": "Describe", "equal": "SameProperty"}
        return [*modules, own.get(function) or by_kind[function.split("_")[0]]]

    return convert(False)


@pytest.fixture(scope="module")
def programs() -> list[list[str]]:
    """Programs of all 90 families."""
    generator, found, families = QuestionGenerator(random.Random(0)), [], set()
    for scene in sample_scenes([random.Random(i) for i in range(150)]):
        for question in generator.generate(scene):
            found.append(to_prefix(question.program))
            families.add(question.family)
    assert len(families) == NUM_FAMILIES
    return found


# --- from CLEVR's programs -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "layout"),
    [
        ("count scene", "Scene Count"),
        ("exist filter_color[red] scene", "Find Exist"),
        ("count filter_size[large] filter_color[red] filter_shape[cube] scene", "Find Count"),
        (
            "count filter_size[large] relate[left] unique filter_shape[cube] scene",
            "Find Transform Filter Count",
        ),
        (
            "count filter_color[red] filter_size[small] union scene scene",
            "Scene Scene Or Filter Count",
        ),
        (
            "count union filter_color[red] filter_size[small] scene filter_color[blue] scene",
            "Find Find Or Count",
        ),
        (
            "query_color unique intersect relate[left] unique filter_shape[cube] scene "
            "relate[front] unique filter_shape[sphere] scene",
            "Find Transform Find Transform And Describe",
        ),
        (
            "greater_than count filter_color[red] scene count scene",
            "Find Scene MoreNum",
        ),
        ("less_than count scene count filter_color[red] scene", "Scene Find LessNum"),
        (
            "equal_integer count filter_color[red] scene count filter_color[blue] scene",
            "Find Find EqualNum",
        ),
        (
            "equal_shape query_shape unique filter_color[red] scene "
            "query_shape unique relate[left] unique filter_color[blue] scene",
            "Find Find Transform SameProperty",
        ),
        (
            "exist filter_color[red] same_shape unique filter_size[large] scene",
            "Find FindSameProperty Filter Exist",
        ),
    ],
)
def test_layouts_by_hand(program: str, layout: str) -> None:
    prefix = program.split()
    assert layout_names(prefix) == literal(prefix) == layout.split()
    assert named(layouts_of(padded([prefix], extra=3), 9)) == [layout.split()]


def test_layouts_of_all_families(programs: list[list[str]]) -> None:
    wanted = [literal(program) for program in programs]
    assert [layout_names(program) for program in programs] == wanted
    assert named(layouts_of(padded(programs), 10)) == wanted
    assert {name for layout in wanted for name in layout} == {*TOKENS} - {"<eos>"}


def test_what_does_not_fit_or_is_not_known_has_no_layout() -> None:
    long = ["count", *["relate[left]", "unique"] * 2, "filter_color[red]", "scene"]
    some = padded([long, ["exist", "scene"]])
    some = torch.cat([some, torch.zeros_like(some[:1])])
    assert named(layouts_of(some, 4)) == [literal(long), ["Scene", "Exist"], []]
    assert named(layouts_of(some, 3)) == [[], ["Scene", "Exist"], []]
    assert layouts_of(some, 3).shape == (3, 3)
    assert not layouts_of(torch.zeros(2, 0, dtype=torch.int64), 5).any()  # a set without programs


def longest_program(family: QuestionFamily) -> list[str]:
    """The program of a family with as many filters as its template allows, in prefix form."""
    tokens = []
    for node in family.nodes:
        if node.function in OPERATIONS and not node.slots:
            tokens.append(node.function)
            continue
        parts = node.function.split("_")
        if parts[0] == "relate":
            tokens.append("relate[left]")
        elif parts[0] == "same":
            tokens.append("_".join(parts[:2]))
        if "filter" in parts:
            allowed = [a for i, a in enumerate(ATTRIBUTES) if not node.forbidden >> i & 1]
            tokens += [f"filter_{a}[{ATTRIBUTES[a][0]}]" for a in allowed]
        tokens += [node.final_function] if node.final_function else []
    return to_prefix(from_postfix(tokens))


def test_the_longest_layouts_of_clevr_have_8_modules() -> None:
    longest = [longest_program(family) for family in QUESTION_FAMILIES]
    assert max(len(layout_names(program)) for program in longest) == 8
    assert max(map(len, longest)) == 25


def test_places_in_postfix_form(programs: list[list[str]]) -> None:
    trees = read_prefix(padded(programs[:50]))
    assert trees.postfix.sort(1).values.equal(torch.arange(trees.tokens.shape[1]).expand(50, -1))
    inputs, places = trees.inputs, trees.postfix
    for k in range(2):  # inputs come before what takes them, in order
        has = inputs[..., k] >= 0
        of_input = places.take_along_dim(inputs[..., k].clamp(min=0), 1)
        assert (of_input < places)[has].all()
    last = torch.where(inputs[..., 1] >= 0, inputs[..., 1], inputs[..., 0])
    of_last = places.take_along_dim(last.clamp(min=0), 1)
    assert (of_last == places - 1)[last >= 0].all()


# --- the grammar -----------------------------------------------------------------------------


def test_no_state_that_can_be_reached_is_a_dead_end() -> None:
    for steps in range(2, MAX_STEPS):
        reached = {(0, 0)}
        for left in range(steps, 0, -1):
            after = set()
            for attentions, answers in reached:
                valid = valid_tokens(torch.tensor([attentions]), torch.tensor([answers]), left)
                assert valid.any()
                for token in valid[0].nonzero()[:, 0].tolist():
                    is_answer = TOKENS[token] in ANSWER_MODULES
                    is_map = TOKENS[token] in ATTENTION_MODULES
                    after.add((attentions - INPUTS[token] + is_map, answers + is_answer))
            reached = after
        assert reached == {(0, 1)}


@pytest.mark.parametrize("steps", [2, 3, 5, MAX_STEPS])
def test_whatever_is_valid_can_be_executed(steps: int) -> None:
    layouts = sampled(300, steps)
    first, answer = first_inputs(layouts), answer_steps(layouts)
    for b, layout in enumerate(layouts.tolist()):
        for t, inputs in enumerate(stack_of(layout)):
            if inputs:
                assert inputs[-1] == t - 1
            if len(inputs) == 2:
                assert inputs[0] == first[b, t]
        assert TOKENS[layout[answer[b]]] in ANSWER_MODULES
        assert not any(layout[answer[b] + 1 :])


def test_all_that_can_be_executed_is_valid() -> None:
    found = {tuple(layout) for layout in sampled(20_000, 3).tolist()}
    possible = set()
    for layout in torch.cartesian_prod(*[torch.arange(len(TOKENS))] * 3).tolist():
        try:
            stack_of(layout)
        except AssertionError:
            continue
        if layout == sorted(layout, key=lambda token: token == EOS):
            possible.add(tuple(layout))
    assert found == possible


def test_choices_are_those_of_writing(programs: list[list[str]]) -> None:
    layouts = sampled(100, 7)
    valid = valid_choices(layouts)
    assert valid.take_along_dim(layouts[..., None], 2).all()
    attentions, answers = count_outputs(layouts)
    for t in range(1, 7):
        assert valid[:, t].equal(valid_tokens(attentions[:, t - 1], answers[:, t - 1], 7 - t))
    real = layouts_of(padded(programs[:200]), 10)
    assert valid_choices(real).take_along_dim(real[..., None], 2).all()
