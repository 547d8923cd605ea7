"""The 90 question families, read from `templates/`: their programs and their texts.

A family is a program template with slots, and the texts that express it. The nodes are in postfix
order, each taking its inputs from a stack. For "What size is the cube left of the ball?":

    "nodes": "scene, filter_unique A, relate_filter_unique R B, query_size"
    "forbidden": {"B": ["size"]}                  (or the question would contain its answer)
    "texts": ["What size is the <B> [that is] <R> the <A>?", …]

Slots A–D hold descriptions ("big red cube"), R–T relations ("left of"). `distinct` lists two nodes,
counted from 0, whose outputs must differ. In a text, (this|that) are alternatives that make two
texts of it, [this] is optional and kept half of the time, and <A>s is a plural.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from typing import Any, NamedTuple

from macnet.clevr.program import Output, arity, possible_outputs, to_answer
from macnet.clevr.scene import ATTRIBUTES, RELATIONS

# A file for each, in the released order: the index of a family counts through them, from 0 to 89.
GROUPS = (
    "compare_integer", "comparison", "three_hop", "single_and", "same_relate", "single_or",
    "one_hop", "two_hop", "zero_hop",
)  # fmt: skip

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "thing": ("thing", "object"),
    "sphere": ("sphere", "ball"),
    "cube": ("cube", "block"),
    "large": ("large", "big"),
    "small": ("small", "tiny"),
    "metal": ("metallic", "metal", "shiny"),
    "rubber": ("rubber", "matte"),
    "left": ("left of", "to the left of", "on the left side of"),
    "right": ("right of", "to the right of", "on the right side of"),
    "front": ("in front of",),
}


# --- descriptions ----------------------------------------------------------------------------

# A description has a value or None for each attribute; no shape is expressed as "thing". There are
# 3 · 9 · 3 · 4 = 324 of them, and everywhere else a description is its index in this list.
DESCRIPTIONS = tuple(product(*((None, *values) for values in ATTRIBUTES.values())))
EMPTY_DESCRIPTION = 0  # the description without any attribute
_INDEX = {description: i for i, description in enumerate(DESCRIPTIONS)}

# The filters that select what a description describes, in the released order.
FILTERS = tuple(
    [(f"filter_{name}", value) for name, value in zip(ATTRIBUTES, d, strict=True) if value]
    for d in DESCRIPTIONS
)
# Bitmask of the attributes that a description specifies: bit i for the i-th.
ATTRIBUTE_BITS = tuple(sum(1 << i for i, value in enumerate(d) if value) for d in DESCRIPTIONS)


# The 16 descriptions that match an object, by its attributes (size, color, material, shape).
MATCHING_DESCRIPTIONS = {
    values: tuple(_INDEX[d] for d in product(*((None, value) for value in values)))
    for values in product(*ATTRIBUTES.values())
}


def descriptions_conflict(first: int, second: int) -> bool:
    """Whether two descriptions differ so much that "the other …" would not suit the second.

    "Thing" counts as a shape, as in the released questions.
    """
    *words, shape = DESCRIPTIONS[first]
    *other_words, other_shape = DESCRIPTIONS[second]
    return shape != other_shape or any(
        a and b and a != b for a, b in zip(words, other_words, strict=True)
    )


def _with_synonyms(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(" ".join(chosen) for chosen in product(*(SYNONYMS.get(w, (w,)) for w in words)))


# All equally likely phrases for what fills a slot.
NOUN_PHRASES = tuple(
    _with_synonyms([*filter(None, d[:-1]), d[-1] or "thing"]) for d in DESCRIPTIONS
)
PLURAL_NOUN_PHRASES = tuple(tuple(f"{noun}s" for noun in nouns) for nouns in NOUN_PHRASES)
RELATION_PHRASES = tuple(_with_synonyms([relation]) for relation in RELATIONS)


# --- families --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TemplateNode:
    """A node of a program template, which expands to one or more released functions."""

    function: str
    """A released function, or a combination such as "relate_filter_unique"."""
    final_function: str
    """The last function of a combination: "unique", "count", "exist" or nothing."""
    inputs: tuple[int, ...]
    slots: tuple[str, ...]
    """Slots to fill: (), ("A",), ("R",) or ("R", "A")."""
    has_relation: bool
    """Whether the node goes from one object to related ones, instead of filtering a set."""
    forbidden: int
    """Bitmask of the attributes that the description in its slot must not specify."""
    differs_from: int | None
    """An earlier node whose output must differ from the output of this node."""
    live_nodes: tuple[int, ...]
    """Earlier nodes whose outputs are still used, by this node or later ones."""


class TextPattern(NamedTuple):
    """A %-format of a question, with the slots that fill it ("A", "As", "R", …)."""

    pattern: str
    slots: tuple[str, ...]
    without_other: str
    """The pattern without "other", for descriptions A and B that conflict."""


@dataclass(frozen=True, slots=True)
class QuestionFamily:
    """A question family: a program template and its texts."""

    number: int
    """Index in the released order."""
    group: str
    """The file that it is in, one of `GROUPS`."""
    nodes: tuple[TemplateNode, ...]
    relations: tuple[int, ...]
    """The two nodes, if any, that are a relation alone; neither may be redundant."""
    texts: tuple[tuple[TextPattern, ...], ...]
    """Equally likely texts, each with equally likely patterns: with and without optional words."""
    outputs: tuple[Output, ...]
    """All possible outputs of this family's programs."""

    @property
    def answers(self) -> tuple[str, ...]:
        """All possible answers to questions of this family."""
        return tuple(map(to_answer, self.outputs))


