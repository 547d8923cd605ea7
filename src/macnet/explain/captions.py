"""What steps attended to, in words: those of the question, and where in the image it is bright."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from macnet.explain.reply import GridCenters, Reply

TOP_WORDS, TOP_SHARE = 6, 2 / 3  # the most words of a phrase, and their attention
MAX_LETTERS = 15  # of a word there
SMALL_WORDS = frozenset(("a", "an", "the", "of", "is", "are", "that", "as", "it", "to", "…"))
LIT_SHARE = 0.4  # of the strongest attention, and so of its brightness
SPREAD = 1 / 3  # of all cells: if more are lit, no place is named
MIN_SHARE, MAX_PLACES = 0.1, 3  # of the attention, for a place to be named; of places
SHOWN = 0.01  # the probability from which answers are shown; the second is in any case
REGIONS = (
    ("upper left", "top", "upper right"),
    ("left", "middle", "right"),
    ("lower left", "bottom", "lower right"),
)


class Place(NamedTuple):
    """Cells next to each other that a step lights up."""

    region: str
    """The ninth of the image that their center is in, such as "upper left"."""
    share: float
    """Their attention."""


def phrase(words: Sequence[str], shares: np.ndarray) -> list[tuple[str, float]]:
    """The fewest words that have most of the attention, in their order, each with its share.

    A … stands where words are left out.
    """
    most = np.argsort(-shares, kind="stable")
    enough = np.searchsorted(shares[most].cumsum(), TOP_SHARE) + 1
    kept = sorted(most[: min(enough, TOP_WORDS)].tolist())
    shown: list[tuple[str, float]] = []
    for before, index in zip([kept[0], *kept], kept, strict=False):
        shown += [("…", 0.0)] * (index > before + 1)
        word = words[index]
        cut = word if len(word) <= MAX_LETTERS else f"{word[:MAX_LETTERS]}…"
        shown.append((cut, float(shares[index])))
    return shown


def summary(words: Sequence[str], shares: np.ndarray) -> list[str]:
    """The phrase without words that only hold it together, if others are left."""
    read = [word for word, _ in phrase(words, shares)]
    return [word for word in read if word not in SMALL_WORDS] or read


def lit_places(attention: np.ndarray, centers: GridCenters) -> list[Place]:
    """The places that attention (h, w) lights up, with most first; none if it is spread out.

    A place is made of cells that are at least 0.4 times as bright as the brightest one, and touch.
    """
    bright = attention >= LIT_SHARE * attention.max()
    if bright.mean() > SPREAD:
        return []
    found: list[Place] = []
    left = {(int(row), int(column)) for row, column in np.argwhere(bright)}
    while left:
        place, edge = [], [left.pop()]
        while edge:
            row, column = edge.pop()
            place.append((row, column))
            touching = left & {(row + y, column + x) for y in (-1, 0, 1) for x in (-1, 0, 1)}
            left -= touching
            edge += touching
        rows, columns = np.array(place).T
        shares = attention[rows, columns]
        if (share := float(shares.sum())) >= MIN_SHARE:
            down, across = (
                int(3 * min(1 - 1e-9, at[cells] @ shares / share))
                for at, cells in zip(centers, (rows, columns), strict=True)
            )
            found.append(Place(REGIONS[down][across], share))
    return sorted(found, key=lambda place: -place.share)[:MAX_PLACES]


def describe_places(attention: np.ndarray, centers: GridCenters, share: float = 1.0) -> str:
    """Where attention is, as the end of a sentence: "the left (62%) and the top (20%)".

    `share` is that of what is shown in all attention, of which the percentages are.
    """
    places = lit_places(attention, centers)
    if not places:
        return "no place in particular"
    return in_words([f"the {place.region} ({share * place.share:.0%})" for place in places])


def in_words(parts: Sequence[str]) -> str:
    """A list as people say it: "a, b and c"."""
    *some, last = parts
    return f"{', '.join(some)} and {last}" if some else last


def likely_answers(reply: Reply) -> list[tuple[str, float]]:
    """The answers that are worth showing, with their probabilities: the likely ones, and two."""
    ranked = list(reply.probabilities.items())
    likely = sum(probability >= SHOWN for _, probability in ranked)
    return ranked[: max(2, likely)]
