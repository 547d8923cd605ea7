"""Agreement between what a network attends to and the objects that programs of questions refer to.

Three sources of attention are measured alike: the network's own for the question; its own for
another question about the same image, which tells whether it looks for what is asked about or for
objects in general; and that of the same network with random weights. Two more are pure chance, with
as many tries as the network has steps: random cells, and random objects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from macnet.data.formats import CLEVR
from macnet.evaluation.accuracy import Proportion, to_json
from macnet.explain.pointing import AttentionRecord, GroundTruth

NETWORK, OTHER_QUESTION, UNTRAINED = SOURCES = ("network", "another question", "random weights")


@dataclass(frozen=True)
class Pointing:
    """The objects of a kind that some step points at, and the same by chance."""

    hits: Mapping[str, Proportion]
    """The proportion of objects that are pointed at, by source."""
    attention: Mapping[str, float]
    """The attention of the step that attends most to an object, averaged, by source.

    Empty where it was not measured.
    """
    random_cells: float
    """The expected proportion if each step pointed at a random cell."""
    random_objects: float
    """The expected proportion if each step pointed at a random object."""
    area: float
    """The mean share of cells that show an object: its attention if that were uniform."""

    def to_record(self) -> dict[str, Any]:
        """The numbers for JSON."""
        return {
            "pointed_at": to_json(self.hits),
            "chance": to_json({"cells": self.random_cells, "objects": self.random_objects}),
            "attention": to_json(self.attention),
            "area": to_json(self.area),
        }


class PeakTargets(NamedTuple):
    """The shares of attention peaks on a referenced object, on another one, and on the ground."""

    referenced: float
    other: float
    ground: float

    def to_record(self) -> dict[str, Any]:
        """The shares for JSON."""
        return dict(to_json(self._asdict()))


@dataclass(frozen=True)
class Agreement:
    """Agreement of attention and programs; mappings by source are by one of `SOURCES`."""

    images: int
    answers: Proportion
    """The accuracy of the network."""
    objects: Mapping[str, Pointing]
    """Pointing at unique, counted, referenced (either) and not referenced objects."""
    with_margin: Mapping[str, Pointing]
    """Pointing at referenced and other objects if a cell next to an object's were enough."""
    groups: Mapping[str, Pointing]
    """Pointing at referenced objects, by group of question types."""
    by_answer: Mapping[str, Pointing]
    """Pointing at referenced objects of questions answered correctly, and wrongly."""
    steps: Mapping[str, list[PeakTargets]]
    """The targets of each step's peaks, by source, in questions that refer to an object."""
    random_cell: PeakTargets
    """The targets if peaks were random cells."""
    top_object_referenced: Mapping[str, list[float]]
    """How often the object that a step attends to most is referenced, for each step, by source.

    Steps whose peak is on the ground may still attend to one object more than to the others.
    """
    random_object: float
    """The share of objects that are referenced: how often a random object would be."""
    hops: int
    """The number of pairs of unique objects of which the first leads to the second."""
    order: Mapping[str, Proportion]
    """Hops with both ends pointed at of which the first is pointed at first, by source."""
    order_by_attention: Mapping[str, Proportion]
    """Hops where the step that attends most to the first object comes first, by source."""
    reads_backwards: Mapping[str, Proportion]
    """Questions whose words are read rather from the last to the first, by source."""
    positions: Mapping[str, list[float]]
    """The mean position in the question that each step reads, from 0 to 1, by source."""

    def to_record(self) -> dict[str, Any]:
        """All numbers for JSON."""
        return dict(to_json(vars(self)))


def measure(truth: GroundTruth, network: AttentionRecord, random: AttentionRecord) -> Agreement:
    """Compare the attention of a network, and of the same with random weights, with programs."""
    sources = {
        NETWORK: network,
        OTHER_QUESTION: AttentionRecord(*(column[truth.other_questions] for column in network)),
        UNTRAINED: random,
    }

    def hits_of(truth: GroundTruth) -> dict[str, np.ndarray]:
        """(Q, p, 10) bool by source: which objects each step points at."""
        at = truth.images[:, None]
        return {name: truth.cells[at, :, record.peaks] for name, record in sources.items()}

    attention = {name: record.attention.max(1) for name, record in sources.items()}
    wide = truth.with_margin()
    hits, near = hits_of(truth), hits_of(wide)
    referenced = truth.unique_objects | truth.counted_objects
    not_referenced = truth.exists[truth.images] & ~referenced
    correct = network.answers == truth.answers

    def pointing(objects: np.ndarray) -> Pointing:
        return _pointing(truth, objects, hits, attention)

    some = referenced.any(1)
    reading = {NETWORK: network.positions, UNTRAINED: random.positions}
    groups = dict.fromkeys(CLEVR.type_groups.values())
    return Agreement(
        images=len(truth.cells),
        answers=_proportion(correct),
        objects={
            "unique": pointing(truth.unique_objects),
            "counted": pointing(truth.counted_objects),
            "referenced": pointing(referenced),
            "not referenced": pointing(not_referenced),
        },
        with_margin={
            "referenced": _pointing(wide, referenced, near, {}),
            "not referenced": _pointing(wide, not_referenced, near, {}),
        },
        groups={name: pointing(referenced & (truth.groups == name)[:, None]) for name in groups},
        by_answer={
            "correct": pointing(referenced & correct[:, None]),
            "wrong": pointing(referenced & ~correct[:, None]),
        },
        steps={name: _targets(found[some], referenced[some]) for name, found in hits.items()},
        random_cell=_random_targets(truth, referenced),
        top_object_referenced={
            name: _top_referenced(record.attention[some], referenced[some])
            for name, record in sources.items()
        },
        random_object=_mean((referenced.sum(1) / truth.exists.sum(1)[truth.images])[some]),
        hops=len(truth.hops),
        order={name: _in_order(_first(found), truth.hops) for name, found in hits.items()},
        order_by_attention={
            name: _in_order(record.attention.argmax(1), truth.hops)
            for name, record in sources.items()
        },
        reads_backwards={name: _backwards(positions) for name, positions in reading.items()},
        positions={name: _means(positions) for name, positions in reading.items()},
    )


