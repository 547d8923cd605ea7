"""Which word was meant by one that a network has never read: "shpere" → "sphere"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

MOST = 2
"""Slips in a word. In a short one there are fewer: one to four letters."""


def likely_meant(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like an unknown one, if any is like it at all.

    Case and marks do not count. Of words that are equally near, it is the one with more of the
    letters that were typed ("cubs" are rather cubes than a cube), then the one that comes first.
    """
    typed = _letters(word)
    near = [
        (slips, -(Counter(typed) & Counter(_letters(other))).total(), other)
        for other in known
        if (slips := _slips(typed, _letters(other))) is not None
    ]
    return min(near, key=lambda found: found[:2])[-1] if near else None


def _slips(typed: str, meant: str) -> int | None:
    """How many there are, unless these are likelier two words than one."""
    # A first letter is left out or swapped with the next, but rarely another: "tall" is no "ball".
    if not typed or typed[0] not in meant[:2]:
        return None
    # Among three letters, only swapped ones are no other word.
    most = min(MOST, len(typed) // 4) or int(sorted(typed) == sorted(meant))
    if abs(len(typed) - len(meant)) > most:
        return None
    slips = distance(typed, meant)
    return slips if slips <= most else None


def distance(a: str, b: str) -> int:
    """Letters left out, put in, replaced, or swapped with their neighbour: how many make b of a.

    The distance of Damerau and Levenshtein, but that no letter is touched twice.
    """
    # From the letters of a so far to each beginning of b; and the same of a letter before.
    row, before = list(range(len(b) + 1)), list[int]()
    for i, x in enumerate(a):
        two_before, before, row = before, row, [i + 1]
        for j, y in enumerate(b):
            ways = [before[j + 1] + 1, row[j] + 1, before[j] + (x != y)]
            if i and j and (x, y) == (b[j - 1], a[i - 1]):
                ways.append(two_before[j - 1] + 1)
            row.append(min(ways))
    return row[-1]


def _letters(word: str) -> str:
    return "".join(filter(str.isalnum, word.casefold()))
