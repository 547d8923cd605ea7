"""Generate questions about a scene, with balanced answers.

A question of family 74, its answer and its program might be

    What size is the shiny ball that is to the left of the cyan metal thing?    large
    query_size unique filter_shape[sphere] filter_material[metal] relate[left] unique …

A search fills the slots of the family's template (`search.py`); what it finds is worded at random.
Answers are balanced so that a model cannot do well from the question alone, without the image.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from macnet.clevr.choices import Choice, SceneChoices
from macnet.clevr.families import (
    FILTERS,
    NOUN_PHRASES,
    PLURAL_NOUN_PHRASES,
    QUESTION_FAMILIES,
    RELATION_PHRASES,
    QuestionFamily,
    descriptions_conflict,
    final_function,
)
from macnet.clevr.program import Output, Program, SceneIndex, to_answer
from macnet.clevr.scene import RELATIONS, Scene
from macnet.clevr.search import TemplateSearch, pop_random

NUM_FAMILIES = len(QUESTION_FAMILIES)

# Answers are balanced over blocks of images, as in the release. Each block has its own
# `QuestionGenerator`, so that blocks can be generated independently and in any order.
IMAGES_PER_BLOCK = 250


class Question(NamedTuple):
    """A question about a scene."""

    text: str
    answer: str
    program: Program
    """Functional program in the released schema, root last."""
    family: int
    """Released index of the question family, 0 to 89."""


class TemplateInstance(NamedTuple):
    """A question before it is written out: a family, and what fills the slots of its template.

    A training set needs neither text nor program, but their tokens, which are found faster from
    this than from a `Question`.
    """

    family: int
    """Released index of the question family, 0 to 89."""
    choices: list[Choice]
    """What fills the slots of each template node."""
    output: Output
    """The output of the program's last function."""
    pattern: str
    """%-format of the text."""
    phrases: tuple[str, ...]
    """The phrases that fill the pattern."""
    scene: SceneIndex
    """The scene that it is about."""

    @property
    def text(self) -> str:
        """The question in words."""
        return self.pattern % self.phrases

    @property
    def answer(self) -> str:
        """The answer, as the release writes it."""
        return to_answer(self.output)

    @property
    def program(self) -> Program:
        """The functional program in the released schema, root last."""
        program: Program = []
        stack: list[int] = []  # the nodes are in postfix order: each takes its inputs from here
        for node, choice in zip(QUESTION_FAMILIES[self.family].nodes, self.choices, strict=True):
            first = len(stack) - len(node.inputs)
            inputs = stack[first:]
            for function, values in node_functions(node.function, choice):
                program.append({"function": function, "inputs": inputs, "value_inputs": [*values]})
                inputs = [len(program) - 1]
            stack[first:] = inputs
        return program

    def to_question(self) -> Question:
        """The question, written out."""
        return Question(self.text, self.answer, self.program, self.family)


@cache  # looked up for every node of every question; there are some 10,000 of them
def node_functions(function: str, choice: Choice) -> list[tuple[str, tuple[str, ...]]]:
    """The released functions, each with its values, that a template node expands to."""
    if not function.startswith(("filter", "relate")):
        return [(function, ())]
    relation, description = choice
    relate = [("relate", (RELATIONS[relation],))] if function.startswith("relate") else []
    filters = [(name, (value,)) for name, value in FILTERS[description]]
    final = final_function(function)
    return [*relate, *filters, *([(final, ())] if final else [])]


class QuestionGenerator:
    """Generates questions about one scene after another, with balanced answers in every family."""

    def __init__(
        self, rng: random.Random, families: Sequence[QuestionFamily] = QUESTION_FAMILIES
    ) -> None:
        self._rng, self._families = rng, families
        self._balances = {family.number: AnswerBalance(family.outputs) for family in families}

    def generate(self, scene: Scene, count: int = 10) -> list[Question]:
        """Questions of `count` different families; of fewer only if no more fit the scene."""
        return [found.to_question() for found in self.instantiate(SceneIndex(scene), count)]

    def instantiate(self, scene: SceneIndex, count: int = 10) -> list[TemplateInstance]:
        """The questions of `generate`, not written out."""
        choices = SceneChoices(scene)
        untried = list(self._families)
        found: list[TemplateInstance] = []
        while untried and len(found) < count:
            family = pop_random(untried, self._rng)
            balance = self._balances[family.number]
            search = TemplateSearch(family, choices, balance.allowed, self._rng)
            if search.fill():
                balance.add(search.outputs[-1])
                found.append(_word(family, search, scene, self._rng))
        return found


class AnswerBalance:
    """Counts the answers of a family; `allowed` are those that are not used too often yet."""

    def __init__(self, answers: Iterable[Output]) -> None:
        self._counts = dict.fromkeys(answers, 0)
        self.allowed = set(self._counts)

    def add(self, answer: Output) -> None:
        """Count the answer of a question."""
        self._counts[answer] += 1
        ranked = sorted(self._counts.values())
        second, median = ranked[-2], ranked[len(ranked) // 2]
        limit = min(1.1 * second, 5 * max(median, 5))
        self.allowed = {answer for answer, count in self._counts.items() if count <= limit}


# --- wording ---------------------------------------------------------------------------------

SlotPhrases = tuple[int, int, tuple[tuple[str, ...], ...]]
"""Where the phrases for a slot come from: the node that has the slot, the part of its choice (0 for
the relation, 1 for the description), and all equally likely phrases for each value of that."""


class Wording(NamedTuple):
    """A text pattern of a family, with the phrases for its slots."""

    pattern: str
    without_other: str
    slots: list[SlotPhrases]


def _wordings(family: QuestionFamily) -> list[list[Wording]]:
    slots: dict[str, SlotPhrases] = {}
    for k, node in enumerate(family.nodes):
        for slot in node.slots:
            if slot in "RST":
                slots[slot] = k, 0, RELATION_PHRASES
            else:
                slots[slot] = k, 1, NOUN_PHRASES
                slots[f"{slot}s"] = k, 1, PLURAL_NOUN_PHRASES
    return [
        [Wording(t.pattern, t.without_other, [slots[slot] for slot in t.slots]) for t in text]
        for text in family.texts
    ]


_WORDINGS = tuple(map(_wordings, QUESTION_FAMILIES))


def _word(
    family: QuestionFamily, found: TemplateSearch, scene: SceneIndex, rng: random.Random
) -> TemplateInstance:
    """Choose among the texts of a family, and among the phrases for what fills its slots."""
    draw, choices, output = rng.random, found.choices, found.outputs[-1]
    texts = _WORDINGS[family.number]
    wordings = texts[int(draw() * len(texts))]
    pattern, without_other, slots = wordings[int(draw() * len(wordings))]
    if pattern != without_other:
        described = (choices[k][1] for k, node in enumerate(family.nodes) if node.slots)
        if descriptions_conflict(*described):
            pattern = without_other
    phrases = []
    for k, part, phrases_of in slots:
        alternatives = phrases_of[choices[k][part]]
        phrases.append(alternatives[int(draw() * len(alternatives))])
    return TemplateInstance(family.number, choices, output, pattern, tuple(phrases), scene)