# --- which objects ---------------------------------------------------------------------------


def _pointing(
    truth: GroundTruth,
    objects: np.ndarray,
    hits: Mapping[str, np.ndarray],
    attention: Mapping[str, np.ndarray],
) -> Pointing:
    """Of objects (Q, 10) bool, with hits (Q, p, 10) and attention (Q, 10) by source."""
    areas = truth.cells.mean(2)[truth.images]  # (Q, 10)
    counts = truth.exists.sum(1)[truth.images]  # (Q,)
    steps = hits[NETWORK].shape[1]
    # The only question about an image has no other.
    only = truth.other_questions == np.arange(len(objects))
    of = {**dict.fromkeys(SOURCES, objects), OTHER_QUESTION: objects & ~only[:, None]}
    return Pointing(
        hits={name: _proportion(found.max(1)[of[name]]) for name, found in hits.items()},
        attention={name: _mean(most[of[name]]) for name, most in attention.items()},
        random_cells=_mean(hit_probability(areas[objects], steps)),
        random_objects=_mean(hit_probability(1 / np.repeat(counts, objects.sum(1)), steps)),
        area=_mean(areas[objects]),
    )


def hit_probability(chance: np.ndarray, tries: int) -> np.ndarray:
    """The probability that at least one of several tries hits, if each does with this chance."""
    missed: np.ndarray = (1 - chance) ** tries
    return 1 - missed


# --- which steps -----------------------------------------------------------------------------


def _targets(hits: np.ndarray, referenced: np.ndarray) -> list[PeakTargets]:
    on_referenced = (hits & referenced[:, None]).any(2)  # (Q, p)
    on_some = hits.any(2)
    parts = on_referenced, on_some & ~on_referenced, ~on_some
    by_step = zip(*(part.T for part in parts), strict=True)
    return [PeakTargets(*map(_mean, step)) for step in by_step]


def _random_targets(truth: GroundTruth, referenced: np.ndarray) -> PeakTargets:
    some = np.flatnonzero(referenced.any(1))
    on_referenced = [truth.cells[truth.images[q], referenced[q]].any(0).mean() for q in some]
    on_any = _mean(truth.cells.any(1).mean(1)[truth.images[some]])
    covered = _mean(np.array(on_referenced))
    return PeakTargets(covered, on_any - covered, 1 - on_any)


def _top_referenced(attention: np.ndarray, referenced: np.ndarray) -> list[float]:
    """Of the steps that attend to some object at all; attention: (Q, p, 10)."""
    top_referenced = np.take_along_axis(referenced, attention.argmax(2), 1)  # (Q, p)
    attends = attention.max(2) > 0
    return [_mean(top_referenced[attends[:, step], step]) for step in range(attention.shape[1])]


def _first(hits: np.ndarray) -> np.ndarray:
    """(Q, 10): the first step that points at an object; NaN where none does."""
    return np.where(hits.any(1), hits.argmax(1), np.nan)


def _in_order(steps: np.ndarray, hops: np.ndarray) -> Proportion:
    """By the step (Q, 10) of each object; hops with both ends at one step are left out."""
    question, leading, led = hops.T
    a, b = steps[question, leading], steps[question, led]
    return _proportion((a < b)[(a < b) | (a > b)])


# --- which words -----------------------------------------------------------------------------


def _backwards(positions: np.ndarray) -> Proportion:
    """Whether Kendall's rank correlation of step and position is negative."""
    read = positions[~np.isnan(positions).any(1)]
    rises = np.sign(read[:, None, :] - read[:, :, None])  # (Q, p, p): from a step to another
    return _proportion(np.triu(rises).sum((1, 2)) < 0)


def _means(positions: np.ndarray) -> list[float]:
    return [] if np.isnan(positions).any() else positions.mean(0).tolist()


# --- numbers ---------------------------------------------------------------------------------


def _proportion(correct: np.ndarray) -> Proportion:
    return Proportion(int(correct.sum()), len(correct))


def _mean(values: np.ndarray) -> float:
    return float(values.mean(dtype=np.float64)) if len(values) else math.nan
