"""Layouts at random, and the inputs of their modules by a stack."""

from __future__ import annotations

import torch
from torch import Tensor

from macnet.models.systems.layouts import (
    ANSWER_MODULES,
    ATTENTION_MODULES,
    EOS,
    INPUTS,
    TOKENS,
    count_outputs,
    valid_tokens,
)


def stack_of(layout: list[int]) -> list[tuple[int, ...]]:
    """The inputs of each module by a stack; checks that all is taken, and one answer is left."""
    stack: list[int] = []
    inputs: list[tuple[int, ...]] = []
    for t, token in enumerate(layout):
        if token == EOS:
            inputs.append(())
            continue
        taken = tuple(stack[len(stack) - INPUTS[token] :]) if INPUTS[token] else ()
        assert len(taken) == INPUTS[token]
        assert all(TOKENS[layout[k]] in ATTENTION_MODULES for k in taken)
        stack[len(stack) - len(taken) :] = [t]
        inputs.append(taken)
    assert [TOKENS[layout[k]] in ANSWER_MODULES for k in stack] == [True]
    return inputs


def sampled(count: int, steps: int, seed: int = 0) -> Tensor:
    """Layouts (count, T) by random choices among the valid tokens."""
    chance = torch.Generator().manual_seed(seed)
    attentions = answers = torch.zeros(count, dtype=torch.int64)
    tokens = []
    for t in range(steps):
        valid = valid_tokens(attentions, answers, steps - t)
        assert valid.any(1).all(), "a dead end"
        tokens.append(valid.double().multinomial(1, generator=chance)[:, 0])
        attentions, answers = (counts[:, -1] for counts in count_outputs(torch.stack(tokens, 1)))
    return torch.stack(tokens, 1)
