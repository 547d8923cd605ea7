"""The Q-type baseline: the most frequent answer to questions of a type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from macnet import distributed
from macnet.data.batches import Batch
from macnet.data.question_arrays import UNKNOWN
from macnet.data.spec import DataSpec
from macnet.models.objectives import LossSums, answer_loss
from macnet.models.system import Stage, System, TrainingSpec, forward_question_type


@dataclass(frozen=True, kw_only=True)
class QuestionTypePriorConfig:
    """The baseline has no options."""


class QuestionTypePrior(nn.Module):
    """Counts how often each answer is correct, by question type; it has no trainable weights.

    A question's type comes from its program, which no other system is given.
    """

    counts: Tensor

    def __init__(self, config: QuestionTypePriorConfig, data_spec: DataSpec) -> None:
        super().__init__()
        counts = torch.zeros(data_spec.question_types, data_spec.answers, dtype=torch.int64)
        self.register_buffer("counts", counts)

    def count(self, batch: Batch) -> None:
        """Add the questions of a batch, on all processes, whose type and answer are known."""
        known = (batch.types != UNKNOWN) & (batch.answers >= 0)
        place = batch.types * self.counts.shape[1] + batch.answers
        seen = torch.zeros_like(self.counts)
        seen.view(-1).index_add_(0, place.where(known, 0), known.long())
        self.counts += distributed.all_reduce_sum(seen)

    def forward(self, types: Tensor) -> Tensor:
        """Log counts (B, answers); where the type is unknown, those of all types together."""
        # One more than was counted: an answer that was never seen keeps a finite log-probability.
        table = torch.cat([self.counts, self.counts.sum(0, keepdim=True)]) + 1
        # The last row is also row −1, which is UNKNOWN. A float32 would take close counts for one.
        return table[types].double().log()


def count_answers(system: System, network: Any, batch: Batch) -> LossSums:
    """Count the batch, which is all the training there is; nothing is minimised."""
    network.count(batch)
    return answer_loss(system, network, batch)


# One epoch of counting is all there is, whatever the recipe.
COUNTING = Stage(
    name="counting",
    objective=count_answers,
    changes={"epochs": 1, "validate_every": 1, "ema": 0},
)
Q_TYPE = System(
    name="q-type",
    table1_row="Q-type baseline",
    description="""\
The most frequent answer to each type of question.
It counts the answers to training questions by type, and takes neither words
nor image. A type is the last function of a program, so programs are needed to
answer. Johnson et al. (2017), "CLEVR: A Diagnostic Dataset for Compositional
Language and Elementary Visual Reasoning".""",
    build=QuestionTypePrior,
    presets={"q-type": QuestionTypePriorConfig()},
    training=TrainingSpec(stages=(COUNTING,)),
    forward=forward_question_type,
    needs_question_types=True,
)
