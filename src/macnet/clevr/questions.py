"""Questions about a scene: ten families an image, each made to fit by a depth-first search.

Of family 74, a question, its answer and its program might be

    What size is the shiny ball that is to the left of the cyan metal thing?    large
    query_size unique filter_shape[sphere] filter_material[metal] relate[left] unique …

A family's slots are filled step by step in random order of choice, running the program so far,
and turning back where a description fits no object or several, where a constraint is broken, or
where the answer has been given too often. Whoever hears only the question and never sees the
picture should not do well: that is what the counters of given answers are for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from macnet.clevr.families import (
    ANYTHING,
    CATALOGUE,
    DESCRIPTIONS,
    FILTERS,
    FITTING,
    GIVEN,
    NOUN_PHRASES,
    PLURAL_NOUN_PHRASES,
    RELATION_PHRASES,
    Family,
    Step,
    clash,
)
from macnet.clevr.program import (
    OPERATIONS,
    Facts,
    Outcome,
    PresumptionError,
    Program,
    execute,
    node,
    spoken,
)
from macnet.clevr.scene import ATTRIBUTES, RELATIONS, Scene

T = TypeVar("T")

FAMILIES = len(CATALOGUE)

# Images for which one `Asker` should ask, as in the release: answers are balanced over so many,
# and a new one starts from nothing, so that blocks of images can be made apart and in any order.
BLOCK = 250

# "The cube left of the ball", where there is only one cube, can be found without the relation;
# such choices are kept, but only as this share of all.
TRIVIAL_SHARE = 0.1


class Question(NamedTuple):
    text: str
    answer: str
    program: Program
    """In the released schema, root last."""
    family: int
    """The released index, 0 to 89."""


class Asker:
    """Asks about one scene after another, and keeps the answers of every family in balance."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._balances = [Balance(family.answers) for family in CATALOGUE]

    def ask(self, scene: Scene, count: int = 10) -> list[Question]:
        """Ask from `count` different families; from fewer only if no more fit the scene."""
        view = View(scene)
        untried = list(CATALOGUE)
        questions: list[Question] = []
        while untried and len(questions) < count:
            family = _draw(untried, self._rng)
            balance = self._balances[family.number]
            search = Search(family, view, balance, self._rng)
            if search.fill(0):
                question = search.question()
                balance.add(question.answer)
                questions.append(question)
        return questions


def _draw(pool: list[T], rng: random.Random) -> T:
    """Take one out at random. Shuffling lazily pays: a search looks at few of its choices."""
    i = int(rng.random() * len(pool))
    drawn, pool[i] = pool[i], pool[-1]
    pool.pop()
    return drawn


def _pick(choices: Sequence[T], rng: random.Random) -> T:
    return choices[int(rng.random() * len(choices))]


