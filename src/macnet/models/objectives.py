"""Training objectives: a loss to be minimised over a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from macnet.data.batches import Batch
from macnet.data.question_arrays import UNKNOWN

if TYPE_CHECKING:
    from macnet.models.system import System


class LossSums(NamedTuple):
    """Loss and accuracy of a batch as sums: a process knows only its share of the denominators."""

    total: Tensor
    """The loss, summed over all terms."""
    counted: Tensor
    """Number of terms in the loss: questions, or steps of programs."""
    correct: Tensor
    """Number of questions answered correctly."""
    labelled: Tensor
    """Number of questions whose answer is known."""


Objective = Callable[["System", Any, Batch], LossSums]
"""A loss of a system's network, of whatever class that is, over a batch."""


def answer_loss(system: System, network: nn.Module, batch: Batch) -> LossSums:
    """Cross-entropy of the correct answers."""
    return answer_sums(system.forward(network, batch), batch)


def answer_sums(logits: Tensor, batch: Batch) -> LossSums:
    """Cross-entropy of the correct answers under logits (B, answers)."""
    logits = logits.float()
    targets = batch.answers.clamp(min=UNKNOWN)  # out of the vocabulary: wrong, but not learned from
    total = F.cross_entropy(logits, targets, ignore_index=UNKNOWN, reduction="sum")
    counted, labelled = (targets != UNKNOWN).sum(), (batch.answers != UNKNOWN).sum()
    correct = (logits.detach().argmax(-1) == batch.answers).sum()
    return LossSums(total, counted, correct, labelled)
