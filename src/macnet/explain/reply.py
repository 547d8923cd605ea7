"""The answer to a question about an image, and what the network attended to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from reprlib import repr as shown  # which no word can make longer than a line
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from macnet.data.unknown_words import UnknownWord

if TYPE_CHECKING:
    from torch import Tensor

IDLE = 0.1
"""A step that moves the memory less than this share of the way is idle: the gate skips it."""
RESTING = 0.01
"""A step whose attention differs from its resting map by a smaller share only rests."""


@dataclass(frozen=True)
class Reply:
    """The answer to a question, with the probabilities of all answers."""

    question: str
    """The question as it was typed."""
    probabilities: Mapping[str, float]
    """The probability of each answer, in descending order."""
    unknown: tuple[UnknownWord, ...] = ()
    """Words of the question that are not in the network's vocabulary."""

    @property
    def answer(self) -> str:
        """The most probable answer."""
        return next(iter(self.probabilities))

    @property
    def notes(self) -> list[str]:
        """Sentences about unknown words: those that were read as others, and those left out."""
        words = [(shown(unknown.word), unknown.replacement) for unknown in self.unknown]
        meant = [f"{word} as {shown(instead)}" for word, instead in words if instead is not None]
        strange = [word for word, instead in words if instead is None]
        left = "them" if len(strange) > 1 else "it"
        told = (("It read", meant, ""), ("It has never read", strange, f", and left {left} out"))
        return [f"{what} {', '.join(named)}{so}." for what, named, so in told if named]


@dataclass(frozen=True)
class StepAttention:
    """The attention of one reasoning step."""

    words: np.ndarray | None
    """cv: (S,), over the words of the question; None if the control does not attend to words."""
    image: np.ndarray
    """rv: (h, w), over the grid of cells of the image."""
    self_attention: np.ndarray | None
    """sa: (j,), over the previous steps; None if there is no self-attention."""
    resting: np.ndarray | None
    """(h, w): the resting map, what this step attends to on average over other questions about the
    image; None if it is not known."""
    change: float | None
    """How far the memory gate let the memory move, from 0, not at all, to 1; None without gate.

    With one gate for the whole memory, as in the paper, this is 1 minus the gate.
    """

    share: float = 1.0
    """The share of all attention that `image` has; less than 1 without the resting map."""

    @property
    def idle(self) -> bool:
        """Whether the gate skips this step, whatever it attends to."""
        return self.change is not None and self.change < IDLE


@dataclass(frozen=True)
class Module:
    """A module of the program that the network wrote, as it was executed."""

    name: str
    """Its name, such as "filter_color[red]" or "Find"."""
    inputs: tuple[int, ...]
    """The modules it takes the outputs of, as indices of `Explanation.modules`."""
    words: np.ndarray | None
    """(S,): its attention over the words of the question; None if it has none."""
    image: np.ndarray | None
    """(h, w): its map over the grid of cells, with a sum of one; None if it has none."""


class GridCenters(NamedTuple):
    """The centers of the rows and columns of cells, as fractions of the image's size."""

    rows: np.ndarray
    """(h,): from 0, the top, to 1."""
    columns: np.ndarray
    """(w,): from 0, the left, to 1."""


@dataclass(frozen=True)
class Explanation:
    """An answer, and what led to it: the attention of steps, or a program module by module."""

    reply: Reply
    words: tuple[str, ...]
    """The S words of the question that the network read."""
    image: np.ndarray
    """(H, W, 3) uint8: the image in its own size; the network saw it resized."""
    centers: GridCenters
    """The centers of the cells that steps attend to, and that modules have maps over."""
    steps: tuple[StepAttention, ...] = ()
    """The attention of each step; empty if the network answers by writing a program."""
    modules: tuple[Module, ...] = ()
    """The modules of its program, in order of execution; empty if it writes none."""
    true_modules: tuple[str, ...] | None = None
    """The names of the modules of the true program, in order of execution; None if not known."""
    map_title: str | None = None
    """What the maps of modules show, such as "attention"; None if there are no modules."""

    @property
    def beyond_resting(self) -> Explanation:
        """The same with the attention of each step beyond its resting map, where that is known."""
        return replace(self, steps=tuple(map(_without_resting_map, self.steps)))

    @property
    def is_beyond_resting(self) -> bool:
        """Whether steps have their attention beyond the resting map only."""
        return any(step.share < 1 for step in self.steps)

    @property
    def panels(self) -> tuple[StepAttention | Module, ...]:
        """What is shown one after the other: the steps, or the modules."""
        return self.steps or self.modules


Attention = TypeVar("Attention", np.ndarray, "Tensor")


def beyond_resting(attention: Attention, resting: Attention) -> tuple[Attention, Attention]:
    """Attention (..., L) beyond a resting map, with a sum of one; and its share of all (...).

    Where the share is less than `RESTING`, both are zero.
    """
    beyond = (attention - resting).clip(0)
    share = beyond.sum(-1)
    share = share * (share >= RESTING)
    return beyond * (share > 0)[..., None] / share.clip(RESTING)[..., None], share


def _without_resting_map(step: StepAttention) -> StepAttention:
    if step.resting is None:
        return step
    image, share = beyond_resting(step.image.ravel(), step.resting.ravel())
    image = image.reshape(step.image.shape)
    return replace(step, image=image, share=float(share), resting=None)
