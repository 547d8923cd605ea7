"""What a network says to a question about a picture, and how it came to say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Unknown:
    """A word that the network has never read; it takes every such word for the same."""

    word: str
    meant: str | None
    """The word that was likely meant, if there is one like it."""


@dataclass(frozen=True)
class Reply:
    question: str
    probabilities: Mapping[str, float]
    """Of all answers, the likeliest first."""
    unknown: tuple[Unknown, ...] = ()

    @property
    def answer(self) -> str:
        return next(iter(self.probabilities))


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


@dataclass(frozen=True)
class Explanation:
    reply: Reply
    words: tuple[str, ...]
    """Of the question, as the network cut it up: S of them."""
    picture: np.ndarray
    """(H, W, 3) uint8, in its own size: the network saw it squeezed."""
    looks: tuple[Look, ...]
    """One to each step."""
