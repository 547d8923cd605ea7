"""The 90 question families, read from `templates/`: what they ask, and in which words.

A family is a chain of steps with slots and the texts that say it. The steps stand in postfix
order, each taking its inputs off a stack. Of "What size is the cube left of the ball?":

    "steps": "scene, filter_unique A, relate_filter_unique R B, query_size"
    "empty": {"B": ["size"]}                                 (or the question answers itself)
    "texts": ["What size is the <B> [that is] <R> the <A>?", …]

Slots A–D hold descriptions ("big red cube"), R–T relations ("left of").
`differ` names two steps, counted from 0, whose outcomes must not be the same. In a text,
(this|that) are different texts, [this] is said half of the time, and <A>s is a plural.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from itertools import product
from typing import Any, NamedTuple

from macnet.clevr.program import arity, possible_answers
from macnet.clevr.scene import ATTRIBUTES, RELATIONS

# In the released order: a family's index runs through the files, from 0 to 89.
FILES = (
    "compare_integer",
    "comparison",
    "three_hop",
    "single_and",
    "same_relate",
    "single_or",
    "one_hop",
    "two_hop",
    "zero_hop",
)

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

# A description gives each attribute a value or leaves it out; "thing" stands for no shape. There
# are 3 · 9 · 3 · 4 = 324 of them, and everywhere else a description is its index in this list.
DESCRIPTIONS = tuple(product(*((None, *values) for values in ATTRIBUTES.values())))
ANYTHING = 0  # the description that leaves out everything
_INDEX = {description: i for i, description in enumerate(DESCRIPTIONS)}

# For each description: the filters that select what it describes, in the released order …
FILTERS = tuple(
    [(f"filter_{name}", value) for name, value in zip(ATTRIBUTES, d, strict=True) if value]
    for d in DESCRIPTIONS
)
# … and which attributes it gives: bit i for the i-th.
GIVEN = tuple(sum(1 << i for i, value in enumerate(d) if value) for d in DESCRIPTIONS)


def _fitting(size: str, color: str, material: str, shape: str) -> tuple[int, ...]:
    """The 16 descriptions that an object with these attributes fits."""
    values = product((None, size), (None, color), (None, material), (None, shape))
    return tuple(_INDEX[description] for description in values)


FITTING = {values: _fitting(*values) for values in product(*ATTRIBUTES.values())}


def clash(first: int, second: int) -> bool:
    """Do two descriptions differ so that "the other …" would be a strange way to say the second?

    Saying "thing" counts as naming a shape, as in the released questions.
    """
    *words, shape = DESCRIPTIONS[first]
    *other_words, other_shape = DESCRIPTIONS[second]
    return shape != other_shape or any(
        a and b and a != b for a, b in zip(words, other_words, strict=True)
    )


def _ways_to_say(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(" ".join(said) for said in product(*(SYNONYMS.get(w, (w,)) for w in words)))


# All ways to say what fills a slot, each as likely as any other.
NOUN_PHRASES = tuple(_ways_to_say([*filter(None, d[:-1]), d[-1] or "thing"]) for d in DESCRIPTIONS)
PLURAL_NOUN_PHRASES = tuple(tuple(f"{said}s" for said in ways) for ways in NOUN_PHRASES)
RELATION_PHRASES = tuple(_ways_to_say([relation]) for relation in RELATIONS)


# --- families --------------------------------------------------------------------------------


class Step(NamedTuple):
    function: str
    """As in the templates: a released function, or what a description unfolds into several."""
    concludes: str
    """What ends the unfolded step: "unique", "count", "exist" or nothing."""
    inputs: tuple[int, ...]
    slots: tuple[str, ...]
    """The names of what is chosen here: (), ("A",), ("R",) or ("R", "A")."""
    relates: bool
    """Does it look from one object towards others, rather than narrow a set of objects?"""
    empty: int
    """The attributes that the description chosen here must leave out, as bits."""
    differs_from: int | None
    """An earlier step whose outcome this step's may not equal."""
    needed: tuple[int, ...]
    """Earlier steps whose outcomes still matter, here or later."""
    followers: tuple[int, ...]
    """Later steps that build on this one's outcome, directly or not."""


