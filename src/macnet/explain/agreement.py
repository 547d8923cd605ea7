"""How far what a network attends to agrees with what the programs of questions visit.

Three sources of attention are measured alike: the network's own for the question; its own for
another question about the same picture, which tells whether it looks for what is asked about or
for objects in general; and that of the same network with random weights. Two more are pure chance,
as many looks as the network has steps: at random places, and at random objects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from macnet.evaluation.accuracy import COLUMNS, Share
from macnet.explain.pointing import Truth, Watched

OWN, ANOTHER, RANDOM = SOURCES = ("network", "another question", "random weights")


@dataclass(frozen=True)
class Pointed:
    """Of some objects: at how many some step points, and would by chance."""

    shares: Mapping[str, Share]
    """By source."""
    attention: Mapping[str, float]
    """By source, the mean over objects: what the step that attends most to one gives it.

    Empty where that was not measured.
    """
    at_random_places: float
    at_random_objects: float
    area: float
    """The share of places that show one, on average: what even attention would give it."""

    def to_record(self) -> dict[str, Any]:
        chance = {"places": self.at_random_places, "objects": self.at_random_objects}
        return {
            "pointed_at": {name: share.to_record() for name, share in self.shares.items()},
            "chance": {name: _known(value) for name, value in chance.items()},
            "attention": {name: _known(value) for name, value in self.attention.items()},
            "area": _known(self.area),
        }


class Aim(NamedTuple):
    """Of peaks: the shares that are on a visited object, on another one, and on the ground."""

    visited: float
    other: float
    ground: float

    def to_record(self) -> dict[str, Any]:
        return {name: _known(value) for name, value in self._asdict().items()}


@dataclass(frozen=True)
class Agreement:
    images: int
    right: Share
    """Of answers."""
    objects: Mapping[str, Pointed]
    """The referents, the members, both, and those that are not visited."""
    beside: Mapping[str, Pointed]
    """The visited and the others again, if to point at a place next to an object's were enough."""
    kinds: Mapping[str, Pointed]
    """Of the visited objects of questions, by column of the paper's tables."""
    answered: Mapping[str, Pointed]
    """The same by whether the network's answer is right."""
    steps: Mapping[str, list[Aim]]
    """By source, for each step; of questions that visit something."""
    at_random: Aim
    """The same for a random place."""
    favoured: Mapping[str, list[float]]
    """By source, for each step of the same: is the object that it attends to most visited?

    Steps that rest on the ground may still give one object more than the others.
    """
    visited: float
    """The share of objects that is: how often a random one would be."""
    links: int
    """Pairs of referents of which the first leads to the second."""
    order: Mapping[str, Share]
    """By source, of links with both ends pointed at: is the first one pointed at first?"""
    order_of_most: Mapping[str, Share]
    """By source, of links: does the step that attends most to the first one come first?"""
    backwards: Mapping[str, Share]
    """By source, of questions: do the steps move from the end to the beginning, all in all?"""
    positions: Mapping[str, list[float]]
    """By source, for each step: where in the question it reads on average, from 0 to 1."""

    def to_record(self) -> dict[str, Any]:
        groups = {name: getattr(self, name) for name in ("objects", "beside", "kinds", "answered")}
        return {
            "images": self.images,
            "answers": self.right.to_record(),
            **{
                name: {row: pointed.to_record() for row, pointed in group.items()}
                for name, group in groups.items()
            },
            "steps": {name: [aim.to_record() for aim in aims] for name, aims in self.steps.items()},
            "random_place": self.at_random.to_record(),
            "favoured": {name: list(map(_known, of)) for name, of in self.favoured.items()},
            "random_object": _known(self.visited),
            "links": self.links,
            "order": {name: share.to_record() for name, share in self.order.items()},
            "order_of_most": {name: of.to_record() for name, of in self.order_of_most.items()},
            "backwards": {name: share.to_record() for name, share in self.backwards.items()},
            "positions": dict(self.positions),
        }


def measure(truth: Truth, network: Watched, random: Watched) -> Agreement:
    others = truth.others
    sources = {
        OWN: network,
        ANOTHER: Watched(*(column[others] for column in network)),
        RANDOM: random,
    }
    hits = {name: _hits(truth, watched.peaks) for name, watched in sources.items()}
    attention = {name: watched.attention.max(1) for name, watched in sources.items()}
    wide = truth.with_margin()
    near = {name: _hits(wide, watched.peaks) for name, watched in sources.items()}
    visited = truth.referents | truth.members
    not_visited = truth.there[truth.pictures] & ~visited
    right = network.answers == truth.answers

    def pointed(which: np.ndarray) -> Pointed:
        return _pointed(truth, which, hits, attention)

    asks = visited.any(1)
    reading = {OWN: network.positions, RANDOM: random.positions}
    return Agreement(
        images=len(truth.shows),
        right=_share(right),
        objects={
            "referents": pointed(truth.referents),
            "members": pointed(truth.members),
            "visited": pointed(visited),
            "not visited": pointed(not_visited),
        },
        beside={
            "visited": _pointed(wide, visited, near, {}),
            "not visited": _pointed(wide, not_visited, near, {}),
        },
        kinds={name: pointed(visited & (truth.kinds == name)[:, None]) for name in COLUMNS},
        answered={
            "right": pointed(visited & right[:, None]),
            "wrong": pointed(visited & ~right[:, None]),
        },
        steps={name: _aims(found[asks], visited[asks]) for name, found in hits.items()},
        at_random=_random_aim(truth, visited),
        favoured={
            name: _favoured(watched.attention[asks], visited[asks])
            for name, watched in sources.items()
        },
        visited=_mean((visited.sum(1) / truth.there.sum(1)[truth.pictures])[asks]),
        links=len(truth.links),
        order={name: _in_order(_first(found), truth.links) for name, found in hits.items()},
        order_of_most={
            name: _in_order(watched.attention.argmax(1), truth.links)
            for name, watched in sources.items()
        },
        backwards={name: _backwards(positions) for name, positions in reading.items()},
        positions={name: _curve(positions) for name, positions in reading.items()},
    )


