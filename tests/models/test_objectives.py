"""What a batch is scored by, against sums over single questions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from macnet.data.batches import Batch, Batches
from macnet.data.question_arrays import TYPES, UNKNOWN
from macnet.data.spec import DataSpec
from macnet.models.objectives import answer_loss
from macnet.models.system import System
from macnet.models.systems.question_type_prior import (
    Q_TYPE,
    QuestionTypePrior,
    QuestionTypePriorConfig,
    count_answers,
)
from tiny_training import dataset


def batch() -> Batch:
    """Six questions, of which some are fillers."""
    return next(Batches(dataset(5), images=2, questions=3, seed=3))


def scored_as(logits: Tensor) -> System:
    return System(
        name="fixed",
        table1_row="Human",
        description="",
        build=lambda config, data_spec: nn.Identity(),
        presets={},
        forward=lambda network, b: logits,
    )


def test_answers_are_summed_over_real_questions() -> None:
    torch.manual_seed(0)
    asked, logits = batch(), torch.randn(6, 28)
    real = [k for k in range(6) if asked.question_index[k] != UNKNOWN]
    assert 0 < len(real) < 6
    logits[real[0], asked.answers[real[0]]] = 9.0  # one at least is right
    total, counted, right, known = answer_loss(scored_as(logits), nn.Identity(), asked)
    single = [-logits[k].double().log_softmax(0)[asked.answers[k]].item() for k in real]
    best = [int(logits[k].argmax()) for k in real]
    assert total.item() == pytest.approx(sum(single))
    assert counted == known == len(real)
    assert right == sum(b == asked.answers[k].item() for b, k in zip(best, real, strict=True)) > 0


def test_fillers_have_no_gradient() -> None:
    asked, logits = batch(), torch.randn(6, 28, requires_grad=True)
    answer_loss(scored_as(logits), nn.Identity(), asked).total.backward()
    assert logits.grad is not None
    filler = asked.question_index == UNKNOWN
    assert logits.grad[filler].count_nonzero() == 0
    assert (logits.grad[~filler] != 0).any(dim=1).all()


def test_fillers_alone_are_worth_nothing() -> None:
    nothing = batch()._replace(answers=torch.full((6,), UNKNOWN))
    found = answer_loss(scored_as(torch.randn(6, 28)), nn.Identity(), nothing)
    assert [value.item() for value in found] == [0, 0, 0, 0]


def test_low_precision_is_summed_in_float32() -> None:
    logits: Any = torch.randn(6, 28).bfloat16()
    assert answer_loss(scored_as(logits), nn.Identity(), batch()).total.dtype == torch.float32


def test_counts_count_before_they_answer() -> None:
    data_spec = DataSpec(9, 28, 13, pixels=True, channels=3, height=8, width=8)
    prior, asked = QuestionTypePrior(QuestionTypePriorConfig(), data_spec), batch()
    found = count_answers(Q_TYPE, prior, asked)
    real = (asked.question_index != UNKNOWN).sum()
    assert prior.counts.sum() == found.labelled == real
    of_type = prior.counts[TYPES.index("exist")]
    assert of_type.sum() == real
    assert found.correct == of_type.max(), "the most frequent answer to the one type there is"
