"""Units that take the place of others in the rows of table 2, named by the paper's labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from macnet.models import units
from macnet.models.config import MACConfig
from macnet.models.encoders import EncodedQuestion, question_size
from macnet.models.layers import Linear
from macnet.models.units import MemoryUpdate, Past


class NoWordAttention(nn.Module):
    """w/o word-attention: c_i = cq_i, never cast back onto the words."""

    scale: Tensor

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(config.d), persistent=False)

    def literal(self, cq: Tensor, words: Tensor, is_pad: Tensor) -> tuple[Tensor, None]:
        return cq, None

    def prepare(self, words: Tensor, is_pad: Tensor) -> Callable[[Tensor], tuple[Tensor, None]]:
        return lambda cq: (cq, None)


class _ConstantControl(nn.Module, ABC):
    """A control that is the same at every step, whatever the one before."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.steps, self.d = steps, config.d

    def project_question(self, q: Tensor) -> Tensor:
        return q

    def literal(self, i: int, c_prev: Tensor, question: EncodedQuestion) -> units.ControlResult:
        c = self.queries(c_prev, question)[i]
        return c, c, None

    def forward(self, c_prev: Tensor, question: EncodedQuestion) -> tuple[Tensor, None]:
        return self.queries(c_prev, question), None

    @abstractmethod
    def queries(self, c_prev: Tensor, question: EncodedQuestion) -> Tensor:
        """c_i of every step: (steps, B, d)."""


class QuestionControl(_ConstantControl):
    """question vector as control: c_i = q at every step; W q + b where q has 2d numbers."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__(config, steps, first=first)
        fits = question_size(config) == config.d
        self.project = Linear(question_size(config), config.d) if first and not fits else None

    def project_question(self, q: Tensor) -> Tensor:
        return q if self.project is None else self.project(q)

    def queries(self, c_prev: Tensor, question: EncodedQuestion) -> Tensor:
        return question.q.expand(self.steps, -1, -1)


class NoControl(_ConstantControl):
    """w/o control: no question reaches the cell; c_i is 1, which no product notices."""

    def queries(self, c_prev: Tensor, question: EncodedQuestion) -> Tensor:
        return question.q.new_ones(self.steps, len(question.q), self.d)


class SingleStateWrite(Linear):
    """w/o memory-control separation: h_i = W[r_i, h_{i-1}, c_i] + b."""

    uses_query = False

    def literal(self, r: Tensor, c: Tensor, cq: Tensor, past: Past) -> MemoryUpdate:
        h = self(torch.cat([r, past[-1].memory, c], -1))
        return MemoryUpdate(h, h, None, None)

    def prepare(self) -> units.WriteStep:
        return self.literal
