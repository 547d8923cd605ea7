"""Generate questions about a scene: a depth-first search instantiates the template of a family.

A question of family 74, its answer and its program might be

    What size is the shiny ball that is to the left of the cyan metal thing?    large
    query_size unique filter_shape[sphere] filter_material[metal] relate[left] unique …

The slots of a template are filled node by node, with choices in random order, executing the program
so far, and backtracking where a description does not match exactly one object, a constraint is
violated, or the answer has been used too often. Answers are balanced so that a model cannot do well
from the question alone, without the image.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from macnet.clevr.families import (
    ATTRIBUTE_BITS,
    DESCRIPTIONS,
    EMPTY_DESCRIPTION,
    FILTERS,
    MATCHING_DESCRIPTIONS,
    NOUN_PHRASES,
    PLURAL_NOUN_PHRASES,
    QUESTION_FAMILIES,
    RELATION_PHRASES,
    QuestionFamily,
    TemplateNode,
    descriptions_conflict,
)
from macnet.clevr.program import (
    OPERATIONS,
    NotUniqueError,
    Output,
    Program,
    SceneIndex,
    execute,
    make_node,
    to_answer,
)
from macnet.clevr.scene import ATTRIBUTES, RELATIONS, Scene

T = TypeVar("T")

NUM_FAMILIES = len(QUESTION_FAMILIES)

# Answers are balanced over blocks of images, as in the release. Each block has its own
# `QuestionGenerator`, so that blocks can be generated independently and in any order.
IMAGES_PER_BLOCK = 250

# In "the cube left of the ball", the relation is redundant if there is only one cube. Such choices
# are a share of this size.
TRIVIAL_SHARE = 0.1


class Question(NamedTuple):
    """A question about a scene."""

    text: str
    answer: str
    program: Program
    """Functional program in the released schema, root last."""
    family: int
    """Released index of the question family, 0 to 89."""


class QuestionGenerator:
    """Generates questions about one scene after another, with balanced answers in every family."""

    def __init__(
        self, rng: random.Random, families: Sequence[QuestionFamily] = QUESTION_FAMILIES
    ) -> None:
        self._rng, self._families = rng, families
        self._balances = {family.number: AnswerBalance(family.answers) for family in families}

    def generate(self, scene: Scene, count: int = 10) -> list[Question]:
        """Questions of `count` different families; of fewer only if no more fit the scene."""
        choices = SceneChoices(scene)
        untried = list(self._families)
        questions: list[Question] = []
        while untried and len(questions) < count:
            family = _pop_random(untried, self._rng)
            balance = self._balances[family.number]
            search = TemplateSearch(family, choices, balance.allowed, self._rng)
            if search.fill(0):
                question = search.build_question()
                balance.add(question.answer)
                questions.append(question)
        return questions


def _pop_random(pool: list[T], rng: random.Random) -> T:
    """Remove and return a random item; cheaper than shuffling, as a search tries few choices."""
    i = int(rng.random() * len(pool))
    item, pool[i] = pool[i], pool[-1]
    pool.pop()
    return item


def _choose(choices: Sequence[T], rng: random.Random) -> T:
    return choices[int(rng.random() * len(choices))]


class AnswerBalance:
    """Counts the answers of a family; `allowed` are those that are not used too often yet."""

    def __init__(self, answers: tuple[str, ...]) -> None:
        self._counts = dict.fromkeys(answers, 0)
        self.allowed = set(answers)

    def add(self, answer: str) -> None:
        """Count the answer of a question."""
        self._counts[answer] += 1
        ranked = sorted(self._counts.values())
        second, median = ranked[-2], ranked[len(ranked) // 2]
        limit = min(1.1 * second, 5 * max(median, 5))
        self.allowed = {answer for answer, count in self._counts.items() if count <= limit}


# --- the choices of a node -------------------------------------------------------------------

# A choice fills the slots of a node: relation · 324 + description. Without a relation, it is 0.
_STRIDE = len(DESCRIPTIONS)
_RARE = -1  # placeholder for a choice that is sampled from the rare ones
_ALL_DESCRIPTIONS = list(range(_STRIDE))
# Nodes whose choices do not depend on the scene: a relation alone, or a value of one attribute.
_FIXED_CHOICES = {
    "relate": [relation * _STRIDE + EMPTY_DESCRIPTION for relation in range(len(RELATIONS))],
    **{
        f"filter_{name}": [d for d in _ALL_DESCRIPTIONS if ATTRIBUTE_BITS[d] == 1 << i]
        for i, name in enumerate(ATTRIBUTES)
    },
}


class Choices(NamedTuple):
    """The choices of a node, given the output of its input."""

    pool: list[int]
    """Common choices, and `_RARE` once for each rare choice that may be sampled."""
    rare: list[int]
    outputs: dict[int, Output]
    """Cached outputs of choices that were tried: many families begin alike."""


class SceneChoices:
    """The objects that each description matches in a scene, and the choices of nodes."""

    def __init__(self, scene: Scene) -> None:
        self.index = SceneIndex(scene)
        self.related = list(self.index.related.values())
        self.matching = [0] * len(DESCRIPTIONS)  # description → bitmask of the objects it matches
        for i, o in enumerate(scene.objects):
            for description in MATCHING_DESCRIPTIONS[o.size, o.color, o.material, o.shape]:
                self.matching[description] |= 1 << i
        # Descriptions of the same objects are interchangeable, so they are grouped by the objects.
        # For each relation: the choices that combine it with a description of these objects.
        by_objects: dict[int, list[int]] = {}
        for description, objects in enumerate(self.matching):
            if objects:
                by_objects.setdefault(objects, []).append(description)
        self._by_objects = [
            [(objects, [r * _STRIDE + d for d in by_objects[objects]]) for objects in by_objects]
            for r in range(len(RELATIONS))
        ]
        self._choices_of: dict[tuple[str, Output], Choices] = {}

    def for_node(self, node: TemplateNode, source: Output) -> Choices:
        """The choices of a node whose first input has the output `source`."""
        key = node.function, source
        if key not in self._choices_of:
            if node.function in _FIXED_CHOICES:
                found = Choices(_FIXED_CHOICES[node.function], [], {})
            elif node.has_relation:
                found = self._relations_and_descriptions(int(source), node.final_function)
            else:
                found = self._descriptions(int(source), node.final_function)
            self._choices_of[key] = found
        return self._choices_of[key]

    def _descriptions(self, source: int, final_function: str) -> Choices:
        """Descriptions that match something in the scene, and a random sample of all others.

        Those mostly match nothing, so that the answers "no" and "0" are not rare.
        """
        common: list[int] = []
        single: list[int] = []
        for objects, descriptions in self._by_objects[0]:
            common += descriptions
            if (objects & source).bit_count() == 1:
                single += descriptions
        if final_function == "unique":
            return Choices(single, [], {})
        if not final_function:  # an operand of "or" must not be empty
            common = [description for description in common if description != EMPTY_DESCRIPTION]
        extras = len(common) if final_function == "exist" else len(single)
        return Choices(common + [_RARE] * extras, _ALL_DESCRIPTIONS, {})

    def _relations_and_descriptions(self, source: int, final_function: str) -> Choices:
        """Pairs of a relation to the object `source` and a description of the related objects."""
        informative: list[int] = []
        trivial: list[int] = []
        unique = final_function == "unique"
        for related, by_objects in zip(self.related, self._by_objects, strict=True):
            related_objects = related[source]
            for objects, pairs in by_objects:
                found = objects & related_objects
                if found == objects:  # the relation excludes none of them
                    if not unique or found.bit_count() == 1:
                        trivial += pairs
                elif found.bit_count() == 1 if unique else found or final_function:
                    informative += pairs
        extras = round(len(informative) * TRIVIAL_SHARE / (1 - TRIVIAL_SHARE))
        return Choices(informative + [_RARE] * min(extras, len(trivial)), trivial, {})


# --- the search ------------------------------------------------------------------------------


class TemplateSearch:
    """Searches for a question of a family that fits a scene and has an allowed answer."""

    def __init__(
        self, family: QuestionFamily, scene: SceneChoices, allowed: set[str], rng: random.Random
    ) -> None:
        self._family, self._nodes = family, family.nodes
        self._scene, self._allowed, self._rng = scene, allowed, rng
        self._outputs: list[Output] = [0] * len(family.nodes)
        self._choices = [0] * len(family.nodes)
        # What follows depends on the outputs of live nodes only, so each dead end is met once.
        self._dead_ends: set[tuple[Output, ...]] = set()

    def fill(self, k: int) -> bool:
        """Fill the slots of node k and of all nodes after it; false if that is impossible."""
        if k == len(self._nodes):
            return self._is_acceptable()
        node, outputs = self._nodes[k], self._outputs
        if not node.slots:
            outputs[k] = self._run_node(node, 0, outputs)
            return self.fill(k + 1)
        state = (k, *[outputs[i] for i in node.live_nodes])
        if state in self._dead_ends:
            return False
        failed: set[Output | tuple[Output, int]] = set()
        if node.differs_from is not None:
            failed.add(outputs[node.differs_from])
        pool, rare, known = self._scene.for_node(node, outputs[node.inputs[0]])
        pool, rare = pool.copy(), rare.copy()
        while pool:
            choice = _pop_random(pool, self._rng)
            if choice == _RARE:
                choice = _pop_random(rare, self._rng)
            if node.forbidden and ATTRIBUTE_BITS[choice % _STRIDE] & node.forbidden:
                continue
            output = known.get(choice)
            if output is None:
                output = known[choice] = self._run_node(node, choice, outputs)
            # Choices with the same output fail together; but the final test for redundant relations
            # depends on the choices too: there, they must also match the same objects.
            effect: Output | tuple[Output, int] = output
            if self._family.relations:
                effect = (output, self._scene.matching[choice % _STRIDE])
            if output in failed or effect in failed:
                continue
            self._choices[k], outputs[k] = choice, output
            if self.fill(k + 1):
                return True
            failed.add(effect)
        self._dead_ends.add(state)
        return False

    def _run_node(self, node: TemplateNode, choice: int, outputs: list[Output]) -> Output:
        """Output of a node with its slots filled, given the outputs of the nodes before it."""
        index = self._scene.index
        if not node.slots:
            return OPERATIONS[node.function](index, *[outputs[i] for i in node.inputs])
        objects = int(outputs[node.inputs[0]])
        relation, description = divmod(choice, _STRIDE)
        if node.has_relation:
            objects = self._scene.related[relation][objects]
        objects &= self._scene.matching[description]
        return OPERATIONS[node.final_function](index, objects) if node.final_function else objects

    def _is_acceptable(self) -> bool:
        if to_answer(self._outputs[-1]) not in self._allowed:
            return False
        return not any(self._is_redundant(k) for k in self._family.relations)

    def _is_redundant(self, k: int) -> bool:
        """Whether the answer stays the same if node k, a relation, outputs all objects."""
        outputs = self._outputs.copy()
        outputs[k] = self._scene.index.all_objects
        try:
            for later in self._nodes[k].dependents:
                node, choice = self._nodes[later], self._choices[later]
                outputs[later] = self._run_node(node, choice, outputs)
        except NotUniqueError:
            return False
        return outputs[-1] == self._outputs[-1]

    def build_question(self) -> Question:
        """The question that was found, once `fill(0)` has succeeded."""
        program = self._program()
        answer = execute(program, self._scene.index)
        return Question(self._text(), answer, program, self._family.number)

    def _program(self) -> Program:
        program: Program = []
        ends: list[int] = []  # template node → index of its last function in the program
        for node, choice in zip(self._nodes, self._choices, strict=True):
            inputs = [ends[i] for i in node.inputs]
            for function, *values in _functions(node, choice):
                program.append(make_node(function, inputs, values))
                inputs = [len(program) - 1]
            ends += inputs
        return program

    def _text(self) -> str:
        phrases: dict[str, tuple[str, ...]] = {}  # slot → all phrases for what fills it
        chosen: list[int] = []
        for node, choice in zip(self._nodes, self._choices, strict=True):
            relation, description = divmod(choice, _STRIDE)
            for slot in node.slots:
                if slot in "RST":
                    phrases[slot] = RELATION_PHRASES[relation]
                else:
                    phrases[slot] = NOUN_PHRASES[description]
                    phrases[slot + "s"] = PLURAL_NOUN_PHRASES[description]
                    chosen.append(description)
        rng = self._rng
        text = _choose(_choose(self._family.texts, rng), rng)
        pattern = text.pattern
        if pattern != text.without_other and descriptions_conflict(*chosen):
            pattern = text.without_other
        return pattern % tuple([_choose(phrases[slot], rng) for slot in text.slots])


def _functions(node: TemplateNode, choice: int) -> list[tuple[str, ...]]:
    """The released functions, with their values, that a template node expands to."""
    if not node.slots:
        return [(node.function,)]
    relation, description = divmod(choice, _STRIDE)
    relate = [("relate", RELATIONS[relation])] if node.has_relation else []
    final = [(node.final_function,)] if node.final_function else []
    return [*relate, *FILTERS[description], *final]
