"""What a network attended to when it was asked many questions, read in two ways.

The plain reading has all of the attention. The other has it as `explain` shows it: beyond resting
maps, each step counted for what the memory gate let it change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from macnet.data.vocab import PAD
from macnet.errors import not_finite_error
from macnet.explain.reply import IDLE, beyond_resting
from macnet.explain.resting import resting_maps
from macnet.models.mac import StepTrace

Tracer: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, list[StepTrace]]]
"""Logits and reasoning steps for images and questions."""


@dataclass(frozen=True)
class AttentionRecord:
    """What a network of p steps attended to, and its answers."""

    peaks: np.ndarray
    """(Q, p): the cell that a step attends to most; -1 if it points at nothing.

    In the plain reading no step does so; in the other idle steps do, and those that attend to
    nothing beyond their resting map.
    """
    attention: np.ndarray
    """(Q, p, 10): the attention of a step to the cells of each object."""
    positions: np.ndarray
    """(Q, p): mean position of the attention to words, from 0, the first word, to 1, the last.

    NaN if the network does not attend to words.
    """
    image_divergence: np.ndarray
    """(Q, p, p): Jensen-Shannon divergence of the attention of two steps to the image, in bits."""
    word_divergence: np.ndarray
    """(Q, p, p): the same of words; NaN if the network does not attend to words."""
    shares: np.ndarray
    """(Q, p): the share of a step's attention that is beyond its resting map; 1 if all is read."""
    changes: np.ndarray
    """(Q, p): how far a step moved the memory, from 0 to 1; 1 if there is no gate."""
    idle: np.ndarray
    """(Q, p) bool: which steps the gate skips; none in the plain reading."""
    answers: np.ndarray
    """(Q,): ids of the predicted answers."""
    has_gate: bool
    """Whether the network has a memory gate, which may throw away what a step did."""

    @property
    def active(self) -> np.ndarray:
        """(Q, p) bool: which steps point at something; in the plain reading, all do."""
        return self.peaks >= 0

    def hits(self, cells: np.ndarray, images: np.ndarray) -> np.ndarray:
        """(Q, p, 10) bool: which objects each step points at.

        `cells` (N, 10, L) show objects, and `images` (Q,) are those of the questions.
        """
        found: np.ndarray = cells[images[:, None], :, self.peaks] & self.active[..., None]
        return found

    def weighted(self) -> AttentionRecord:
        """The reading in which a step counts for what it changed.

        Attention to objects is multiplied by the step's change. A step that is idle points at
        nothing and reads nothing.
        """
        idle = self.changes < IDLE
        return replace(
            self,
            idle=idle,
            peaks=np.where(idle, -1, self.peaks),
            attention=self.attention * self.changes[..., None],
            positions=np.where(idle, np.nan, self.positions),
        )

    def select(self, questions: np.ndarray) -> AttentionRecord:
        """The record of some of the questions, by their indices or by a mask."""
        return replace(self, **{name: v[questions] for name, v in self._columns().items()})

    @staticmethod
    def concatenate(records: Sequence[AttentionRecord]) -> AttentionRecord:
        """The record of the questions of several records of one network."""
        parts, joined = [record._columns() for record in records], records[0]._columns()
        for name in joined:
            joined[name] = np.concatenate([part[name] for part in parts])
        return replace(records[0], **joined)

    def _columns(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self).items() if isinstance(v, np.ndarray)}


class Readings(NamedTuple):
    """Two readings of the attention of one network."""

    plain: AttentionRecord
    """All of the attention."""
    as_shown: AttentionRecord | None
    """Attention as `explain` shows it: beyond resting maps, and weighted by what steps changed.

    None if there is nothing to take off and no gate, so that it is the plain one.
    """

    @property
    def shown_or_plain(self) -> AttentionRecord:
        """As it is shown, or else the plain one."""
        return self.plain if self.as_shown is None else self.as_shown

    def select(self, questions: np.ndarray) -> Readings:
        """The readings of some of the questions, by their indices or by a mask."""
        as_shown = None if self.as_shown is None else self.as_shown.select(questions)
        return Readings(self.plain.select(questions), as_shown)

    @staticmethod
    def concatenate(readings: Sequence[Readings]) -> Readings:
        """The readings of the questions of several batches."""
        as_shown = [reading.as_shown for reading in readings if reading.as_shown is not None]
        return Readings(
            AttentionRecord.concatenate([reading.plain for reading in readings]),
            AttentionRecord.concatenate(as_shown) if as_shown else None,
        )