class Phrase(NamedTuple):
    """One thing to say: `pattern` with a filling for each of its slots ("A", "As", "R", …)."""

    pattern: str
    slots: tuple[str, ...]
    without_other: str
    """Of a text about "the other …", what to say where the descriptions A and B clash anyway."""


class Family(NamedTuple):
    number: int
    """Its place in the released order."""
    steps: tuple[Step, ...]
    relations: tuple[int, ...]
    """Steps that are a relation on its own: it must matter to the answer."""
    texts: tuple[tuple[Phrase, ...], ...]
    """Texts are equally likely, and so are a text's phrases: with and without optional words."""
    answers: tuple[str, ...]
    """All that a question of this family might be answered."""


def _read_steps(template: Mapping[str, Any]) -> tuple[Step, ...]:
    words = [step.split() for step in template["steps"].split(", ")]
    clashes = template.get("differ", [])
    inputs: list[tuple[int, ...]] = []
    stack: list[int] = []
    for i, (function, *_) in enumerate(words):
        wanted = arity(function)
        inputs.append(tuple(stack[len(stack) - wanted :]))
        stack[len(stack) - wanted :] = [i]
    # Whether a relation on its own matters to the answer is tested once the question is whole.
    tested_at_the_end = {i for i, (function, *_) in enumerate(words) if function == "relate"}
    followers: list[tuple[int, ...]] = [()] * len(words)
    for i in reversed(range(len(words))):
        for j in inputs[i]:  # a tree: each step is the input of one other at most
            followers[j] = (i, *followers[i])
    steps = []
    for i, (function, *slots) in enumerate(words):
        conclusion = function.rpartition("_")[2]
        used = {j for later in inputs[i:] for j in later} | tested_at_the_end
        if clashes and i <= max(clashes):
            used.add(min(clashes))
        empty = template.get("empty", {}).get(slots[-1], []) if slots else []
        steps.append(
            Step(
                function=function,
                concludes=conclusion if conclusion in ("unique", "count", "exist") else "",
                inputs=inputs[i],
                slots=tuple(slots),
                relates=function.startswith("relate"),
                empty=sum(1 << list(ATTRIBUTES).index(name) for name in empty),
                differs_from=min(clashes) if clashes and i == max(clashes) else None,
                needed=tuple(sorted(j for j in used if j < i)),
                followers=followers[i],
            )
        )
    return tuple(steps)


def _expansions(text: str, pattern: str, alternatives: str) -> list[str]:
    """Replace the first match by each of its alternatives, and go on until there is none."""
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


def _read_text(text: str) -> list[tuple[Phrase, ...]]:
    return [
        tuple(map(_read_phrase, _expansions(alternative, r"\[([^]]*)\] ", r"\1 |")))
        for alternative in _expansions(text, r"\(([^)]*)\)", r"\1")
    ]


def _read_phrase(phrase: str) -> Phrase:
    slots = tuple(slot.replace(">", "") for slot in re.findall(r"<(\w>s?)", phrase))
    pattern = re.sub(r"<\w>s?", "%s", phrase)
    if {slot[0] for slot in slots} == {"A", "B"}:
        without_other = pattern.replace(" other ", " ").replace(" another ", " a ")
    else:
        without_other = pattern
    return Phrase(pattern, slots, without_other)


def _read_families() -> Iterable[Family]:
    templates = [
        template
        for name in FILES
        for template in json.loads(
            files("macnet.clevr").joinpath(f"templates/{name}.json").read_text()
        )
    ]
    for index, template in enumerate(templates):
        steps = _read_steps(template)
        texts = tuple(phrases for text in template["texts"] for phrases in _read_text(text))
        answers = possible_answers(steps[-1].concludes or steps[-1].function)
        relations = tuple(i for i, step in enumerate(steps) if step.function == "relate")
        yield Family(index, steps, relations, texts, answers)


CATALOGUE = tuple(_read_families())
