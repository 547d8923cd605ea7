"""Agreement between what a network attends to and the objects that programs of questions refer to.

Three sources of attention are measured alike: the network's own for the question; its own for
another question about the same image, which tells whether it looks for what is asked about or for
objects in general; and that of the same network with random weights. Two more are pure chance, with
as many tries as the network has active steps: random cells, and random objects. In the plain
reading all steps are active; in the other, those that the memory gate does not skip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from macnet.evaluation.accuracy import Proportion, to_json

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
    """The expected proportion if each active step pointed at a random cell."""
    random_objects: float
    """The expected proportion if each active step pointed at a random object."""
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


class StepSummary(NamedTuple):
    """What a step, or all steps together, point at in questions that refer to an object."""

    targets: PeakTargets
    """The targets of peaks, where the step is active."""
    top_object_referenced: float
    """How often the object that the step attends to most is referenced, where it is active.

    A step whose peak is on the ground may still attend to one object more than to the others.
    """
    share: float
    """The mean share of the attention that is beyond the resting map; 1 in the plain reading."""
    idle: float
    """The share of questions in which the gate skips the step; 0 in the plain reading."""
    resting: float
    """The share in which it is not idle, but attends to nothing beyond its resting map."""
    change: float
    """The mean change of the memory, from 0 to 1, idle or not; 1 if there is no gate."""

    def to_record(self) -> dict[str, Any]:
        """The numbers for JSON."""
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
    """`StepSummary.targets` of each step, by source."""
    random_cell: PeakTargets
    """The targets if peaks were random cells."""
    top_object_referenced: Mapping[str, list[float]]
    """`StepSummary.top_object_referenced` of each step, by source."""
    share: Mapping[str, list[float]]
    """`StepSummary.share` of each step, by source."""
    idle: Mapping[str, list[float]]
    """`StepSummary.idle` of each step, by source."""
    resting: Mapping[str, list[float]]
    """`StepSummary.resting` of each step, by source."""
    change: Mapping[str, list[float]]
    """`StepSummary.change` of each step, by source."""
    all_steps: Mapping[str, StepSummary]
    """The same of all steps together, in which each active one counts once, by source."""
    random_object: float
    """The share of objects that are referenced: how often a random object would be."""
    hops: int
    """The number of pairs of unique objects of which the first leads to the second."""
    both_pointed_at: Mapping[str, Proportion]
    """Hops with both ends pointed at, of all hops, by source."""
    order: Mapping[str, Proportion]
    """Hops with both ends pointed at of which the first is pointed at first, by source."""
    order_by_attention: Mapping[str, Proportion]
    """Hops where the step that attends most to the first object comes first, by source."""
    reads_backwards: Mapping[str, Proportion]
    """Questions whose words are read rather from the last to the first, by source.

    Questions with fewer than two active steps are left out.
    """
    positions: Mapping[str, list[float]]
    """The mean position in the question that each step reads if active, from 0 to 1, by source."""
    image_travel: Mapping[str, float]
    """How far attention to the image travels from each active step to the next, by source.

    Jensen-Shannon divergences in bits, summed over the steps of a question; the mean of questions.
    """
    word_travel: Mapping[str, float]
    """The same of attention to words; NaN if the network does not attend to words."""

    def to_record(self) -> dict[str, Any]:
        """All numbers for JSON."""
        return dict(to_json(vars(self)))
