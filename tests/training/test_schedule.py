"""The learning rate, against the words that describe it."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from macnet.models.recipe import Recipe
from macnet.training.loop import Schedule


def literally(losses: list[float], lr: float) -> list[float]:
    """The rate of each epoch: halve it after one if (Δloss<.015 & prev<.5 & lr>2e-5) or …"""
    rates, prev = [lr], math.inf
    for loss in losses:
        change = prev - loss
        too_little = (
            (change < 0.015 and prev < 0.5 and lr > 2e-5)
            or (change < 0.008 and prev < 0.15 and lr > 1e-5)
            or (change < 0.003 and prev < 0.10 and lr > 5e-6)
        )
        if too_little:
            lr = lr / 2
        rates.append(lr)
        prev = loss
    return rates


@given(
    losses=st.lists(st.floats(0, 1) | st.floats(0, 0.2) | st.floats(0.09, 0.11), max_size=30),
    lr=st.floats(1e-6, 1e-2),
)
@example([0.09] * 30, 1e-4)
def test_the_authors_rule(losses: list[float], lr: float) -> None:
    schedule = Schedule(Recipe(schedule="authors", lr=lr), steps=1000, steps_per_epoch=10)
    epochs = range(len(losses) + 1)
    assert [schedule.rate(10 * n, losses[:n]) for n in epochs] == literally(losses, lr)


def test_the_authors_rule_has_a_floor() -> None:
    """Of 3.1e-6, as the code's readers found."""
    schedule = Schedule(Recipe(schedule="authors"), 1000, 10)
    assert schedule.rate(999, [0.05] * 100) == 1e-4 / 32 == pytest.approx(3.1e-6, rel=0.01)


@given(
    steps=st.integers(2, 500),
    per_epoch=st.integers(1, 100),
    warmup=st.floats(0, 3),
    lr=st.floats(1e-6, 1.0),
)
def test_cosine(steps: int, per_epoch: int, warmup: float, lr: float) -> None:
    recipe = Recipe(schedule="cosine", warmup=warmup, lr=lr)
    rising = round(warmup * per_epoch)
    schedule = Schedule(recipe, steps, per_epoch)
    rates = [schedule.rate(step) for step in range(steps)]
    assert all(0 < rate <= lr * (1 + 1e-15) for rate in rates)
    assert rates[:rising] == sorted(rates[:rising])
    assert rates[rising:] == sorted(rates[rising:], reverse=True)
    if rising < steps:
        assert rates[rising] == lr, "where the warm-up ends it is highest"
        assert schedule.rate(steps) == pytest.approx(0, abs=1e-12)
        if (steps - rising) % 2 == 0:
            assert schedule.rate((steps + rising) // 2) == pytest.approx(lr / 2)


def test_doubling() -> None:
    """From a hundredth of the maximum, twice as much every 20 epochs, never above the maximum."""
    schedule = Schedule(Recipe(schedule="doubling", lr=5e-4), steps=1750, steps_per_epoch=5)
    rates = [schedule.rate(step) for step in range(1750)]
    wanted = [5e-6, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4]
    for n, rate in enumerate(wanted):
        assert rates[100 * n : 100 * (n + 1)] == pytest.approx([rate] * 100)
    assert set(rates[700:]) == {5e-4}
    assert schedule.rate(10**15) == 5e-4


def test_warm_up_ends_where_doubling_starts() -> None:
    schedule = Schedule(Recipe(schedule="doubling", warmup=0.5, lr=1.0), 1000, 10)
    rates = [schedule.rate(step) for step in range(6)]
    assert rates == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.01, 0.01])


@pytest.mark.parametrize("schedule", ["constant", "authors", "cosine"])
def test_warm_up_ends(schedule: str) -> None:
    recipe = Recipe(schedule=schedule, warmup=0.5, lr=1.0)  # type: ignore[arg-type]
    rates = [Schedule(recipe, 100, 10).rate(step) for step in range(6)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5] == 1


def test_constant() -> None:
    schedule = Schedule(Recipe(lr=3e-4), 100, 10)
    assert {schedule.rate(step, [0.05] * 9) for step in range(100)} == {3e-4}