class Balance:
    """How often a family has been answered how, and which answers are still welcome."""

    def __init__(self, answers: tuple[str, ...]) -> None:
        self._counts = dict.fromkeys(answers, 0)
        self.welcome = set(answers)

    def add(self, answer: str) -> None:
        self._counts[answer] += 1
        ranked = sorted(self._counts.values())
        second, median = ranked[-2], ranked[len(ranked) // 2]
        limit = min(1.1 * second, 5 * max(median, 5))
        self.welcome = {answer for answer, count in self._counts.items() if count <= limit}


# --- what there is to choose from ------------------------------------------------------------

# A choice fills a step's slots: relation · 324 + description. Relation 0 also stands for none.
_BASE = len(DESCRIPTIONS)
_RARE = -1  # stands for a choice yet to be drawn from the rare ones
_ALL_DESCRIPTIONS = list(range(_BASE))
# The steps that always offer the same: a bare relation, and a bare value of one attribute.
_FIXED_CHOICES = {
    "relate": [relation * _BASE + ANYTHING for relation in range(len(RELATIONS))],
    **{
        f"filter_{name}": [d for d in _ALL_DESCRIPTIONS if GIVEN[d] == 1 << i]
        for i, name in enumerate(ATTRIBUTES)
    },
}


class Options(NamedTuple):
    pool: list[int]
    """The usual choices, and `_RARE` for each rare one that may be mixed in."""
    rare: list[int]
    outcomes: dict[int, Outcome]
    """What choices that were tried lead to: many families begin alike."""


class View:
    """A scene as the search sees it: what each description fits, what each step may choose."""

    def __init__(self, scene: Scene) -> None:
        self.facts = Facts(scene)
        self.related = list(self.facts.related.values())
        self.matching = [0] * len(DESCRIPTIONS)  # description → the objects it fits
        for i, o in enumerate(scene.objects):
            for description in FITTING[o.size, o.color, o.material, o.shape]:
                self.matching[description] |= 1 << i
        # Many descriptions fit the same objects, and what one of them allows, all do. For each
        # relation: the choices that pair it with a description of just these objects.
        alike: dict[int, list[int]] = {}
        for description, objects in enumerate(self.matching):
            if objects:
                alike.setdefault(objects, []).append(description)
        self._alike = [
            [(objects, [r * _BASE + d for d in alike[objects]]) for objects in alike]
            for r in range(len(RELATIONS))
        ]
        self._options: dict[tuple[str, Outcome], Options] = {}

    def options(self, step: Step, source: Outcome) -> Options:
        """What a step may choose, after an input with this outcome."""
        key = step.function, source
        if key not in self._options:
            if step.function in _FIXED_CHOICES:
                found = Options(_FIXED_CHOICES[step.function], [], {})
            elif step.relates:
                found = self._relations_and_descriptions(int(source), step.concludes)
            else:
                found = self._descriptions(int(source), step.concludes)
            self._options[key] = found
        return self._options[key]

    def _descriptions(self, source: int, concludes: str) -> Options:
        """Descriptions that fit something in the scene, and of the others some at random.

        Those mostly fit nothing, so that "no" and "0" are no rare answers.
        """
        usual: list[int] = []
        single: list[int] = []
        for objects, descriptions in self._alike[0]:
            usual += descriptions
            if (objects & source).bit_count() == 1:
                single += descriptions
        if concludes == "unique":
            return Options(single, [], {})
        if not concludes:  # an operand of "or" should say something
            usual = [description for description in usual if description != ANYTHING]
        extras = len(usual) if concludes == "exist" else len(single)
        return Options(usual + [_RARE] * extras, _ALL_DESCRIPTIONS, {})

    def _relations_and_descriptions(self, source: int, concludes: str) -> Options:
        """Pairs of a relation to the object `source` and a description of what is found there."""
        telling: list[int] = []
        trivial: list[int] = []
        for related, alike in zip(self.related, self._alike, strict=True):
            there = related[source]
            for objects, pairs in alike:
                found = objects & there
                if found == objects:  # none of them is elsewhere
                    if concludes != "unique" or found.bit_count() == 1:
                        trivial += pairs
                elif found.bit_count() == 1 if concludes == "unique" else found or concludes:
                    telling += pairs
        extras = round(len(telling) * TRIVIAL_SHARE / (1 - TRIVIAL_SHARE))
        return Options(telling + [_RARE] * min(extras, len(trivial)), trivial, {})


# --- the search ------------------------------------------------------------------------------


class Search:
    """Looks for one question of a family that a scene can answer and whose answer is welcome."""

    def __init__(self, family: Family, view: View, balance: Balance, rng: random.Random) -> None:
        self._family, self._steps = family, family.steps
        self._view, self._balance, self._rng = view, balance, rng
        self._outcomes: list[Outcome] = [0] * len(family.steps)
        self._choices = [0] * len(family.steps)
        # What may follow depends on the outcomes still needed only, so a dead end is met once.
        self._dead_ends: set[tuple[Outcome, ...]] = set()

    def fill(self, k: int) -> bool:
        """Fill the slots of step k and of all after it."""
        if k == len(self._steps):
            return self._is_wanted()
        step, outcomes = self._steps[k], self._outcomes
        if not step.slots:
            outcomes[k] = self._outcome(step, 0, outcomes)
            return self.fill(k + 1)
        state = (k, *[outcomes[i] for i in step.needed])
        if state in self._dead_ends:
            return False
        hopeless: set[Outcome | tuple[Outcome, int]] = set()
        if step.differs_from is not None:
            hopeless.add(outcomes[step.differs_from])
        pool, rare, known = self._view.options(step, outcomes[step.inputs[0]])
        pool, rare = pool.copy(), rare.copy()
        while pool:
            choice = _draw(pool, self._rng)
            if choice == _RARE:
                choice = _draw(rare, self._rng)
            if step.empty and GIVEN[choice % _BASE] & step.empty:
                continue
            outcome = known.get(choice)
            if outcome is None:
                outcome = known[choice] = self._outcome(step, choice, outcomes)
            # Choices with one outcome fare alike; but the test for idle relations, at the end,
            # looks at the choices again, and there they must also fit the same objects.
            fate: Outcome | tuple[Outcome, int] = outcome
            if self._family.relations:
                fate = (outcome, self._view.matching[choice % _BASE])
            if outcome in hopeless or fate in hopeless:
                continue
            self._choices[k], outcomes[k] = choice, outcome
            if self.fill(k + 1):
                return True
            hopeless.add(fate)
        self._dead_ends.add(state)
        return False

    def _outcome(self, step: Step, choice: int, outcomes: list[Outcome]) -> Outcome:
        """What a step leads to with its slots filled, after what came before it."""
        facts = self._view.facts
        if not step.slots:
            return OPERATIONS[step.function](facts, *[outcomes[i] for i in step.inputs])
        objects = int(outcomes[step.inputs[0]])
        relation, description = divmod(choice, _BASE)
        if step.relates:
            objects = self._view.related[relation][objects]
        objects &= self._view.matching[description]
        return OPERATIONS[step.concludes](facts, objects) if step.concludes else objects

    def _is_wanted(self) -> bool:
        if spoken(self._outcomes[-1]) not in self._balance.welcome:
            return False
        return not any(self._is_idle(k) for k in self._family.relations)

    def _is_idle(self, k: int) -> bool:
        """Would the answer be the same if step k, a relation, gave all objects there are?"""
        outcomes = self._outcomes.copy()
        outcomes[k] = self._view.facts.everything
        try:
            for later in self._steps[k].followers:
                step, choice = self._steps[later], self._choices[later]
                outcomes[later] = self._outcome(step, choice, outcomes)
        except PresumptionError:
            return False
        return outcomes[-1] == self._outcomes[-1]

    # --- what was found ---

    def question(self) -> Question:
        program = self._program()
        answer = execute(program, self._view.facts)
        return Question(self._text(), answer, program, self._family.number)

    def _program(self) -> Program:
        program: Program = []
        ends: list[int] = []  # step → its last node; of a step that asks nothing, its input's
        for step, choice in zip(self._steps, self._choices, strict=True):
            inputs = [ends[i] for i in step.inputs]
            for function, *values in _unfold(step, choice):
                program.append(node(function, inputs, values))
                inputs = [len(program) - 1]
            ends += inputs
        return program

    def _text(self) -> str:
        ways: dict[str, tuple[str, ...]] = {}  # slot → all ways to say what fills it
        chosen: list[int] = []
        for step, choice in zip(self._steps, self._choices, strict=True):
            relation, description = divmod(choice, _BASE)
            for slot in step.slots:
                if slot in "RST":
                    ways[slot] = RELATION_PHRASES[relation]
                else:
                    ways[slot] = NOUN_PHRASES[description]
                    ways[slot + "s"] = PLURAL_NOUN_PHRASES[description]
                    chosen.append(description)
        rng = self._rng
        phrase = _pick(_pick(self._family.texts, rng), rng)
        pattern = phrase.pattern
        if pattern != phrase.without_other and clash(*chosen):
            pattern = phrase.without_other
        return pattern % tuple([_pick(ways[slot], rng) for slot in phrase.slots])


def _unfold(step: Step, choice: int) -> list[tuple[str, ...]]:
    """The released functions, with their values, that a step stands for."""
    if not step.slots:
        return [(step.function,)]
    relation, description = divmod(choice, _BASE)
    relate = [("relate", RELATIONS[relation])] if step.relates else []
    conclude = [(step.concludes,)] if step.concludes else []
    return [*relate, *FILTERS[description], *conclude]
