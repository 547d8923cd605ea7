"""The objects that a program refers to.

"What size is the ball left of the cyan thing?" finds two unique objects, with a hop from the cyan
thing to the ball. "How many cubes are left of the cyan thing?" has one unique object, and counts
the cubes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from macnet.clevr.program import Program, SceneIndex, node_outputs


class ReferencedObjects(NamedTuple):
    """The objects that a program refers to, by their index in the scene."""

    unique_objects: tuple[int, ...]
    """Output of each `unique`, in the order of the program."""
    counted_objects: tuple[int, ...]
    """The inputs of all `count` and `exist` functions."""
    hops: tuple[tuple[int, int], ...]
    """Pairs of different unique objects, where the program finds the second through the first."""


def referenced_set(program: Program, scene: SceneIndex) -> int:
    """The unique and counted objects of a program together, as a bitmask: bit i for object i."""
    outputs: Sequence[Any] = node_outputs(program, scene)
    found = 0
    for node, output in zip(program, outputs, strict=True):
        if node["function"] == "unique":
            found |= 1 << output
        elif node["function"] in ("count", "exist"):
            found |= outputs[node["inputs"][0]]
    return found


def referenced_objects(program: Program, scene: SceneIndex) -> ReferencedObjects:
    """Execute a program, and list the objects that it refers to."""
    outputs: Sequence[Any] = node_outputs(program, scene)
    unique, hops, counted = [], [], 0
    origins: list[set[int]] = []  # for each node, the last unique objects on the paths to it
    for node, output in zip(program, outputs, strict=True):
        before: set[int] = set().union(*(origins[i] for i in node["inputs"]))
        if node["function"] == "unique":
            hops += [(origin, output) for origin in sorted(before) if origin != output]
            unique.append(output)
            before = {output}
        elif node["function"] in ("count", "exist"):
            counted |= outputs[node["inputs"][0]]
        origins.append(before)
    indices = tuple(i for i in range(counted.bit_length()) if counted >> i & 1)
    return ReferencedObjects(tuple(unique), indices, tuple(hops))
