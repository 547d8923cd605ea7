"""The units as the authors' published code computes them, where that is not what the paper says.

They can take the place of the paper's in `mac.py`. The names in brackets are the paper's equations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.models.config import MACConfig
from macnet.models.encoders import Knowledge, question_size
from macnet.models.interaction import interact
from macnet.models.layers import PerStepLinear, linear, scores, working_dtype
from macnet.models.repeated import RepeatedLinear, over_many


class ReferenceQuery(nn.Module):
    """cq_i = W_i u + b_i, u = tanh(W q + b): each step its own question, but no recurrence."""

    recurrent = False

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.shared: Any = linear(question_size(config), config.d) if first else None
        self.position = PerStepLinear(steps, config.d, config.d)

    def asked(self, q: Tensor) -> Tensor:
        return torch.tanh(self.shared(q))

    def literal(self, i: int, c_prev: Tensor, u: Tensor) -> Tensor:
        return F.linear(u, self.position.weight[i], self.position.bias[i])

    def all(self, c_prev: Tensor | None, u: Tensor) -> Tensor:
        cq: Tensor = self.position(u)  # (steps, B, d)
        return cq

    def begin(self, u: Tensor, scale: Tensor) -> Callable[[int, Tensor], Tensor]:
        cq = (self.all(None, u) * scale).unbind()
        return lambda i, c_prev: cq[i]


class RecurrentReferenceQuery(nn.Module):
    """cq_i = W₂ tanh(W₁ [c_{i-1}, u] + b₁) + b₂, u = W' tanh(W q + b): no step has weights."""

    recurrent = True

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.shared: Any = linear(question_size(config), config.d) if first else None
        self.question: Any = linear(config.d, config.d) if first else None
        self.hidden = linear(2 * config.d, config.d)
        self.combine = linear(config.d, config.d)

    def asked(self, q: Tensor) -> Tensor:
        u: Tensor = self.question(torch.tanh(self.shared(q)))
        return u

    def literal(self, i: int, c_prev: Tensor, u: Tensor) -> Tensor:
        return self.all(c_prev, u)

    def all(self, c_prev: Tensor, u: Tensor) -> Tensor:
        # c_prev: (steps, B, d), or (B, d) of one, as no step differs from another
        both = torch.cat([c_prev, u.expand_as(c_prev)], -1)
        cq: Tensor = self.combine(torch.tanh(self.hidden(both)))
        return cq

    def begin(self, u: Tensor, scale: Tensor) -> Callable[[int, Tensor], Tensor]:
        of_control, of_question = self.hidden.weight.chunk(2, 1)
        asked = F.linear(u, of_question, self.hidden.bias)
        hidden = RepeatedLinear(of_control)
        combine = RepeatedLinear(scale[:, None] * self.combine.weight, scale * self.combine.bias)
        return lambda i, c_prev: combine(torch.tanh(hidden(c_prev, asked)))


class ReferenceRead(nn.Module):
    """r2 is a two-layer network of I and the projected element, and r3.1 has an ELU.

    That belongs to the control: the authors' code without a control in its read unit has neither.

    All that touches only the knowledge base is computed once per image, for all questions and
    steps: k' and its half of the first layer. A mask on K is drawn per image and step.
    """

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        d = config.d
        self.dropout = config.dropout
        self.guided = config.control != "none"
        self.memory = linear(d, d)
        self.knowledge = linear(d, d)
        self.direct = config.direct_knowledge
        self.hidden = linear(2 * d if self.direct else d, d)
        self.combine = linear(d, d)
        self.score = scores(d)

    def literal(
        self, m_prev: Tensor, c: Tensor, k: Tensor, is_pad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # m_prev, c: (B, d)   k: (B, L, d)   is_pad: (B, L)
        dropped = F.dropout(k, self.dropout.knowledge, self.training)
        k_projected = self.knowledge(dropped)
        interaction = self.memory(m_prev)[:, None] * k_projected  # (r1) (B, L, d)
        if self.direct:
            interaction = torch.cat([interaction, k_projected], -1)
        combined = self.combine(F.elu(self.hidden(interaction)))  # (r2) (B, L, d)
        if self.guided:
            combined = F.elu(c[:, None] * combined)
        combined = F.dropout(combined, self.dropout.interaction, self.training)
        ra = self.score(combined).squeeze(-1)  # (r3.1) (B, L)
        if is_pad is not None:
            ra = ra.masked_fill(is_pad, -torch.inf)
        rv = ra.softmax(-1)  # (r3.2)
        return torch.einsum("bl,bld->bd", rv, k), rv  # (r3.3)

    def begin(
        self, knowledge: Knowledge, c: Tensor
    ) -> Callable[[int, Tensor], tuple[Tensor, Tensor]]:
        # c: (steps, B, d)
        k, is_pad = knowledge
        n, size, d = k.shape
        rate = self.dropout.knowledge if self.training else 0.0
        dropped = F.dropout(k.repeat(len(c), 1, 1, 1), rate) if rate else k[None]
        projected = over_many(self.knowledge, dropped)  # k': (steps or 1, N, L, d)
        of_interaction, of_element = self.hidden.weight[:, :d], self.hidden.weight[:, d:]
        hidden, combine, combine_bias, score = (
            weight.to(working_dtype(weight))
            for weight in (
                of_interaction,
                self.combine.weight,
                self.combine.bias,
                self.score.weight[0],
            )
        )
        direct = self.hidden.bias.expand_as(projected)
        if self.direct:
            direct = RepeatedLinear(of_element, self.hidden.bias)(projected)
        by_step = list(zip(projected.unbind(), direct.unbind(), strict=True))
        memory = RepeatedLinear(self.memory.weight, self.memory.bias)
        controls = c.unflatten(1, (n, -1)).unbind()

        def read(i: int, m_prev: Tensor) -> tuple[Tensor, Tensor]:
            ra = interact(
                memory(m_prev).view(n, -1, d),
                controls[i] if self.guided else None,
                *by_step[i % len(by_step)],
                hidden,
                combine,
                combine_bias,
                score,
                self.dropout.interaction if self.training else 0.0,
            )  # (N, G, L)
            if is_pad is not None:
                ra = ra.masked_fill(is_pad[:, None], -torch.inf)
            rv = ra.softmax(-1)
            return (rv.to(k.dtype) @ k).view_as(m_prev), rv.view(-1, size)

        return read


class ReferenceSelfAttention(nn.Module):
    """A key made of cq_i meets the controls c_0 … c_{i-1}, the first one included."""

    first = 0  # the earliest step that can be recalled

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.key = linear(config.d, config.d)
        self.score = scores(config.d)

    def forward(self, c: Tensor, cq: Tensor | None, earlier: Tensor) -> Tensor:
        # c, cq: (B, d)   earlier: (j, B, d) → sa: (B, j)
        logits = torch.einsum("bd,jbd->bj", self.key(cq) * self.score.weight, earlier)  # (w2.1)
        return logits.softmax(-1)


class ReferenceGate(nn.Module):
    """A gate for each dimension, on the new memory; returned is the share of the old one."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.gate = linear(config.d, config.d)
        nn.init.constant_(self.gate.bias, 1.0 if config.gate_bias is None else config.gate_bias)

    def forward(self, c: Tensor) -> Tensor:
        return 1 - torch.sigmoid(self.gate(c))
