"""What a stage makes a network do better: a number to be made small, for a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from macnet.data.batches import Batch
from macnet.data.questions import UNKNOWN
from macnet.models.registry import System


class Scored(NamedTuple):
    """A batch's score, as sums: a process knows only its share of what they are divided by."""

    total: Tensor
    """The loss, summed over all that counts."""
    counted: Tensor
    """How many count: questions, or steps of programs."""
    right: Tensor
    """Questions answered rightly."""
    asked: Tensor
    """Questions whose answer is known."""


Objective = Callable[[System, nn.Module, Batch], Scored]


def answers(system: System, network: nn.Module, batch: Batch) -> Scored:
    """Cross-entropy of the right answers."""
    logits = system.answer(network, batch).float()
    total = F.cross_entropy(logits, batch.answers, ignore_index=UNKNOWN, reduction="sum")
    asked = (batch.answers != UNKNOWN).sum()
    right = (logits.detach().argmax(-1) == batch.answers).sum()
    return Scored(total, asked, right, asked)


def counts(system: System, network: Any, batch: Batch) -> Scored:
    """Nothing is made small: a prior has seen the batch, and that is all it learns."""
    network.count(batch)
    return answers(system, network, batch)


OBJECTIVES: Mapping[str, Objective] = {"answers": answers, "counts": counts}
