"""Comparison of what a network attended to with what the programs of its questions refer to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from macnet.data.formats import CLEVR
from macnet.evaluation.accuracy import Proportion
from macnet.explain.agreement import (
    NETWORK,
    OTHER_QUESTION,
    SOURCES,
    UNTRAINED,
    Agreement,
    PeakTargets,
    Pointing,
    StepSummary,
)
from macnet.explain.pointing import GroundTruth
from macnet.explain.tracing import AttentionRecord


def measure(truth: GroundTruth, network: AttentionRecord, random: AttentionRecord) -> Agreement:
    """Compare the attention of a network, and of the same with random weights, with programs.

    Both records are of the plain reading, or both of the other.
    """
    other_question = network.select(truth.other_questions)
    sources = {NETWORK: network, OTHER_QUESTION: other_question, UNTRAINED: random}
    # The only question about an image has no other.
    has_other = truth.other_questions != np.arange(len(truth.images))
    asked = {**dict.fromkeys(SOURCES, np.ones_like(has_other)), OTHER_QUESTION: has_other}
    hops = {name: truth.hops[of[truth.hops[:, 0]]] for name, of in asked.items()}

    def hits_of(truth: GroundTruth) -> dict[str, np.ndarray]:
        """(Q, p, 10) bool by source: which objects each step points at."""
        return {name: r.hits(truth.cells, truth.images) for name, r in sources.items()}

    attention = {name: record.attention.max(1) for name, record in sources.items()}
    wide = truth.with_margin()
    hits, near = hits_of(truth), hits_of(wide)
    referenced = truth.unique_objects | truth.counted_objects
    not_referenced = truth.exists[truth.images] & ~referenced
    correct = network.answers == truth.answers
    tries = network.active.sum(1)

    def pointing(objects: np.ndarray) -> Pointing:
        return _pointing(truth, objects, asked, hits, attention, tries)

    some = referenced.any(1)
    summaries = {
        name: _summarize_steps(record.select(of), hits[name][of], referenced[of])
        for name, record in sources.items()
        for of in [some & asked[name]]
    }

    def of_steps(field: str) -> dict[str, list[Any]]:
        return {
            name: [getattr(step, field) for step in steps]
            for name, (*steps, _) in summaries.items()
        }

    records = {NETWORK: network, UNTRAINED: random}  # other questions have the same means
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
            "referenced": _pointing(wide, referenced, asked, near, {}, tries),
            "not referenced": _pointing(wide, not_referenced, asked, near, {}, tries),
        },
        groups={name: pointing(referenced & (truth.groups == name)[:, None]) for name in groups},
        by_answer={
            "correct": pointing(referenced & correct[:, None]),
            "wrong": pointing(referenced & ~correct[:, None]),
        },
        steps=of_steps("targets"),
        random_cell=_random_targets(truth, referenced),
        top_object_referenced=of_steps("top_object_referenced"),
        share=of_steps("share"),
        idle=of_steps("idle"),
        resting=of_steps("resting"),
        change=of_steps("change"),
        all_steps={name: found[-1] for name, found in summaries.items()},
        random_object=_mean((referenced.sum(1) / truth.exists.sum(1)[truth.images])[some]),
        hops=len(truth.hops),
        both_pointed_at={name: _both(found, hops[name]) for name, found in hits.items()},
        order={name: _in_order(_first(found), hops[name]) for name, found in hits.items()},
        order_by_attention={
            name: _in_order(record.attention.argmax(1), hops[name])
            for name, record in sources.items()
        },
        reads_backwards={name: _backwards(r.positions) for name, r in records.items()},
        positions={name: _means(r.positions) for name, r in records.items()},
        image_travel={n: _travel(r.image_divergence, r.active) for n, r in records.items()},
        word_travel={n: _travel(r.word_divergence, ~r.idle) for n, r in records.items()},
    )


# --- which objects ---------------------------------------------------------------------------


def _pointing(
    truth: GroundTruth,
    objects: np.ndarray,
    asked: Mapping[str, np.ndarray],
    hits: Mapping[str, np.ndarray],
    attention: Mapping[str, np.ndarray],
    tries: np.ndarray,
) -> Pointing:
    """Of objects (Q, 10) bool, with hits (Q, p, 10) and attention (Q, 10) by source.

    `asked` (Q,) are the questions that a source has, `tries` (Q,) those that chance has in each.
    """
    areas = truth.cells.mean(2)[truth.images]  # (Q, 10)
    of_each = objects.sum(1)
    chances = 1 / np.repeat(truth.exists.sum(1)[truth.images], of_each)  # of a random object
    tries = np.repeat(tries, of_each)
    of = {name: objects & own[:, None] for name, own in asked.items()}
    return Pointing(
        hits={name: _proportion(found.max(1)[of[name]]) for name, found in hits.items()},
        attention={name: _mean(most[of[name]]) for name, most in attention.items()},
        random_cells=_mean(hit_probability(areas[objects], tries)),
        random_objects=_mean(hit_probability(chances, tries)),
        area=_mean(areas[objects]),
    )


def hit_probability(chance: np.ndarray, tries: np.ndarray | int) -> np.ndarray:
    """The probability that at least one of several tries hits, if each does with this chance."""
    missed: np.ndarray = (1 - chance) ** tries
    return 1 - missed


# --- which steps -----------------------------------------------------------------------------


def _summarize_steps(
    record: AttentionRecord, hits: np.ndarray, referenced: np.ndarray
) -> list[StepSummary]:
    """Of each step, and last of all together; hits are (Q, p, 10), referenced objects (Q, 10)."""
    referenced = np.broadcast_to(referenced[:, None], hits.shape)
    r = record
    columns = hits, referenced, r.attention, r.active, r.idle, r.shares, r.changes
    steps = [_summarize(*(column[:, i] for column in columns)) for i in range(hits.shape[1])]
    return [*steps, _summarize(*(column.reshape(-1, *column.shape[2:]) for column in columns))]


def _summarize(
    hits: np.ndarray,
    referenced: np.ndarray,
    attention: np.ndarray,
    active: np.ndarray,
    idle: np.ndarray,
    shares: np.ndarray,
    changes: np.ndarray,
) -> StepSummary:
    """Of n steps: hits, referenced objects and attention (n, 10); the others (n,)."""
    on_some: np.ndarray = hits[active].any(1)
    on_referenced: np.ndarray = (hits & referenced)[active].any(1)
    top_referenced = np.take_along_axis(referenced, attention.argmax(1)[:, None], 1)[:, 0]
    return StepSummary(
        targets=PeakTargets(
            referenced=_mean(on_referenced),
            other=_mean(on_some & ~on_referenced),
            ground=_mean(~on_some),
        ),
        top_object_referenced=_mean(top_referenced[active & (attention.max(1) > 0)]),
        share=_mean(shares),
        idle=_mean(idle),
        resting=_mean(~active & ~idle),
        change=_mean(changes),
    )


def _random_targets(truth: GroundTruth, referenced: np.ndarray) -> PeakTargets:
    some = np.flatnonzero(referenced.any(1))
    on_referenced = [truth.cells[truth.images[q], referenced[q]].any(0).mean() for q in some]
    on_any = _mean(truth.cells.any(1).mean(1)[truth.images[some]])
    covered = _mean(np.array(on_referenced))
    return PeakTargets(covered, on_any - covered, 1 - on_any)


def _first(hits: np.ndarray) -> np.ndarray:
    """(Q, 10): the first step that points at an object; NaN where none does."""
    return np.where(hits.any(1), hits.argmax(1), np.nan)


def _both(hits: np.ndarray, hops: np.ndarray) -> Proportion:
    """Hops of which both objects are pointed at; hits are (Q, p, 10)."""
    pointed_at, (question, leading, led) = hits.max(1), hops.T
    return _proportion(pointed_at[question, leading] & pointed_at[question, led])


def _in_order(steps: np.ndarray, hops: np.ndarray) -> Proportion:
    """By the step (Q, 10) of each object; hops with both ends at one step are left out."""
    question, leading, led = hops.T
    a, b = steps[question, leading], steps[question, led]
    return _proportion((a < b)[(a < b) | (a > b)])


# --- which words -----------------------------------------------------------------------------


def _backwards(positions: np.ndarray) -> Proportion:
    """Whether Kendall's rank correlation of step and position is negative."""
    reads = ~np.isnan(positions)
    read = positions[reads.sum(1) >= 2]
    first, second = read[:, :, None], read[:, None, :]  # of (Q, p, p) pairs of steps
    rises = np.triu((first < second).astype(int) - (first > second))  # 0 where either is NaN
    return _proportion(rises.sum((1, 2)) < 0)


def _means(positions: np.ndarray) -> list[float]:
    """Of each step over the questions in which it reads; empty if none ever does."""
    reads = ~np.isnan(positions)
    return [_mean(p[r]) for p, r in zip(positions.T, reads.T, strict=True)] if reads.any() else []


# --- how far -----------------------------------------------------------------------------------


def _travel(divergence: np.ndarray, active: np.ndarray) -> float:
    """The mean over questions of the divergence (Q, p, p) from each active step to the next one."""
    steps = np.arange(active.shape[1])
    latest = np.maximum.accumulate(np.where(active, steps, -1), 1)  # (Q, p): active steps so far
    before = np.pad(latest[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    moved = np.take_along_axis(divergence, before.clip(0)[..., None], 2)[..., 0]  # (Q, p)
    return _mean((moved * (active & (before >= 0))).sum(1))


# --- numbers ---------------------------------------------------------------------------------


def _proportion(correct: np.ndarray) -> Proportion:
    return Proportion(int(correct.sum()), len(correct))


def _mean(values: np.ndarray) -> float:
    return float(values.mean(dtype=np.float64)) if len(values) else math.nan
