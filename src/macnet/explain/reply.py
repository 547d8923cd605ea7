"""What a network says to a question about a picture, and how it came to say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown  # which no word can make longer than a line
from typing import NamedTuple

import numpy as np

from macnet.data.reading import Unknown


@dataclass(frozen=True)
class Reply:
    question: str
    """As it was typed."""
    probabilities: Mapping[str, float]
    """Of all answers, the likeliest first."""
    unknown: tuple[Unknown, ...] = ()

    @property
    def answer(self) -> str:
        return next(iter(self.probabilities))

    @property
    def notes(self) -> list[str]:
        """What to tell of unknown words: of those that were read as others, and of the rest."""
        meant = [
            f"{shown(a.word)} as {shown(a.meant)}" for a in self.unknown if a.meant is not None
        ]
        strange = [shown(a.word) for a in self.unknown if a.meant is None]
        left = "them" if len(strange) > 1 else "it"
        told = (("It read", meant, ""), ("It has never read", strange, f", and left {left} out"))
        return [f"{what} {', '.join(words)}{so}." for what, words, so in told if words]


@dataclass(frozen=True)
class Look:
    """What one step of reasoning attended to."""

    words: np.ndarray | None
    """cv: (S,), over the words of the question; None where the control has no use for words."""
    places: np.ndarray
    """rv: (h, w), over the picture."""
    recalled: np.ndarray | None
    """sa: (j,), over the steps before it, where there is self-attention."""
    kept: float | None
    """The share of the old memory that was kept, where there is a gate."""


class Centres(NamedTuple):
    """Where the rows and the columns of places are centred: how far into the picture, 0 to 1."""

    down: np.ndarray
    """(h,)"""
    across: np.ndarray
    """(w,)"""


@dataclass(frozen=True)
class Explanation:
    reply: Reply
    words: tuple[str, ...]
    """Of the question, as the network cut it up: S of them."""
    picture: np.ndarray
    """(H, W, 3) uint8, in its own size: the network saw it squeezed."""
    centres: Centres
    """Of the places that each look attends to."""
    looks: tuple[Look, ...]
    """One to each step."""