@torch.inference_mode()
def trace_attention(
    trace: Tracer,
    images: Tensor,
    questions: Tensor,
    cells: Tensor,
    name: object = "the network",
    others: Tensor | None = None,
) -> Readings:
    """Of N images and B questions, as a network takes them; cells: (N, 10, L).

    `others` are questions for the resting maps, as of `other_questions`.
    """
    logits, steps = trace(images, questions)
    if not logits.isfinite().all():  # the columns below are waited for as well
        raise not_finite_error(name)
    attention = torch.stack([step.knowledge for step in steps], 1).float()  # (B, p, L)
    shape = attention.shape[:2]
    changes = [step.change for step in steps if step.change is not None]
    plain = AttentionRecord(
        **_read_image(attention, cells),
        **_read_words(steps, questions),
        shares=np.ones(shape, np.float32),
        changes=(torch.stack(changes, 1) if changes else torch.ones(shape)).cpu().numpy(),
        idle=np.zeros(shape, bool),
        answers=logits.argmax(1).cpu().numpy(),
        has_gate=bool(changes),
    )
    if others is None:
        return Readings(plain, plain.weighted() if plain.has_gate else None)
    others = others.to(images.device)
    few = images.split(max(1, len(questions) // len(others)))  # no more questions than at first
    traced = ((trace(some, others.repeat(len(some), 1))[1], len(some)) for some in few)
    resting = torch.cat([resting_maps(*of_some) for of_some in traced])  # (N, p, L)
    each = len(questions) // len(images)
    beyond, shares = beyond_resting(attention, resting.repeat_interleave(each, 0))
    as_shown = replace(plain, **_read_image(beyond, cells), shares=shares.cpu().numpy())
    return Readings(plain, as_shown.weighted())


def _read_image(attention: Tensor, cells: Tensor) -> dict[str, Any]:
    """Columns of a record about attention (B, p, L) to the image; cells: (N, 10, L)."""
    each = len(attention) // len(cells)
    on_objects = torch.einsum("ngpl,nol->ngpo", attention.unflatten(0, (-1, each)), cells.float())
    most, peaks = attention.max(2)
    return {
        "peaks": peaks.masked_fill(most <= 0, -1).cpu().numpy(),
        "attention": on_objects.flatten(0, 1).cpu().numpy(),
        "image_divergence": pairwise_divergence(attention).cpu().numpy(),
    }


def _read_words(steps: Sequence[StepTrace], questions: Tensor) -> dict[str, Any]:
    """Columns of a record about attention to words; NaN if there is none."""
    words = [step.words for step in steps if step.words is not None]
    if not words:
        shape = len(questions), len(steps)
        divergence = np.full((*shape, len(steps)), np.nan, np.float32)
        return {"positions": np.full(shape, np.nan, np.float32), "word_divergence": divergence}
    by_word = torch.stack(words, 1).float()  # (B, p, S)
    length = (questions != PAD).sum(1).clamp(min=2)[:, None]
    index = torch.arange(questions.shape[1], device=questions.device)
    positions = (by_word @ index.float()) / (length - 1)  # (B, p)
    return {
        "positions": positions.cpu().numpy(),
        "word_divergence": pairwise_divergence(by_word).cpu().numpy(),
    }


def pairwise_divergence(attention: Tensor) -> Tensor:
    """(B, p, p): Jensen-Shannon divergences, in bits, between p distributions (B, p, L)."""
    entropy = torch.special.entr(attention).sum(-1)  # (B, p)
    of_mixtures = [  # step by step, for p² mixtures at once would take much memory
        torch.special.entr((attention[:, i, None] + attention) / 2).sum(-1)
        for i in range(attention.shape[1])
    ]
    nats = torch.stack(of_mixtures, 1) - (entropy[:, :, None] + entropy[:, None]) / 2
    bits: Tensor = (nats / math.log(2)).clamp(0, 1)  # rounding may lead out of it
    return bits
