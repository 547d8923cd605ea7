"""Which steps of an explanation tell something: idle ones are left out, alike ones are one group.

A network takes all of its steps for every question, whether it needs them or not. A memory gate may
throw away what a step found, and steps in a row may attend to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from macnet.explain.captions import summary
from macnet.explain.reply import StepAttention

ALIKE_IMAGE, ALIKE_WORDS = 0.6, 0.5
"""The shares that two attentions must have in common to be alike. Over the image a cell next to
another counts as the same; over words there is no such thing, so that less is asked for."""


@dataclass(frozen=True)
class StepGroup:
    """Steps in a row that attend to the same, but for idle ones between them; or a single step."""

    numbers: tuple[int, ...]
    """The numbers of the steps, from 1."""
    words: np.ndarray | None
    """(S,): their mean attention over the words of the question, weighted by their change."""
    image: np.ndarray
    """(h, w): their mean attention over the image."""
    change: float | None
    """How far they moved the memory all in all, from 0 to 1; None if there is no gate."""
    share: float
    """The share of all their attention that `image` has; less than 1 without the resting map."""

    @property
    def title(self) -> str:
        """What to call them, such as "steps 3–6"."""
        first, last = self.numbers[0], self.numbers[-1]
        if first == last:
            return f"step {first}"
        if len(self.numbers) == last - first + 1:
            return f"steps {first}–{last}"
        return f"steps {', '.join(map(str, self.numbers))}"


def group_steps(steps: Sequence[StepAttention]) -> list[StepGroup]:
    """The steps that are not idle, those in a row that are alike as one group."""
    groups: list[StepGroup] = []
    for number, step in active_steps(steps):
        if groups and _alike(groups[-1], step):
            members = (*groups[-1].numbers, number)
            groups[-1] = merge_steps(steps, members)
        else:
            groups.append(merge_steps(steps, (number,)))
    return groups


def active_steps(steps: Sequence[StepAttention]) -> list[tuple[int, StepAttention]]:
    """The steps that are not idle, with their numbers; if all are, the one that changed most."""
    numbered = [*enumerate(steps, 1)]
    active = [(number, step) for number, step in numbered if not step.idle]
    return active or [max(numbered, key=lambda pair: pair[1].change or 0)]


def merge_steps(steps: Sequence[StepAttention], numbers: Sequence[int]) -> StepGroup:
    """Steps as one group, by their numbers."""
    members = [steps[number - 1] for number in numbers]
    changes = [1.0 if step.change is None else step.change for step in members]
    weights = np.array(changes) if sum(changes) else np.ones(len(changes))
    shares = weights / weights.sum()
    words = None
    if members[0].words is not None:
        words = shares @ np.stack([step.words for step in members if step.words is not None])
    image = np.einsum("s,shw->hw", shares, np.stack([step.image for step in members]))
    gated = members[0].change is not None
    change = 1 - float(np.prod(1 - np.array(changes))) if gated else None
    shown = [step.share for step in members]
    share = 1.0 if min(shown) == 1 else float(shares @ shown)  # exactly, and no sum of roundings
    return StepGroup(tuple(numbers), words, image, change, share)


def most_telling(groups: Sequence[StepGroup], most: int) -> list[StepGroup]:
    """As many groups as there is room for: those that attend to the most that is new.

    New is what the group before does not attend to. Each group counts for what it changed, and for
    the share of its attention that is shown.
    """
    first = groups[0]
    words = None if first.words is None else np.full(len(first.words), 1 / len(first.words))
    even = StepGroup((0,), words, np.full_like(first.image, 1 / first.image.size), None, 1.0)
    tells = [
        (1.0 if group.change is None else group.change)
        * group.share
        * (1 - sum(_in_common(before, group)) / 2)
        for before, group in pairwise([even, *groups])
    ]
    kept = sorted(np.argsort(tells, kind="stable")[::-1][:most])
    return [groups[index] for index in kept]


def reasoning_chain(
    words: Sequence[str], groups: Sequence[StepGroup]
) -> list[tuple[StepGroup, list[str]]]:
    """What groups read, in short, without one that reads the same as the one before it.

    Empty if the network does not attend to words.
    """
    links: list[tuple[StepGroup, list[str]]] = []
    for group in groups:
        if group.words is None:
            return []
        read = summary(words, group.words)
        if not links or read != links[-1][1]:
            links.append((group, read))
    return links


def _alike(group: StepGroup, step: StepAttention) -> bool:
    image, words = _in_common(group, step)
    return image >= ALIKE_IMAGE and words >= ALIKE_WORDS


def _in_common(before: StepGroup, after: StepGroup | StepAttention) -> tuple[float, float]:
    """The shares that two attentions have in common, over the image and over the words."""
    images = _blurred(before.image), _blurred(after.image)
    # Two that attend to nothing beyond their resting maps have that in common.
    image = float(np.minimum(*images).sum()) if any(map(np.any, images)) else 1.0
    if before.words is None or after.words is None:
        return image, 1.0
    return image, float(np.minimum(before.words, after.words).sum())


def _blurred(attention: np.ndarray) -> np.ndarray:
    """(h, w), shared out among each cell and its neighbours: a cell further is no other place."""
    height, width = attention.shape
    padded = np.pad(attention, 1, mode="edge")
    around = [padded[y : y + height, x : x + width] for y in range(3) for x in range(3)]
    blurred: np.ndarray = np.sum(around, axis=0) / max(np.sum(around), 1e-30)
    return blurred
