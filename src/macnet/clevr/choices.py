"""The choices that may fill the slots of a template node, given a scene.

For "the <A>" in a scene with two cubes, one of them red, they include "red cube", but not "cube",
because it does not say which one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate, chain

from macnet.clevr.families import (
    ATTRIBUTE_BITS,
    DESCRIPTIONS,
    EMPTY_DESCRIPTION,
    MATCHING_DESCRIPTIONS,
    TemplateNode,
)
from macnet.clevr.program import Output, SceneIndex
from macnet.clevr.scene import ATTRIBUTES, RELATIONS

# In "the cube left of the ball", the relation is redundant if there is only one cube. Such choices
# are a share of this size.
TRIVIAL_SHARE = 0.1

Choice = tuple[int, int]
"""What fills the slots of a node: a relation and a description, by index. A slot that the node does
not have is filled with 0."""
NO_CHOICE: Choice = (0, 0)
"""What fills the slots of a node that has none."""

# Every choice exists once, and pools hold references to it: relation → description → choice.
_CHOICES = [[(r, d) for d in range(len(DESCRIPTIONS))] for r in range(len(RELATIONS))]
# Nodes whose choices do not depend on the scene: a relation alone, or a value of one attribute.
_FIXED_CHOICES: Mapping[str, list[Choice]] = {
    "relate": [of_relation[EMPTY_DESCRIPTION] for of_relation in _CHOICES],
    **{
        f"filter_{name}": [c for c in _CHOICES[0] if ATTRIBUTE_BITS[c[1]] == 1 << i]
        for i, name in enumerate(ATTRIBUTES)
    },
}

FINAL_OUTPUT: Mapping[str, Callable[[int], Output]] = {
    "": lambda objects: objects,
    "unique": lambda objects: objects.bit_length() - 1,  # what selects several is no choice
    "count": int.bit_count,
    "exist": bool,
}
"""Final function of a node → its output for the objects, as a bitmask, that a choice selects."""


class Choices:
    """The choices of a node, given the output of its input."""

    __slots__ = ("_final_function", "_matched", "_outputs", "domains", "pool", "rare")

    def __init__(
        self,
        final_function: str,
        domains: list[int],
        matched: list[int],
        pool: list[Choice | None],
        rare: list[Choice],
    ) -> None:
        self.domains = domains
        """Relation → the objects among which a description selects."""
        self.pool = pool
        """Common choices, and None once for each rare choice that may be sampled."""
        self.rare = rare
        self._final_function, self._matched = final_function, matched
        self._outputs: set[Output] | None = None

    @property
    def outputs(self) -> set[Output]:
        """All possible outputs of the node, and perhaps some that no choice has."""
        if self._outputs is None:
            selected = {matched & domain for domain in self.domains for matched in self._matched}
            if self._final_function == "unique":
                selected = {objects for objects in selected if objects.bit_count() == 1}
            self._outputs = set(map(FINAL_OUTPUT[self._final_function], selected))
        return self._outputs


class SceneChoices:
    """The objects that each description matches in a scene, and the choices of nodes."""

    def __init__(self, index: SceneIndex) -> None:
        self.index = index
        self._related = list(index.related.values())
        self.matching = matching = [0] * len(DESCRIPTIONS)
        """Description → bitmask of the objects that it matches."""
        descriptions: set[int] = set()
        for i, values in enumerate(zip(*index.values.values(), strict=True)):
            bit = 1 << i
            for description in MATCHING_DESCRIPTIONS[values]:
                matching[description] |= bit
            descriptions.update(MATCHING_DESCRIPTIONS[values])
        # Descriptions of the same objects are interchangeable, so they are grouped by the objects.
        by_objects: dict[int, list[int]] = {}
        for description in sorted(descriptions):
            by_objects.setdefault(matching[description], []).append(description)
        self.matched = list(by_objects)
        """The different sets of objects that descriptions match."""
        # For each relation: these sets, each with the choices that combine the relation with one
        # of its descriptions.
        self._by_objects: list[list[tuple[int, list[Choice]]]] = []
        grouped = list(chain.from_iterable(by_objects.values()))
        ends = list(accumulate(map(len, by_objects.values())))
        parts = list(zip(by_objects, [0, *ends], ends, strict=False))
        for of_relation in _CHOICES:
            choices = [of_relation[description] for description in grouped]
            self._by_objects.append([(objects, choices[a:b]) for objects, a, b in parts])
        self._choices_of: dict[tuple[str, Output], Choices] = {}

    def for_node(self, node: TemplateNode, source: Output) -> Choices:
        """The choices of a node whose first input has the output `source`."""
        key = node.function, source
        choices = self._choices_of.get(key)
        if choices is None:
            choices = self._choices_of[key] = self._find(node, int(source))
        return choices

    def _find(self, node: TemplateNode, source: int) -> Choices:
        final = node.final_function
        domains = [related[source] for related in self._related] if node.has_relation else [source]
        if node.function in _FIXED_CHOICES:
            choices = _FIXED_CHOICES[node.function]
            return Choices(final, domains, [self.matching[d] for _, d in choices], [*choices], [])
        if node.has_relation:
            return self._relations_and_descriptions(domains, final)
        return self._descriptions(source, final)

    def _descriptions(self, source: int, final_function: str) -> Choices:
        """Descriptions that match something in the scene, and a random sample of all others.

        Those mostly match nothing, so that the answers "no" and "0" are not rare.
        """
        by_objects = self._by_objects[0]
        single: list[Choice | None] = [
            choice
            for objects, choices in by_objects
            if (objects & source).bit_count() == 1
            for choice in choices
        ]
        if final_function == "unique":
            return Choices(final_function, [source], self.matched, single, [])
        common: list[Choice | None] = [choice for _, choices in by_objects for choice in choices]
        if common and not final_function:  # an operand of "or" must not be empty
            common.remove(_CHOICES[0][EMPTY_DESCRIPTION])
        common += [None] * len(common if final_function == "exist" else single)
        return Choices(final_function, [source], [*self.matched, 0], common, _CHOICES[0])

    def _relations_and_descriptions(self, domains: list[int], final_function: str) -> Choices:
        """Pairs of a relation and a description, given the objects that are in each relation."""
        informative: list[Choice | None] = []
        trivial: list[Choice] = []
        unique = final_function == "unique"
        for domain, by_objects in zip(domains, self._by_objects, strict=True):
            for objects, choices in by_objects:
                selected = objects & domain
                if unique and selected.bit_count() != 1:
                    continue
                if selected == objects:  # the relation excludes none of them
                    trivial += choices
                elif selected or final_function:
                    informative += choices
        extras = round(len(informative) * TRIVIAL_SHARE / (1 - TRIVIAL_SHARE))
        informative += [None] * min(extras, len(trivial))
        return Choices(final_function, domains, self.matched, informative, trivial)
