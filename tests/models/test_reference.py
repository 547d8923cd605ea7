"""The units as the authors' code has them, against loops over its description."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from macnet.models.mac import Reasoner
from macnet.models.presets import ABLATIONS
from macnet.models.units import State
from macnet.models.write import ReferenceSelfAttentionWriteUnit
from transcription import (
    Case,
    OmittedBiases,
    assert_close,
    assert_equals_loops,
    gradients,
    randomized,
    small_config,
)

bases = pytest.mark.parametrize("base", ["reference", "reference-recurrent"])


@bases
@pytest.mark.parametrize("row", ABLATIONS)
def test_the_cell_is_its_description(base: str, row: str) -> None:
    assert_equals_loops(small_config(row, base, d=6))


@bases
@pytest.mark.parametrize(
    "changes",
    [
        {"p": 1, "self_attention": True, "gate": True},
        {"p": 5, "self_attention": True, "gate": True},
        {"share_weights": False, "self_attention": True, "gate": True},
        {"write": "projected", "self_attention": True},
        {"attend": "nothing", "self_attention": True},
        {"control": "question", "attend": "nothing", "self_attention": True},
        {"control": "none", "attend": "nothing", "self_attention": True},
        {"direct_knowledge": False, "separate": False, "share_weights": False},
        {"optional_steps": "paper", "self_attention": True, "gate": True},
        {"read": "paper", "self_attention": True, "gate": True},
        {"c0": "learned", "self_attention": True},
        {"lstm": "d", "c0": "learned", "d": 5},
    ],
    ids=str,
)
def test_the_description_holds_in_combination(base: str, changes: dict[str, Any]) -> None:
    assert_equals_loops(small_config(base=base, **changes))


def test_scalar_biases_of_logits_change_nothing() -> None:
    """The authors' code has them in control, read and self-attention; here they are left out."""
    config = small_config(base="reference", self_attention=True)
    reasoner, case, omitted = randomized(Reasoner(config)), Case.of(config), OmittedBiases()
    memory = torch.stack([t[-1].m for t in case.transcribe(config, reasoner, omitted)])
    assert omitted.sampled.keys() == {"c2.1", "r3.1", "w2.1"}
    for grad in gradients(memory, list(omitted.sampled.values())):
        assert_close(grad, torch.zeros_like(grad), "gradient")


def test_the_initial_control_can_be_recalled() -> None:
    """In the first step it is all there is to recall; the paper's sum begins one step later."""
    for optional_steps, at_first, at_third in (("reference", 1, 3), ("paper", None, 2)):
        config = small_config(base="reference", self_attention=True, optional_steps=optional_steps)
        _, steps = Case.of(config).run(randomized(Reasoner(config)).eval())
        sizes = [None if s.self_attention is None else s.self_attention.shape[1] for s in steps]
        assert (sizes[0], sizes[2]) == (at_first, at_third)


def test_self_attention_asks_with_the_query_and_not_with_the_control() -> None:
    write = randomized(
        ReferenceSelfAttentionWriteUnit(small_config(base="reference", self_attention=True))
    )
    r, c, other_c, cq, other_cq = torch.randn(5, 2, 6, dtype=torch.float64)
    past = [State(*states) for states in torch.randn(3, 2, 2, 6, dtype=torch.float64)]
    update = write.literal(r, c, cq, past)
    assert_close(update.memory, write.literal(r, other_c, cq, past).memory, "m", 0)
    assert not torch.allclose(update.memory, write.literal(r, c, other_cq, past).memory)
