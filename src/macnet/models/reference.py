"""The units as the authors' published code computes them, where that is not what the paper says.

The numbers in brackets are the paper's equations.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.models import units
from macnet.models.config import MACConfig
from macnet.models.encoders import KnowledgeBase, question_size
from macnet.models.interaction import interaction_logits
from macnet.models.kernels.deferred_grad import DeferredGradLinear, linear_with_fast_bias_grad
from macnet.models.layers import Linear, PerStepLinear, compute_dtype, score_layer


class ReferenceQuery(nn.Module):
    """cq_i = W_i u + b_i with u = tanh(W q + b), which the methods take as q: no recurrence."""

    recurrent = False

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        if first:  # the cells of other steps are given what this makes of q
            self.shared = Linear(question_size(config), config.d)
        self.position = PerStepLinear(steps, config.d, config.d)

    def project_question(self, q: Tensor) -> Tensor:
        return torch.tanh(self.shared(q))

    def literal(self, i: int, c_prev: Tensor, q: Tensor) -> Tensor:
        return F.linear(q, self.position.weight[i], self.position.bias[i])

    def all_steps(self, c_prev: Tensor, q: Tensor) -> Tensor:
        return self.position(q)  # (steps, B, d)

    def prepare(self, q: Tensor, scale: Tensor) -> units.QueryStep:
        cq = (self.position(q) * scale).unbind()
        return lambda i, c_prev: cq[i]


class RecurrentReferenceQuery(nn.Module):
    """cq_i = W₂ tanh(W₁ [c_{i-1}, u] + b₁) + b₂ with u = W' tanh(W q + b) + b', taken as q."""

    recurrent = True

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        if first:  # the cells of other steps are given what these make of q
            self.shared = Linear(question_size(config), config.d)
            self.question = Linear(config.d, config.d)
        self.hidden = Linear(2 * config.d, config.d)
        self.combine = Linear(config.d, config.d)

    def project_question(self, q: Tensor) -> Tensor:
        return self.question(torch.tanh(self.shared(q)))

    def literal(self, i: int, c_prev: Tensor, q: Tensor) -> Tensor:
        return self.all_steps(c_prev, q)

    def all_steps(self, c_prev: Tensor, q: Tensor) -> Tensor:
        # c_prev: (steps, B, d), or (B, d) of one, as no step differs from another
        both = torch.cat([c_prev, q.expand_as(c_prev)], -1)
        return self.combine(torch.tanh(self.hidden(both)))

    def prepare(self, q: Tensor, scale: Tensor) -> units.QueryStep:
        of_control, of_question = self.hidden.weight.chunk(2, 1)
        question_part = F.linear(q, of_question, self.hidden.bias)
        hidden = DeferredGradLinear(of_control)
        combine = DeferredGradLinear(
            scale[:, None] * self.combine.weight, scale * self.combine.bias
        )
        return lambda i, c_prev: combine(torch.tanh(hidden(c_prev, question_part)))


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
        self.memory = Linear(d, d)
        self.knowledge = Linear(d, d)
        self.direct = config.direct_knowledge
        self.hidden = Linear(2 * d if self.direct else d, d)
        self.combine = Linear(d, d)
        self.score = score_layer(d)

    def literal(self, m_prev: Tensor, c: Tensor, knowledge: KnowledgeBase) -> tuple[Tensor, Tensor]:
        k, is_pad = knowledge  # (B, L, d), (B, L); m_prev, c: (B, d)
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

    def prepare(self, knowledge: KnowledgeBase, c: Tensor) -> units.ReadStep:
        # c: (steps, B, d)
        k, is_pad = knowledge
        n, size, d = k.shape
        dropped = k[None]
        if self.training and self.dropout.knowledge:
            dropped = F.dropout(k.repeat(len(c), 1, 1, 1), self.dropout.knowledge)
        rate = self.dropout.interaction if self.training else 0.0
        projected = linear_with_fast_bias_grad(self.knowledge, dropped)  # k': (steps or 1, N, L, d)
        of_interaction, of_element = self.hidden.weight[:, :d], self.hidden.weight[:, d:]
        given = (of_interaction, self.combine.weight, self.combine.bias, self.score.weight[0])
        weights = [weight.to(compute_dtype(weight)) for weight in given]
        direct = self.hidden.bias.expand_as(projected)
        if self.direct:
            direct = DeferredGradLinear(of_element, self.hidden.bias)(projected)
        by_step = list(zip(projected.unbind(), direct.unbind(), strict=True))
        memory = DeferredGradLinear(self.memory.weight, self.memory.bias)
        controls = c.unflatten(1, (n, -1)).unbind()

        def read(i: int, m_prev: Tensor) -> tuple[Tensor, Tensor]:
            m, control = memory(m_prev).view(n, -1, d), controls[i] if self.guided else None
            elements = by_step[i % len(by_step)]
            ra = interaction_logits(m, control, *elements, *weights, rate=rate)  # (N, G, L)
            if is_pad is not None:
                ra = ra.masked_fill(is_pad[:, None], -torch.inf)
            rv = ra.softmax(-1)
            return (rv.to(k.dtype) @ k).view_as(m_prev), rv.view(-1, size)

        return read


class ReferenceSelfAttention(nn.Module):
    """A key made of cq_i is compared with the controls c_0 … c_{i-1}, the initial one included."""

    first = 0  # the earliest step that can be recalled

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.key = Linear(config.d, config.d)
        self.score = score_layer(config.d)

    def forward(self, cq: Tensor, earlier: Tensor) -> Tensor:
        # cq: (B, d)   earlier: (j, B, d) → sa: (B, j)
        logits = torch.einsum("bd,jbd->bj", self.key(cq) * self.score.weight, earlier)  # (w2.1)
        return logits.softmax(-1)


class ReferenceGate(nn.Module):
    """A gate for each of the d numbers, on the new memory; returned is the share of the old one."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.gate = Linear(config.d, config.d)
        nn.init.constant_(self.gate.bias, 1.0 if config.gate_bias is None else config.gate_bias)

    def forward(self, c: Tensor, m_prev: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        kept = 1 - torch.sigmoid(self.gate(c))  # (w3.1) (B, d)
        return kept * m_prev + (1 - kept) * m, kept  # (w3.2)
