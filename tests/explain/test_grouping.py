"""Steps that are idle are left out, those in a row that attend to the same are one group."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from macnet.explain.grouping import group_steps, merge_steps, most_telling
from macnet.explain.reply import IDLE, StepAttention

CELLS = (6, 6)


def step(cell: tuple[int, int], word: int | None = 0, change: float | None = None) -> StepAttention:
    """One that attends to a single cell and to a single word."""
    image = np.zeros(CELLS)
    image[cell] = 1
    words = None if word is None else np.eye(4)[word]
    return StepAttention(words, image, None, None, change)


def test_alike_steps_in_a_row_are_one_group() -> None:
    a, beside, b, other_word = step((1, 1)), step((1, 2)), step((4, 4)), step((1, 1), 2)
    groups = group_steps([a, a, beside, b, a, other_word, other_word])
    assert [group.numbers for group in groups] == [(1, 2, 3), (4,), (5,), (6, 7)]
    assert [group.title for group in groups] == ["steps 1–3", "step 4", "step 5", "steps 6–7"]


def test_idle_steps_are_left_out_and_interrupt_nothing() -> None:
    idle = step((4, 4), 3, IDLE / 2)
    steps = [idle, step((1, 1), 0, 0.5), idle, step((1, 1), 0, 0.8), step((4, 1), 0, 0.9)]
    first, second = group_steps(steps)
    assert (first.numbers, first.title) == ((2, 4), "steps 2, 4")
    assert first.change == pytest.approx(1 - 0.5 * 0.2)
    assert second.numbers == (5,)
    assert second.change == pytest.approx(0.9)
    only = group_steps([idle, step((1, 1), 0, IDLE * 0.9)])
    assert [group.numbers for group in only] == [(2,)]  # something has to be shown


def test_a_group_is_the_mean_of_its_steps_by_what_they_changed() -> None:
    steps = [step((0, 0), 0, 0.25), step((5, 5), 1, 0.75)]
    group = merge_steps(steps, [1, 2])
    assert group.image[0, 0] == pytest.approx(0.25)
    assert group.image[5, 5] == pytest.approx(0.75)
    assert group.words == pytest.approx([0.25, 0.75, 0, 0])
    without = merge_steps([step((0, 0), None), step((5, 5), None)], [1, 2])
    assert (without.words, without.change) == (None, None)
    assert without.image[0, 0] == pytest.approx(0.5)


def test_the_most_telling_groups_attend_to_something_new() -> None:
    resting = np.full(CELLS, 1 / 36)
    quiet = StepAttention(np.eye(4)[0], resting, None, None, None)
    groups = [merge_steps([each], [1]) for each in (quiet, step((1, 1)), step((4, 4)))]
    assert most_telling(groups, 2) == groups[1:]
    assert most_telling(groups, 9) == groups
    # What a step does at rest is no news either.
    rests = [
        replace(group, share=share) for group, share in zip(groups[1:], (0.04, 0.6), strict=True)
    ]
    assert most_telling([*rests, groups[1]], 2) == [rests[1], groups[1]]
    # The gate lets hardly anything of it through.
    faint = [merge_steps([step((1, 1), 0, c)], [1]) for c in (0.9, 0.12)]
    faint.append(merge_steps([step((4, 4), 0, 0.9)], [1]))
    assert most_telling(faint, 2) == [faint[0], faint[2]]


def test_steps_that_attend_to_nothing_but_their_resting_map_are_alike_and_tell_nothing() -> None:
    rests = [replace(step((0, 0)), image=np.zeros(CELLS), share=0.0) for _ in range(3)]
    groups = group_steps([*rests, step((1, 1)), rests[0]])
    assert [group.numbers for group in groups] == [(1, 2, 3), (4,), (5,)]
    assert most_telling(groups, 1) == [groups[1]]


def test_the_first_group_counts_as_much_as_others() -> None:
    steps = [step((i % 6, i), i % 4) for i in (0, 2, 4)]
    groups = [merge_steps([each], [1]) for each in steps]
    groups.append(merge_steps([replace(step((0, 5), 1), share=0.7)], [1]))
    assert most_telling(groups, 3) == groups[:3]


def test_steps_that_change_nothing_count_alike() -> None:
    group = merge_steps([step((0, 0), 0, 0.0), step((5, 5), 1, 0.0)], [1, 2])
    assert group.words == pytest.approx([0.5, 0.5, 0, 0])
    assert (group.image.sum(), group.change) == (1, 0)


def test_of_all_attention_a_group_has_all() -> None:
    for count in range(1, 30):
        steps = [step((1, 1), 0, 0.1 + i / 100) for i in range(count)]
        assert merge_steps(steps, range(1, count + 1)).share == 1


@given(seed=st.integers(0, 999), count=st.integers(1, 16))
def test_each_active_step_is_in_one_group(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    steps = [
        step(tuple(rng.integers(0, 6, 2)), int(rng.integers(4)), float(rng.uniform(0, 0.4)))
        for _ in range(count)
    ]
    groups = group_steps(steps)
    numbers = [number for group in groups for number in group.numbers]
    active = [i for i, each in enumerate(steps, 1) if not each.idle]
    assert numbers == active or (not active and len(numbers) == 1)
    for group in groups:
        assert math.isclose(group.image.sum(), 1)
