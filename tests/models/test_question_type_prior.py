"""The Q-type baseline: the most frequent answer, by type."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from macnet import distributed
from macnet.data.batches import Batch
from macnet.data.question_arrays import TYPES, UNKNOWN
from macnet.data.spec import DataSpec
from macnet.models.systems.question_type_prior import QuestionTypePrior, QuestionTypePriorConfig
from processes import in_processes

ANSWERS = 5
Asked = list[tuple[int, int]]
asked = st.lists(
    st.tuples(st.integers(UNKNOWN, len(TYPES) - 1), st.integers(UNKNOWN, ANSWERS - 1)), min_size=1
)


def batch(pairs: Asked) -> Batch:
    """Questions of which nothing is known but a type and an answer."""
    types, answers = torch.tensor(pairs).unbind(1)
    columns: dict[str, Any] = dict.fromkeys(Batch._fields, torch.empty(0))
    return Batch(**{**columns, "types": types, "answers": answers})


def prior_of(answers: int = ANSWERS) -> QuestionTypePrior:
    sizes = DataSpec(9, answers, len(TYPES), pixels=True, channels=3, height=8, width=8)
    return QuestionTypePrior(QuestionTypePriorConfig(), sizes)


@settings(max_examples=60, deadline=None)
@given(st.lists(asked, min_size=1, max_size=3))
@example([[(0, 1)] * 3 + [(0, 2), (UNKNOWN, 4), (2, UNKNOWN), (UNKNOWN, UNKNOWN)]])
def test_it_answers_as_most_did(batches: list[Asked]) -> None:
    prior = prior_of()
    for pairs in batches:
        prior.count(batch(pairs))
    known = [pair for pairs in batches for pair in pairs if UNKNOWN not in pair]
    assert prior.counts.sum() == len(known)
    logits = prior(torch.tensor([*range(len(TYPES)), UNKNOWN]))
    assert logits.isfinite().all()
    for kind, found in zip([*range(len(TYPES)), UNKNOWN], logits, strict=True):
        count = Counter(answer for k, answer in known if kind in (k, UNKNOWN))
        wanted = [count[answer] for answer in range(ANSWERS)]
        assert wanted[found.argmax()] == max(wanted)
        shares = (np.array(wanted) + 1) / (sum(wanted) + ANSWERS)
        np.testing.assert_allclose(found.softmax(0), shares, rtol=1e-12)


def test_close_counts_are_not_taken_for_one() -> None:
    prior = prior_of(answers=2)
    prior.counts[:] = torch.tensor([20_000_000, 20_000_001])
    assert prior(torch.arange(len(TYPES))).argmax(1).eq(1).all()


def test_it_has_counts_and_no_weights() -> None:
    prior = prior_of()
    assert not list(prior.parameters())
    assert {name: tuple(t.shape) for name, t in prior.state_dict().items()} == {
        "counts": (len(TYPES), ANSWERS)
    }


PAIRS = [(k % len(TYPES), k * k % ANSWERS) for k in range(40)]


def count_a_share() -> list[list[int]]:
    prior = prior_of()
    for step in (PAIRS[:20], PAIRS[20:]):
        prior.count(batch(step[distributed.rank() :: distributed.size()]))
    counts: list[list[int]] = prior.counts.tolist()
    return counts


def test_processes_count_together() -> None:
    first, second = in_processes(count_a_share)
    assert first == second == count_a_share()
