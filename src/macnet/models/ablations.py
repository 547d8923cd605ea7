"""Units that take the place of others in the rows of table 2, named by the paper's labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from macnet.models.config import MACConfig
from macnet.models.encoders import Question, question_size
from macnet.models.layers import linear


class NoWordAttention(nn.Module):
    """w/o word-attention: c_i = cq_i, never cast back onto the words."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(config.d), persistent=False)

    def literal(self, cq: Tensor, words: Tensor, is_pad: Tensor) -> tuple[Tensor, None]:
        return cq, None

    def begin(self, words: Tensor, is_pad: Tensor) -> Callable[[Tensor], tuple[Tensor, None]]:
        return lambda cq: (cq, None)


class QuestionControl(nn.Module):
    """question vector as control: c_i = q at every step; W q + b where q has 2d numbers."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.steps = steps
        fits = question_size(config) == config.d
        self.project = None if fits or not first else linear(question_size(config), config.d)

    def asked(self, q: Tensor) -> Tensor:
        return q if self.project is None else self.project(q)

    def literal(self, i: int, c_prev: Tensor, question: Question) -> tuple[Tensor, Tensor, None]:
        return question.q, question.q, None

    def forward(self, c_prev: Tensor, question: Question) -> tuple[Tensor, None]:
        return question.q.expand(self.steps, -1, -1), None

    def queries(self, c_prev: Tensor, question: Question) -> Tensor:
        return self.forward(c_prev, question)[0]


class NoControl(nn.Module):
    """w/o control: no question reaches the cell; c_i is 1, which no product notices."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.steps, self.d = steps, config.d

    def asked(self, q: Tensor) -> Tensor:
        return q

    def literal(self, i: int, c_prev: Tensor, question: Question) -> tuple[Tensor, Tensor, None]:
        ones = question.q.new_ones(len(question.q), self.d)
        return ones, ones, None

    def forward(self, c_prev: Tensor, question: Question) -> tuple[Tensor, None]:
        return question.q.new_ones(self.steps, len(question.q), self.d), None

    def queries(self, c_prev: Tensor, question: Question) -> Tensor:
        return self.forward(c_prev, question)[0]
