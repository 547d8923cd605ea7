"""Worlds whose objects lie on cells of their own, and attention that is known to agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from macnet.clevr.scene import MAX_OBJECTS
from macnet.explain.agreement import (
    Agreement,
)
from macnet.explain.comparison import measure
from macnet.explain.pointing import GroundTruth
from macnet.explain.reply import IDLE
from macnet.explain.tracing import AttentionRecord
from macnet.paper import COLUMNS

STEPS, PLACES = 6, 30


def made_up(pictures: int = 40, each: int = 5, seed: int = 0) -> GroundTruth:
    """Scenes of five objects, on places of their own; each question refers to one of them or more.

    Three unique_objects in a row, or two counted_objects, or one of each.
    """
    rng = np.random.default_rng(seed)
    shows = np.zeros((pictures, MAX_OBJECTS, PLACES), bool)
    for picture in shows:
        for thing, own in enumerate(rng.permutation(PLACES)[:20].reshape(5, 4)):
            picture[thing, own[: 1 + thing % 4]] = True
    questions = pictures * each
    unique_objects = np.zeros((questions, MAX_OBJECTS), bool)
    counted_objects, hops = unique_objects.copy(), []
    for q in range(questions):
        chain = rng.permutation(5)
        unique_objects[q, chain[: (3, 0, 1)[q % 3]]] = True
        counted_objects[q, chain[3 : (3, 5, 4)[q % 3]]] = True
        if q % 3 == 0:
            hops += [(q, chain[0], chain[1]), (q, chain[1], chain[2])]
    return GroundTruth(
        images=np.repeat(np.arange(pictures), each),
        cells=shows,
        grid_width=6,
        exists=np.arange(MAX_OBJECTS) < np.full((pictures, 1), 5),
        unique_objects=unique_objects,
        counted_objects=counted_objects,
        hops=np.array(hops),
        groups=np.array([COLUMNS[q % 2] for q in range(questions)]),
        answers=np.arange(questions) % 7,
    )


def watched(
    truth: GroundTruth,
    peaks: np.ndarray,
    positions: np.ndarray | None = None,
    changes: np.ndarray | None = None,
) -> AttentionRecord:
    """Whoever attends to nothing but the peak of each step; with a gate, if there are changes."""
    return AttentionRecord(
        peaks=peaks,
        attention=truth.cells[truth.images[:, None], :, peaks].astype(float),
        positions=np.zeros(peaks.shape) if positions is None else positions,
        image_divergence=np.full((*peaks.shape, peaks.shape[1]), 0.25),
        word_divergence=np.full((*peaks.shape, peaks.shape[1]), 0.5),
        idle=np.zeros(peaks.shape, bool),
        shares=np.full(peaks.shape, 0.25),
        changes=np.ones(peaks.shape) if changes is None else changes,
        answers=truth.answers,
        has_gate=changes is not None,
    )


def at_random(truth: GroundTruth, seed: int = 1, places: int = PLACES) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, places, (len(truth.images), STEPS))


def pointing_in_order(truth: GroundTruth, *, reverse: bool = False) -> np.ndarray:
    """At each referenced object in turn, then at the last one on and on."""
    peaks = np.zeros((len(truth.images), STEPS), int)
    for q, picture in enumerate(truth.images):
        hops = truth.hops[truth.hops[:, 0] == q]
        things = [hops[0, 1], *hops[:, 2]] if len(hops) else []
        rest = np.flatnonzero((truth.unique_objects | truth.counted_objects)[q])
        things += [thing for thing in rest if thing not in things]
        order = things[::-1] if reverse else things
        order += [order[-1]] * (STEPS - len(order))
        peaks[q] = [truth.cells[picture, thing].argmax() for thing in order]
    return peaks


def agreement(truth: GroundTruth, peaks: np.ndarray, seed: int = 2) -> Agreement:
    return measure(truth, watched(truth, peaks), watched(truth, at_random(truth, seed)))


def gated(truth: GroundTruth, seed: int = 0) -> AttentionRecord:
    """Whoever attends here and there, and changes its memory now more and now less, or not."""
    rng = np.random.default_rng(seed)
    shape = len(truth.images), STEPS
    changes = np.where(rng.random(shape) < 0.4, rng.random(shape), rng.random(shape) * IDLE)
    changes[:, 2], changes[:, 4], changes[0], changes[1, 1:] = 0, IDLE, 0.99 * IDLE, 0
    record = watched(truth, at_random(truth, seed), rng.random(shape), changes)
    attention = rng.random(record.attention.shape) * truth.exists[truth.images][:, None]
    return replace(record, attention=attention)
