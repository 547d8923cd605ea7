"""The Q-type baseline: the most frequent answer to questions of a type, the question unread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from macnet import parallel
from macnet.data.batches import Batch
from macnet.data.questions import TYPES, UNKNOWN


@dataclass(frozen=True, kw_only=True)
class PriorConfig:
    """There is nothing to choose."""


class Prior(nn.Module):
    """How often each answer was right, by type of question. It counts, and learns no weights.

    A type is read from a question's program, so that it knows what no other system is told.
    """

    counts: Tensor

    def __init__(self, *, answers: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(len(TYPES), answers, dtype=torch.int64))

    def count(self, batch: Batch) -> None:
        """Add the questions of a batch whose type and answer are known; those of all processes."""
        known = (batch.types != UNKNOWN) & (batch.answers != UNKNOWN)
        place = batch.types * self.counts.shape[1] + batch.answers
        seen = torch.zeros_like(self.counts)
        seen.view(-1).index_add_(0, place.where(known, 0), known.long())
        self.counts += parallel.sum_over_all(seen)

    def forward(self, types: Tensor) -> Tensor:
        """Log counts (B, answers); where the type is unknown, those of all types together."""
        # One more than was seen: an answer that never was is unlikely, but no infinite surprise.
        table = torch.cat([self.counts, self.counts.sum(0, keepdim=True)]) + 1
        # The last row is also row −1, which is UNKNOWN. A float32 would take close counts for one.
        return table[types].double().log()
