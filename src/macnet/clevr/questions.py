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
from collections.abc import Iterator, Sequence
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
    Program,
    PresumptionError,
    execute,
    node,
    spoken,
)
from macnet.clevr.scene import RELATIONS, Scene

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
            balance = self._balances[family.index]
            search = Search(family, view, balance, self._rng)
            if search.fill(0):
                question = search.question()
                balance.add(question.answer)
                questions.append(question)
        return questions


def _draw(pool: list[T], rng: random.Random) -> T:
    """Take one out at random. Shuffling lazily pays: a search looks at few of its choices."""
    i = int(rng.random() * len(pool))
    pool[i], pool[-1] = pool[-1], pool[i]
    return pool.pop()


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


class Options(NamedTuple):
    pool: list[int]
    """The usual choices, and `_RARE` for each rare one that may be mixed in."""
    rare: list[int]


class View:
    """A scene as the search sees it: what each description fits, what each step may choose."""

    def __init__(self, scene: Scene) -> None:
        self.facts = Facts(scene)
        self.related = list(self.facts.related.values())
        self.matching = [0] * len(DESCRIPTIONS)  # description → the objects it fits
        for i, o in enumerate(scene.objects):
            for description in FITTING[o.size, o.color, o.material, o.shape]:
                self.matching[description] |= 1 << i
        # Many descriptions fit the same objects, and then allow the same choices.
        self.synonymous: dict[int, list[int]] = {}  # objects → the descriptions of just them
        for description, objects in enumerate(self.matching):
            if objects:
                self.synonymous.setdefault(objects, []).append(description)
        self._options: dict[tuple[str, Outcome], Options] = {}

    def options(self, step: Step, source: Outcome) -> Options:
        key = step.function, source
        if key not in self._options:
            self._options[key] = self._find_options(step, int(source))
        return self._options[key]

    def _find_options(self, step: Step, source: int) -> Options:
        match step.function.split("_"):
            case ["relate"]:
                return Options([r * _BASE + ANYTHING for r in range(len(RELATIONS))], [])
            case ["filter", "size" | "color" | "material" | "shape"]:
                lone = [i for i, f in enumerate(FILTERS) if [n for n, _ in f] == [step.function]]
                return Options(lone, [])
            case ["relate", *_]:
                return self._relations(source, step.concludes)
            case _:
                return self._filters(source, step.concludes)

    def _filters(self, source: int, concludes: str) -> Options:
        """Descriptions of `source`: those that fit something in the scene, and some at random.

        The random ones mostly fit nothing, so that "no" and "0" are not too rare.
        """
        fitting, single = [], []
        for objects, descriptions in self.synonymous.items():
            fitting += descriptions
            if (objects & source).bit_count() == 1:
                single += descriptions
        if concludes == "unique":
            return Options(single, [])
        if not concludes:
            fitting.remove(ANYTHING)  # an operand of `or` should say something
        extras = len(fitting) if concludes == "exist" else len(single)
        return Options(fitting + [_RARE] * extras, list(range(_BASE)))

    def _relations(self, source: int, concludes: str) -> Options:
        """Pairs of a relation to the object `source` and a description of what is found there."""
        telling: list[int] = []
        trivial: list[int] = []
        for r, related in enumerate(self.related):
            there = related[source]
            for objects, descriptions in self.synonymous.items():
                found = (objects & there).bit_count()
                if found == 1 if concludes == "unique" else found or concludes:
                    pairs = trivial if objects & there == objects else telling
                    pairs += [r * _BASE + description for description in descriptions]
        extras = round(len(telling) * TRIVIAL_SHARE / (1 - TRIVIAL_SHARE))
        return Options(telling + [_RARE] * min(extras, len(trivial)), trivial)


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
        state = (k, *[outcomes[i] for i in step.needed])
        if state in self._dead_ends:
            return False
        for choice, outcome in self._possibilities(step):
            if any(outcome == outcomes[i] for i in step.differs_from):
                continue
            self._choices[k], outcomes[k] = choice, outcome
            if self.fill(k + 1):
                return True
        self._dead_ends.add(state)
        return False

    def _possibilities(self, step: Step) -> Iterator[tuple[int, Outcome]]:
        """What can be chosen at a step, in random order, with the outcome it leads to."""
        facts = self._view.facts
        inputs = [self._outcomes[i] for i in step.inputs]
        if not step.slots:
            yield 0, OPERATIONS[step.function](facts, *inputs)
            return
        source = int(inputs[0])
        conclude = OPERATIONS[step.concludes] if step.concludes else None
        pool, rare = map(list, self._view.options(step, source))
        while pool:
            choice = _draw(pool, self._rng)
            if choice == _RARE:
                choice = _draw(rare, self._rng)
            relation, description = divmod(choice, _BASE)
            if GIVEN[description] & step.empty:
                continue
            there = self._view.related[relation][source] if step.relates else source
            found = there & self._view.matching[description]
            yield choice, conclude(facts, found) if conclude else found

    def _is_wanted(self) -> bool:
        if spoken(self._outcomes[-1]) not in self._balance.welcome:
            return False
        return not self._has_idle_relation()

    def _has_idle_relation(self) -> bool:
        """Would the answer be the same, were a relation left out? (Composite steps may be.)"""
        if not any(step.function == "relate" for step in self._steps):
            return False
        program = self._program()
        answer = spoken(self._outcomes[-1])
        for i, step in enumerate(program):
            if step["function"] == "relate":
                changed = [*program[:i], node("scene", [], []), *program[i + 1 :]]
                try:
                    if execute(changed, self._view.facts) == answer:
                        return True
                except PresumptionError:
                    pass
        return False

    # --- what was found ---

    def question(self) -> Question:
        program = self._program()
        answer = execute(program, self._view.facts)
        return Question(self._text(), answer, program, self._family.index)

    def _program(self) -> Program:
        program: Program = []
        ends: list[int] = []  # step → its last node
        for step, choice in zip(self._steps, self._choices, strict=True):
            inputs = [ends[i] for i in step.inputs]
            if not step.slots:
                program.append(node(step.function, inputs, []))
            else:
                relation, description = divmod(choice, _BASE)
                (end,) = inputs
                unfolded = [("relate", RELATIONS[relation])] if step.relates else []
                unfolded += FILTERS[description]
                for function, value in unfolded:
                    program.append(node(function, [end], [value]))
                    end = len(program) - 1
                if step.concludes:
                    program.append(node(step.concludes, [end], []))
                elif not unfolded:
                    # Nothing is asked of the objects here: the step is its input.
                    ends.append(end)
                    continue
            ends.append(len(program) - 1)
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