def final_function(function: str) -> str:
    """The last function of a combination, unless it is a filter or a relation."""
    last = function.rpartition("_")[2]
    return last if last in ("unique", "count", "exist") else ""


def _read_nodes(template: Mapping[str, Any]) -> tuple[TemplateNode, ...]:
    words = [node.split() for node in template["nodes"].split(", ")]
    distinct = template.get("distinct", [])
    inputs: list[tuple[int, ...]] = []
    stack: list[int] = []
    for i, (function, *_) in enumerate(words):
        first = len(stack) - arity(function)
        inputs.append(tuple(stack[first:]))
        stack[first:] = [i]
    # Whether a relation alone is redundant is tested once the question is complete.
    tested_at_the_end = {i for i, (function, *_) in enumerate(words) if function == "relate"}
    nodes = []
    for i, (function, *slots) in enumerate(words):
        used = {j for later in inputs[i:] for j in later} | tested_at_the_end
        if distinct and i <= max(distinct):
            used.add(min(distinct))
        forbidden = template.get("forbidden", {}).get(slots[-1], []) if slots else []
        nodes.append(
            TemplateNode(
                function=function,
                final_function=final_function(function),
                inputs=inputs[i],
                slots=tuple(slots),
                has_relation=function.startswith("relate"),
                forbidden=sum(1 << list(ATTRIBUTES).index(name) for name in forbidden),
                differs_from=min(distinct) if distinct and i == max(distinct) else None,
                live_nodes=tuple(sorted(j for j in used if j < i)),
            )
        )
    return tuple(nodes)


def _expansions(text: str, pattern: str, alternatives: str) -> list[str]:
    """Replace each match by each of its alternatives: all combinations."""
    found = re.search(pattern, text)
    if not found:
        return [text]
    return [
        expanded
        for choice in found.expand(alternatives).split("|")
        for expanded in _expansions(
            text[: found.start()] + choice + text[found.end() :], pattern, alternatives
        )
    ]


def _read_text(text: str) -> list[tuple[TextPattern, ...]]:
    return [
        tuple(map(_read_pattern, _expansions(alternative, r"\[([^]]*)\] ", r"\1 |")))
        for alternative in _expansions(text, r"\(([^)]*)\)", r"\1")
    ]


def _read_pattern(text: str) -> TextPattern:
    slots = tuple(slot.replace(">", "") for slot in re.findall(r"<(\w>s?)", text))
    pattern = without_other = re.sub(r"<\w>s?", "%s", text)
    if {slot[0] for slot in slots} == {"A", "B"}:
        without_other = pattern.replace(" other ", " ").replace(" another ", " a ")
    return TextPattern(pattern, slots, without_other)


def _read_families() -> Iterable[QuestionFamily]:
    folder = files("macnet.clevr").joinpath("templates")
    contents = ((name, json.loads(folder.joinpath(f"{name}.json").read_text())) for name in GROUPS)
    templates = ((group, template) for group, content in contents for template in content)
    for index, (group, template) in enumerate(templates):
        nodes = _read_nodes(template)
        texts = tuple(phrases for text in template["texts"] for phrases in _read_text(text))
        outputs = possible_outputs(nodes[-1].final_function or nodes[-1].function)
        relations = tuple(i for i, node in enumerate(nodes) if node.function == "relate")
        yield QuestionFamily(index, group, nodes, relations, texts, outputs)


QUESTION_FAMILIES = tuple(_read_families())


def families_of(groups: Collection[str]) -> tuple[QuestionFamily, ...]:
    """The families of these groups, in the released order; all of them if no group is given."""
    return tuple(family for family in QUESTION_FAMILIES if not groups or family.group in groups)
