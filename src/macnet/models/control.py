"""The control unit (Section 2.2.1): which words of the question a step is about."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.models import units
from macnet.models.ablations import NoControl, NoWordAttention, QuestionControl
from macnet.models.config import MACConfig
from macnet.models.encoders import EncodedQuestion, question_size
from macnet.models.kernels.deferred_grad import DeferredGradAttention, DeferredGradLinear
from macnet.models.layers import Linear, PerStepLinear, score_layer
from macnet.models.reference import RecurrentReferenceQuery, ReferenceQuery


class PaperQuery(nn.Module):
    """cq_i, from the question and the control before (eq. c1)."""

    recurrent = True

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.position = PerStepLinear(steps, question_size(config), config.d)
        self.combine = Linear(2 * config.d, config.d)

    def project_question(self, q: Tensor) -> Tensor:
        return q

    def literal(self, i: int, c_prev: Tensor, q: Tensor) -> Tensor:
        q_i = F.linear(q, self.position.weight[i], self.position.bias[i])  # Section 2.1
        return self.combine(torch.cat([c_prev, q_i], -1))  # (c1) (B, d)

    def all_steps(self, c_prev: Tensor, q: Tensor) -> Tensor:
        return self.combine(torch.cat([c_prev, self.position(q)], -1))  # (steps, B, d)

    def prepare(self, q: Tensor, scale: Tensor) -> units.QueryStep:
        # cq_i ⊙ scale, the scale folded into the weights; the half of q_i comes before all steps.
        weight, bias = scale[:, None] * self.combine.weight, scale * self.combine.bias
        of_control, of_question = weight.chunk(2, 1)
        question_part = F.linear(self.position(q), of_question, bias).unbind()  # p × (B, d)
        combine = DeferredGradLinear(of_control)
        return lambda i, c_prev: combine(c_prev, question_part[i])


class WordAttention(nn.Module):
    """Cast cq_i onto the words of the question (eqs. c2.1–c2.3)."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.score = score_layer(config.d)

    @property
    def scale(self) -> Tensor:
        return self.score.weight[0]

    def literal(self, cq: Tensor, words: Tensor, is_pad: Tensor) -> tuple[Tensor, Tensor]:
        # cq: (B, d)   words: (B, S, d)   is_pad: (B, S)
        ca = self.score(cq[:, None] * words).squeeze(-1)  # (c2.1) (B, S)
        cv = ca.masked_fill(is_pad, -torch.inf).softmax(-1)  # (c2.2) (B, S)
        c = torch.einsum("bs,bsd->bd", cv, words)  # (c2.3) (B, d)
        return c, cv

    def prepare(self, words: Tensor, is_pad: Tensor) -> DeferredGradAttention:
        return DeferredGradAttention(words, is_pad)


class ControlUnit(nn.Module):
    """Choose the reasoning operation c_i by attending to the question's words."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.steps = steps
        self.query: units.Query = QUERIES[config.control](config, steps, first=first)
        cast = NoWordAttention if config.attend == "nothing" else WordAttention
        self.cast: units.WordCast = cast(config)

    def project_question(self, q: Tensor) -> Tensor:
        # Cells that share no other weights share these.
        return self.query.project_question(q)

    def literal(self, i: int, c_prev: Tensor, question: EncodedQuestion) -> units.ControlResult:
        cq = self.query.literal(i, c_prev, question.q)  # (c1)
        c, cv = self.cast.literal(cq, question.words, question.is_pad)  # (c2.1–c2.3)
        return cq, c, cv

    def prepare(self, question: EncodedQuestion) -> units.ControlStep:
        query = self.query.prepare(question.q, self.cast.scale)
        cast = self.cast.prepare(question.words, question.is_pad)
        return lambda i, c_prev: cast(query(i, c_prev))

    def forward(self, c: Tensor, question: EncodedQuestion) -> units.ControlResults:
        if not self.query.recurrent:  # all steps in one
            cq = self.query.all_steps(c, question.q) * self.cast.scale  # (steps, B, d)
            cast = self.cast.prepare(question.words, question.is_pad)
            c, cv = cast(cq.transpose(0, 1).flatten(0, 1))  # (B·steps, d), (B·steps, S)
            c = c.view(-1, self.steps, c.shape[-1]).transpose(0, 1)
            cv = None if cv is None else cv.view(-1, self.steps, cv.shape[-1]).transpose(0, 1)
            return c, None if cv is None else cv.unbind()
        step, controls, attention = self.prepare(question), [], []
        for i in range(self.steps):
            c, cv = step(i, c)
            controls.append(c)
            attention += [] if cv is None else [cv]
        return torch.stack(controls), attention or None

    def queries(self, c_prev: Tensor, question: EncodedQuestion) -> Tensor:
        return self.query.all_steps(c_prev, question.q)


QUERIES: dict[str, type[units.Query]] = {
    "paper": PaperQuery,
    "reference": ReferenceQuery,
    "reference-recurrent": RecurrentReferenceQuery,
}
CONTROLS: dict[str, type[units.Control]] = {
    **dict.fromkeys(QUERIES, ControlUnit),
    "question": QuestionControl,
    "none": NoControl,
}
