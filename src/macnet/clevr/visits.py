"""What a program visits: the objects it singles out on its way, and those it ends with.

"What size is the ball left of the cyan thing?" finds the cyan thing, then the ball: two referents,
the first of which leads to the second. "How many cubes are left of the cyan thing?" has one
referent, and the cubes there are its members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from macnet.clevr.program import Facts, Program, outcomes


class Visits(NamedTuple):
    """Objects by their index in the scene."""

    referents: tuple[int, ...]
    """What each `unique` finds, in the order of the program."""
    members: tuple[int, ...]
    """All that a `count` counts, or of which an `exist` says that there are any."""
    links: tuple[tuple[int, int], ...]
    """Pairs of referents: it is by the first that the program finds the second, another object."""


def visits(program: Program, facts: Facts) -> Visits:
    found: Sequence[Any] = outcomes(program, facts)
    referents, links, members = [], [], 0
    origins: list[set[int]] = []  # of each step: the referents that it was found by, the last ones
    for node, outcome in zip(program, found, strict=True):
        before: set[int] = set().union(*(origins[i] for i in node["inputs"]))
        if node["function"] == "unique":
            links += [(one, outcome) for one in sorted(before) if one != outcome]
            referents.append(outcome)
            before = {outcome}
        elif node["function"] in ("count", "exist"):
            members |= found[node["inputs"][0]]
        origins.append(before)
    inside = tuple(i for i in range(members.bit_length()) if members >> i & 1)
    return Visits(tuple(referents), inside, tuple(links))
