"""Explanations of thoughts that nobody had, for whatever shows them."""

from __future__ import annotations

import numpy as np

from macnet.data.unknown_words import UnknownWord
from macnet.explain.reply import Explanation, GridCenters, Reply, StepAttention

QUESTION = "What color is the cube behind the tiny sphere?"


def shares(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Attention that is sharp here and there, and sums to one."""
    drawn = np.exp(rng.normal(0, 2, shape))
    attention: np.ndarray = (drawn / drawn.sum()).astype(np.float32)
    return attention


def centred(rows: int, columns: int, stride: int = 8) -> GridCenters:
    """As a trunk that shrinks a picture by the stride centres its places: on its pixel 0, 8, …"""
    return GridCenters(
        *((stride * np.arange(cells) + 0.5) / (stride * cells) for cells in (rows, columns))
    )


def explanation(
    *,
    steps: int = 3,
    question: str = QUESTION,
    picture: tuple[int, int] = (60, 40),
    grid: tuple[int, int] = (4, 5),
    words: bool = True,
    gate: bool = True,
    first: int | None = 1,
    unknown: tuple[UnknownWord, ...] = (),
    seed: int = 0,
) -> Explanation:
    """A picture is width × height; self-attention begins with the step `first`, if there is any."""
    rng = np.random.default_rng(seed)
    read = tuple(question.lower().split())
    attention = []
    for number in range(1, steps + 1):
        recalls = first is not None and number > first
        attention.append(
            StepAttention(
                words=shares(rng, len(read)) if words else None,
                image=shares(rng, *grid),
                self_attention=shares(rng, number - (first or 0)) if recalls else None,
                gate=float(rng.uniform()) if gate else None,
            )
        )
    answers = ("cyan", "brown", "2", "yes", "no", "red", "large")
    likely = sorted(shares(rng, len(answers)).tolist(), reverse=True)
    width, height = picture
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    reply = Reply(question, dict(zip(answers, likely, strict=True)), unknown)
    return Explanation(reply, read, pixels, centred(*grid), tuple(attention))