# --- which objects ---------------------------------------------------------------------------


def _hits(truth: Truth, peaks: np.ndarray) -> np.ndarray:
    """(Q, p, 10) bool: which objects each step points at."""
    hits: np.ndarray = truth.shows[truth.pictures[:, None], :, peaks]
    return hits


def _pointed(
    truth: Truth,
    which: np.ndarray,
    hits: Mapping[str, np.ndarray],
    attention: Mapping[str, np.ndarray],
) -> Pointed:
    """Of the objects (Q, 10) that are meant; hits (Q, p, 10) and attention (Q, 10) by source."""
    areas = truth.shows.mean(2)[truth.pictures]  # (Q, 10)
    counts = truth.there.sum(1)[truth.pictures]  # (Q,)
    looks = hits[OWN].shape[1]
    # An only question about a picture has no other.
    only = truth.others == np.arange(len(which))
    meant = {**dict.fromkeys(SOURCES, which), ANOTHER: which & ~only[:, None]}
    return Pointed(
        shares={name: _share(found.max(1)[meant[name]]) for name, found in hits.items()},
        attention={name: _mean(most[meant[name]]) for name, most in attention.items()},
        at_random_places=_mean(some_hit(areas[which], looks)),
        at_random_objects=_mean(some_hit(1 / np.repeat(counts, which.sum(1)), looks)),
        area=_mean(areas[which]),
    )


def some_hit(chance: np.ndarray, looks: int) -> np.ndarray:
    """The probability that of so many looks one hits, if each does with this chance."""
    missed: np.ndarray = (1 - chance) ** looks
    return 1 - missed


# --- which steps -----------------------------------------------------------------------------


def _aims(hits: np.ndarray, visited: np.ndarray) -> list[Aim]:
    on_visited = (hits & visited[:, None]).any(2)  # (Q, p)
    on_some = hits.any(2)
    parts = on_visited, on_some & ~on_visited, ~on_some
    return [Aim(*map(_mean, step)) for step in zip(*(part.T for part in parts), strict=True)]


def _random_aim(truth: Truth, visited: np.ndarray) -> Aim:
    asks = np.flatnonzero(visited.any(1))
    on_visited = [truth.shows[truth.pictures[q], visited[q]].any(0).mean() for q in asks]
    on_some = truth.shows.any(1).mean(1)[truth.pictures[asks]]
    covered, some = _mean(np.array(on_visited)), _mean(on_some)
    return Aim(covered, some - covered, 1 - some)


def _favoured(attention: np.ndarray, visited: np.ndarray) -> list[float]:
    """Of the steps that attend to some object at all; attention: (Q, p, 10)."""
    favourite = np.take_along_axis(visited, attention.argmax(2), 1)  # (Q, p)
    attends = attention.max(2) > 0
    return [_mean(favourite[attends[:, step], step]) for step in range(attention.shape[1])]


def _first(hits: np.ndarray) -> np.ndarray:
    """(Q, 10): the first step that points at an object; not a number where none does."""
    return np.where(hits.any(1), hits.argmax(1), np.nan)


def _in_order(steps: np.ndarray, links: np.ndarray) -> Share:
    """Of the step (Q, 10) of each object. That of both may be one, which tells no order."""
    question, leading, led = links.T
    a, b = steps[question, leading], steps[question, led]
    return _share((a < b)[(a < b) | (a > b)])


# --- which words -----------------------------------------------------------------------------


def _backwards(positions: np.ndarray) -> Share:
    """Whether Kendall's rank correlation of step and position is negative."""
    read = positions[~np.isnan(positions).any(1)]
    rises = np.sign(read[:, None, :] - read[:, :, None])  # (Q, p, p): from a step to another
    return _share(np.triu(rises).sum((1, 2)) < 0)


def _curve(positions: np.ndarray) -> list[float]:
    return [] if np.isnan(positions).any() else positions.mean(0).tolist()


# --- numbers ---------------------------------------------------------------------------------


def _share(right: np.ndarray) -> Share:
    return Share(int(right.sum()), len(right))


def _mean(values: np.ndarray) -> float:
    return float(values.mean(dtype=np.float64)) if len(values) else math.nan


def _known(value: float) -> float | None:
    """JSON has no number for what there is none of."""
    return None if math.isnan(value) else value
