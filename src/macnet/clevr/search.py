"""The search for a question: the slots of a family's template are filled, node by node.

Choices are tried in random order, and the program so far is executed. The search backtracks where
a description does not match exactly one object, a constraint is violated, the answer has been used
too often, or a relation is redundant.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from macnet.clevr.choices import FINAL_OUTPUT, NO_CHOICE, Choice, Choices, SceneChoices
from macnet.clevr.families import ATTRIBUTE_BITS, QUESTION_FAMILIES, QuestionFamily, TemplateNode
from macnet.clevr.program import OPERATIONS, Output, SceneIndex

T = TypeVar("T")

# --- the steps of a search -------------------------------------------------------------------

Run = Callable[[SceneIndex, list[Any]], Output]
"""Computes the output of a node, given those of all nodes before it."""


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A template node with slots, and the nodes without slots that follow it."""

    k: int
    """Index of the node with slots."""
    node: TemplateNode
    source: int
    """Index of the node whose output this one filters or relates to."""
    final_output: Callable[[int], Output]
    """The output of the node for the objects that a choice selects."""
    followers: tuple[tuple[int, Run], ...]
    """The nodes that follow, up to the next one with slots."""
    is_last: bool
    """Whether there is no other node with slots."""
    live_outputs: Callable[[list[Output]], Any]
    """Selects the outputs that are used after this step."""


def _search_steps(family: QuestionFamily) -> tuple[SearchStep, ...]:
    nodes = family.nodes
    starts = [k for k, node in enumerate(nodes) if node.slots]
    ends = [*starts[1:], len(nodes)]
    return tuple(
        SearchStep(
            k,
            nodes[k],
            nodes[k].inputs[0],
            FINAL_OUTPUT[nodes[k].final_function],
            # (A node without inputs is "scene", whose output is known.)
            tuple((j, _run(nodes[j])) for j in range(k + 1, end) if nodes[j].inputs),
            is_last := end == len(nodes),
            itemgetter(-1) if is_last else itemgetter(*nodes[end].live_nodes),
        )
        for k, end in zip(starts, ends, strict=True)
    )


def _run(node: TemplateNode) -> Run:
    operation = OPERATIONS[node.function]
    if len(node.inputs) == 1:
        (i,) = node.inputs
        return lambda scene, outputs: operation(scene, outputs[i])
    i, j = node.inputs
    return lambda scene, outputs: operation(scene, outputs[i], outputs[j])


_SEARCH_STEPS = tuple(map(_search_steps, QUESTION_FAMILIES))


# --- the search ------------------------------------------------------------------------------


class TemplateSearch:
    """Searches for a question of a family that fits a scene and has an allowed answer."""

    def __init__(
        self, family: QuestionFamily, scene: SceneChoices, allowed: set[Output], rng: random.Random
    ) -> None:
        self._steps, self._relations = _SEARCH_STEPS[family.number], family.relations
        self._scene, self._allowed, self._rng = scene, allowed, rng
        self.outputs: list[Any] = [scene.index.all_objects] * len(family.nodes)
        """The output of each node; at first that of "scene"."""
        self.choices: list[Choice] = [NO_CHOICE] * len(family.nodes)
        """What fills the slots of each node."""
        # What follows depends on the live outputs of a step only, so each dead end is met once.
        self._dead_ends: set[tuple[int, Any]] = set()

    def fill(self, s: int = 0) -> bool:
        """Fill the slots of step s and of all steps after it; false if that is impossible."""
        step, scene, outputs, rng = self._steps[s], self._scene, self.outputs, self._rng
        k, node, final_output, is_last = step.k, step.node, step.final_output, step.is_last
        choices = scene.for_node(node, outputs[step.source])
        wanted = self._wanted_sets(step) if is_last and self._relations else None
        if wanted is not None and not wanted:
            skip_draws(len(choices.pool) + choices.pool.count(None), rng)
            return False
        failed = set() if node.differs_from is None else {outputs[node.differs_from]}
        domains, matching, forbidden = choices.domains, scene.matching, node.forbidden
        draw, pool, rare, left = rng.random, choices.pool.copy(), choices.rare, len(choices.pool)
        while left:
            # (As in `pop_random`, of which there are too many here to call it.)
            i = int(draw() * left)
            left -= 1
            choice, pool[i] = pool[i], pool[left]
            if choice is None:
                if rare is choices.rare:
                    rare = rare.copy()
                choice = pop_random(rare, rng)
            relation, description = choice
            if forbidden & ATTRIBUTE_BITS[description]:
                continue
            matched = matching[description]
            if wanted is not None and matched not in wanted:
                continue
            output = final_output(domains[relation] & matched)
            if output in failed:  # as all choices with the same output do
                continue
            outputs[k], self.choices[k] = output, choice
            for j, run in step.followers:
                outputs[j] = run(scene.index, outputs)
            if is_last:
                if outputs[-1] in self._allowed:
                    return True
                failed |= self._disallowed(step, choices)
            else:
                state = s, step.live_outputs(outputs)
                if state not in self._dead_ends:
                    if self.fill(s + 1):
                        return True
                    self._dead_ends.add(state)
                failed.add(output)
            if choices.outputs <= failed:  # all other choices would be drawn in vain
                skip_draws(left + pool[:left].count(None), rng)
                return False
        return False

    def _disallowed(self, step: SearchStep, choices: Choices) -> set[Output]:
        """The outputs of the last step for which the answer is not allowed."""
        if not step.followers:
            return choices.outputs - self._allowed
        return {output for output in choices.outputs if not self._is_allowed(step, output)}

    def _is_allowed(self, step: SearchStep, output: Output) -> bool:
        outputs = self.outputs
        outputs[step.k] = output
        for j, run in step.followers:
            outputs[j] = run(self._scene.index, outputs)
        return outputs[-1] in self._allowed

    def _wanted_sets(self, step: SearchStep) -> set[int]:
        """In "the <C> that is both <S> the <B> and <R> the <A>": what may be matched by C.

        Neither relation may be redundant: C must also match something that only one of them
        excludes. Otherwise, the answer would be the same without that one.
        """
        outputs, final_output = self.outputs, step.final_output
        first, second = self._relations
        both = outputs[step.source]
        # What only the second relation excludes, and what only the first one does.
        only_first, only_second = outputs[first] & ~both, outputs[second] & ~both
        if not only_first or not only_second:
            return set()
        unique = step.node.final_function == "unique"
        return {
            matched
            for matched in self._scene.matched
            if matched & only_first
            and matched & only_second
            and (not unique or (matched & both).bit_count() == 1)
            and self._is_allowed(step, final_output(matched & both))
        }


# --- random numbers --------------------------------------------------------------------------


def pop_random(pool: list[T], rng: random.Random) -> T:
    """Remove and return a random item; cheaper than shuffling, as a search tries few choices."""
    i = int(rng.random() * len(pool))
    item, pool[i] = pool[i], pool[-1]
    pool.pop()
    return item


def skip_draws(count: int, rng: random.Random) -> None:
    """Leave `rng` as if `rng.random()` had been called so often: each call takes 64 bits."""
    rng.getrandbits(64 * count)
