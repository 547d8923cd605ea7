"""Section 2 of the paper: the control, read and write units, the cell, and the output unit.

Units that attend have two forms of one function. `literal` is the paper's equations as printed, for
one step and one knowledge base per question; it is what to read. `begin` is what runs: it computes
all that the steps have in common, and returns the step as a function of the state alone. Tests
prove them equal, gradients included, to 1e-10. (Fresh dropout masks on a knowledge base are drawn
for each question by the one, for each knowledge base by the other.)

    B  questions, N knowledge bases: G = B/N questions to each, which follow one another
    S  words, L  elements of a knowledge base, d  numbers of a state, p  steps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.errors import InputError
from macnet.models.ablations import NoControl, NoWordAttention, QuestionControl
from macnet.models.config import MACConfig
from macnet.models.encoders import TRUNKS, Knowledge, Question, QuestionEncoder, question_size
from macnet.models.layers import PerStepLinear, drop, held_mask, linear, scores
from macnet.models.reference import (
    RecurrentReferenceQuery,
    ReferenceGate,
    ReferenceQuery,
    ReferenceRead,
    ReferenceSelfAttention,
)
from macnet.models.repeated import RepeatedAttention, RepeatedLinear

# --- 2.2.1  The control unit -----------------------------------------------------------------


class Query(nn.Module):
    """cq_i: what the step is to ask of the words, given the control before it (eq. c1)."""

    recurrent = True

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.position = PerStepLinear(steps, question_size(config), config.d)
        self.combine = linear(2 * config.d, config.d)

    def asked(self, q: Tensor) -> Tensor:
        return q

    def literal(self, i: int, c_prev: Tensor, q: Tensor) -> Tensor:
        q_i = F.linear(q, self.position.weight[i], self.position.bias[i])  # Section 2.1
        cq: Tensor = self.combine(torch.cat([c_prev, q_i], -1))  # (c1) (B, d)
        return cq

    def all(self, c_prev: Tensor, q: Tensor) -> Tensor:
        """cq of every step, once the controls before them are known: both (steps, B, d)."""
        cq: Tensor = self.combine(torch.cat([c_prev, self.position(q)], -1))
        return cq

    def begin(self, q: Tensor, scale: Tensor) -> Callable[[int, Tensor], Tensor]:
        # cq_i ⊙ scale, the scale folded into the weights; the half of q_i comes before all steps.
        weight, bias = scale[:, None] * self.combine.weight, scale * self.combine.bias
        of_control, of_question = weight.chunk(2, 1)
        asked = F.linear(self.position(q), of_question, bias).unbind()  # p × (B, d)
        combine = RepeatedLinear(of_control)
        return lambda i, c_prev: combine(c_prev, asked[i])


class WordAttention(nn.Module):
    """Cast cq_i onto the words of the question (eqs. c2.1–c2.3)."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.score = scores(config.d)

    @property
    def scale(self) -> Tensor:
        return self.score.weight[0]

    def literal(self, cq: Tensor, words: Tensor, is_pad: Tensor) -> tuple[Tensor, Tensor]:
        # cq: (B, d)   words: (B, S, d)   is_pad: (B, S)
        ca = self.score(cq[:, None] * words).squeeze(-1)  # (c2.1) (B, S)
        cv = ca.masked_fill(is_pad, -torch.inf).softmax(-1)  # (c2.2) (B, S)
        c = torch.einsum("bs,bsd->bd", cv, words)  # (c2.3) (B, d)
        return c, cv

    def begin(self, words: Tensor, is_pad: Tensor) -> RepeatedAttention:
        return RepeatedAttention(words, is_pad)  # of queries that are scaled already


class ControlUnit(nn.Module):
    """Choose the reasoning operation c_i by attending to the question's words."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.steps = steps
        self.query = QUERIES[config.control](config, steps, first=first)
        cast = NoWordAttention if config.attend == "nothing" else WordAttention
        self.cast: Any = cast(config)

    def asked(self, q: Tensor) -> Tensor:
        """What all steps are given of q. Cells without common weights share even this one."""
        u: Tensor = self.query.asked(q)
        return u

    def literal(
        self, i: int, c_prev: Tensor, question: Question
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        cq = self.query.literal(i, c_prev, question.q)  # (c1)
        c, cv = self.cast.literal(cq, question.words, question.is_pad)  # (c2.1–c2.3)
        return cq, c, cv

    def begin(self, question: Question) -> Callable[[int, Tensor], tuple[Tensor, Tensor | None]]:
        query = self.query.begin(question.q, self.cast.scale)
        cast = self.cast.begin(question.words, question.is_pad)
        return lambda i, c_prev: cast(query(i, c_prev))

    def forward(self, c: Tensor, question: Question) -> tuple[Tensor, Sequence[Tensor] | None]:
        """All steps at once, for control never looks at memory: c (steps, B, d), cv of each."""
        if not self.query.recurrent:  # then not even at itself: all queries go in one
            cq = self.query.all(c, question.q) * self.cast.scale  # (steps, B, d)
            cast = self.cast.begin(question.words, question.is_pad)
            c, cv = cast(cq.transpose(0, 1).flatten(0, 1))  # (B·steps, d), (B·steps, S)
            if cv is not None:
                cv = cv.view(-1, self.steps, cv.shape[-1]).transpose(0, 1).unbind()
            return c.view(-1, self.steps, c.shape[-1]).transpose(0, 1), cv
        step = self.begin(question)
        done = []
        for i in range(self.steps):
            c, cv = step(i, c)
            done.append((c, cv))
        controls, attention = zip(*done, strict=True)
        return torch.stack(controls), None if cv is None else attention

    def queries(self, c_prev: Tensor, question: Question) -> Tensor:
        """cq of every step, for the reference's self-attention: (steps, B, d)."""
        cq: Tensor = self.query.all(c_prev, question.q)
        return cq


QUERIES: dict[str, Any] = {
    "paper": Query,
    "reference": ReferenceQuery,
    "reference-recurrent": RecurrentReferenceQuery,
}
CONTROLS: dict[str, Any] = {
    **dict.fromkeys(QUERIES, ControlUnit),
    "question": QuestionControl,
    "none": NoControl,
}

# --- 2.2.2  The read unit --------------------------------------------------------------------


class ReadUnit(nn.Module):
    """Retrieve r_i from the knowledge base, guided by control and memory (eqs. r1–r3.3).

    The equations are linear in k up to the softmax. So with w the weights of r3.1 and u = w ⊙ c_i,
    the logit of an element is uᵀW_r2 [I, k], that is, with [a, b] = uᵀW_r2, an inner product v·k:

        v = W_kᵀ((W_m m_{i-1} + b_m) ⊙ a) + b

    plus what is the same for all elements, which a softmax does not see. The biases of r1's second
    factor, of r2 and of r3.1 are in that part only, and therefore left out. A step costs O(d² + Ld)
    a question instead of O(Ld²), and keeps nothing of size L×d for the backward pass.
    """

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        d = config.d
        self.memory = linear(d, d)
        self.knowledge = linear(d, d, bias=False)
        self.direct = config.direct_knowledge
        self.combine = linear(2 * d if self.direct else d, d, bias=False)
        self.score = scores(d)  # the paper has d×d here, but a softmax takes one number an element

    def literal(
        self, m_prev: Tensor, c: Tensor, k: Tensor, is_pad: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        # m_prev, c: (B, d)   k: (B, L, d)   is_pad: (B, L)
        interaction = self.memory(m_prev)[:, None] * self.knowledge(k)  # (r1) (B, L, d)
        if self.direct:
            interaction = torch.cat([interaction, k], -1)
        combined = self.combine(interaction)  # (r2) (B, L, d)
        ra = self.score(c[:, None] * combined).squeeze(-1)  # (r3.1) (B, L)
        if is_pad is not None:
            ra = ra.masked_fill(is_pad, -torch.inf)
        rv = ra.softmax(-1)  # (r3.2) (B, L)
        return torch.einsum("bl,bld->bd", rv, k), rv  # (r3.3) (B, d)

    def begin(
        self, knowledge: Knowledge, c: Tensor
    ) -> Callable[[int, Tensor], tuple[Tensor, Tensor]]:
        # c: (steps, B, d)
        weight = self.score.weight[0][:, None] * self.combine.weight  # diag(w) W_r2
        of_interaction, *of_element = weight.split(c.shape[-1], 1)
        a = (c @ of_interaction).unbind()  # p × (B, d)
        b = (c @ of_element[0]).unbind() if self.direct else [None] * len(a)
        memory = RepeatedLinear(self.memory.weight, self.memory.bias)
        to_elements = RepeatedLinear(self.knowledge.weight.t())
        attend = RepeatedAttention(knowledge.elements, knowledge.is_pad)
        return lambda i, m_prev: attend(to_elements(memory(m_prev) * a[i], b[i]))


READS: dict[str, Any] = {"paper": ReadUnit, "reference": ReferenceRead}

# --- 2.2.3  The write unit -------------------------------------------------------------------


class SelfAttention(nn.Module):
    """Which earlier steps concern this one, by their controls (eq. w2.1)."""

    first = 1  # the sum of w2.2 begins with the first step, not with the initial state

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.score = scores(config.d)

    def forward(self, c: Tensor, cq: Tensor | None, earlier: Tensor) -> Tensor:
        # c: (B, d)   earlier: (j, B, d) → sa: (B, j)
        return torch.einsum("bd,jbd->bj", c * self.score.weight, earlier).softmax(-1)  # (w2.1)


class MemoryGate(nn.Module):
    """σ(c'_i): how much of the old memory is kept (eq. w3.1)."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.gate = scores(config.d, bias=True)
        # Table 2's rows give the bias of a gate on the new memory, as the authors' code has it.
        nn.init.constant_(self.gate.bias, -1.0 if config.gate_bias is None else -config.gate_bias)

    def forward(self, c: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(c))  # (w3.1) (…, 1)


class State(NamedTuple):
    control: Tensor  # c: (B, d)
    memory: Tensor  # m: (B, d)


class Written(NamedTuple):
    """The new memory, and how it came about."""

    memory: Tensor  # (B, d)
    self_attention: Tensor | None  # (B, j)
    gate: Tensor | None  # (B, 1) or (B, d): the share of the old memory


class WriteUnit(nn.Module):
    """Integrate what was retrieved into the memory (eqs. w1–w3.2)."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        d, paper = config.d, config.optional_steps == "paper"
        self.recall: Any = None
        if config.self_attention:
            self.recall = SelfAttention(config) if paper else ReferenceSelfAttention(config)
        self.gate: nn.Module | None = None
        if config.gate:
            self.gate = MemoryGate(config) if paper else ReferenceGate(config)
        # What is recalled goes into w1 in the reference, but through matrices of its own in w2.3.
        self.joined = config.self_attention and not paper
        self.sees_memory = config.write == "linear"
        bare = config.write == "retrieved" and not self.joined
        inputs = 1 + self.sees_memory + self.joined
        self.combine = None if bare else linear(inputs * d, d)
        if config.self_attention and paper:
            self.of_recalled = linear(d, d, bias=False)
            self.of_info = linear(d, d)

    def literal(self, r: Tensor, c: Tensor, cq: Tensor | None, past: list[State]) -> Written:
        combine = self.combine

        def together(*parts: Tensor) -> Tensor:
            m: Tensor = combine(torch.cat(parts, -1)) if combine is not None else parts[0]
            return m

        return self._write(together, r, c, cq, past)

    def begin(self) -> Callable[..., Written]:
        if self.combine is None:
            return partial(self._write, lambda r: r)
        # A product for each part and no concatenation: its gradient would be in strided halves.
        first, *rest = self.combine.weight.split(len(self.combine.weight), 1)
        layers = [RepeatedLinear(first, self.combine.bias), *map(RepeatedLinear, rest)]

        def together(*parts: Tensor) -> Tensor:
            m = layers[0](parts[0])
            for layer, part in zip(layers[1:], parts[1:], strict=True):
                m = layer(part, m)
            return m

        return partial(self._write, together)

    def _write(
        self,
        combine: Callable[..., Tensor],
        r: Tensor,
        c: Tensor,
        cq: Tensor | None,
        past: list[State],
    ) -> Written:
        # r, c, cq: (B, d)   past: the initial state and all steps before this one
        m_prev = past[-1].memory
        parts = [r, m_prev] if self.sees_memory else [r]
        sa = None
        if self.recall is not None:
            recalled, sa = self._recall(c, cq, past)  # (w2.1, w2.2)
            if self.joined:
                parts.append(recalled)
        m = combine(*parts)  # (w1)
        if self.recall is not None and not self.joined:
            m = self.of_recalled(recalled) + self.of_info(m)  # (w2.3)
        if self.gate is None:
            return Written(m, sa, None)
        kept = self.gate(c)  # (w3.1)
        return Written(kept * m_prev + (1 - kept) * m, sa, kept)  # (w3.2)

    def _recall(
        self, c: Tensor, cq: Tensor | None, past: list[State]
    ) -> tuple[Tensor, Tensor | None]:
        past = past[self.recall.first :]
        if not past:  # a sum of nothing
            return torch.zeros_like(c), None
        sa = self.recall(c, cq, torch.stack([state.control for state in past]))  # (w2.1)
        memories = torch.stack([state.memory for state in past])
        return torch.einsum("bj,jbd->bd", sa, memories), sa  # (w2.2)


# --- 2.2  The cell ---------------------------------------------------------------------------


class Step(NamedTuple):
    """What a step did, for whoever wants to see it: to be looked at, not trained on.

    Attention has a gradient only in the literal form, and where plain torch computes it.
    """

    words: Tensor | None  # cv: (B, S), the attention over the question
    knowledge: Tensor  # rv: (B, L), the attention over the knowledge base
    self_attention: Tensor | None  # sa: (B, j), over the steps before
    gate: Tensor | None  # (B, 1) or (B, d), the share of the old memory that was kept
    control: Tensor  # c: (B, d)
    memory: Tensor  # m: (B, d)


class Masks(NamedTuple):
    """Variational dropout: drawn once, and held for all steps."""

    control: Tensor | None  # (B, d)
    memory: Tensor | None  # (B, d)


class _Cell(nn.Module):
    """What both kinds of cell have: a control and a read unit, used `steps` times."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.steps = steps
        self.again = config.dropout.memory_again
        self.control = CONTROLS[config.control](config, steps, first=first)
        self.read = READS[config.read](config)

    def _to_read(self, m_prev: Tensor, masks: Masks) -> Tensor:
        return F.dropout(drop(m_prev, masks.memory), self.again, self.training)


class MACCell(_Cell):
    """Control, read and write, over and over: `steps` times with the same weights."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__(config, steps, first=first)
        self.write = WriteUnit(config)

    def forward(
        self, past: list[State], question: Question, knowledge: Knowledge, masks: Masks
    ) -> list[Step]:
        """Take the steps, and add their states to the past."""
        before = past[-1].control
        c, cv = self.control(before, question)  # (steps, B, d), and (B, S) of each
        cq = None
        if self.write.joined:
            cq = self.control.queries(torch.cat([before[None], c[:-1]]), question)
        # The mask of all steps in full, for a product that broadcasts is slow on a GPU.
        mask = None if masks.control is None else masks.control.repeat(len(c), 1, 1)
        read = self.read.begin(knowledge, drop(c, mask))
        write = self.write.begin()
        taken = []
        for i, c_i in enumerate(c.unbind()):
            r, rv = read(i, self._to_read(past[-1].memory, masks))
            m, sa, gate = write(r, c_i, None if cq is None else cq[i], past)
            past.append(State(c_i, m))
            taken.append(Step(None if cv is None else cv[i], rv, sa, gate, c_i, m))
        return taken

    def literal(
        self, past: list[State], question: Question, knowledge: Knowledge, masks: Masks
    ) -> list[Step]:
        """The same, as the paper has it: step by step, and a knowledge base for each question."""
        k, is_pad = _for_each(question, knowledge)
        taken = []
        for i in range(self.steps):
            c_prev, m_prev = past[-1]
            cq, c, cv = self.control.literal(i, c_prev, question)
            r, rv = self.read.literal(
                self._to_read(m_prev, masks), drop(c, masks.control), k, is_pad
            )
            m, sa, gate = self.write.literal(r, c, cq, past)
            past.append(State(c, m))
            taken.append(Step(cv, rv, sa, gate, c, m))
        return taken


class SingleStateCell(_Cell):
    """w/o memory-control separation: one state is both, and mixes what was asked and what seen.

    What is asked then depends on what was seen, so that the steps share less beforehand.
    """

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__(config, steps, first=first)
        self.write = linear(3 * config.d, config.d)

    def forward(
        self, past: list[State], question: Question, knowledge: Knowledge, masks: Masks
    ) -> list[Step]:
        def read(h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
            found: tuple[Tensor, Tensor] = self.read.begin(knowledge, c[None])(0, h)
            return found

        return self._take(self.control.begin(question), read, past, masks)

    def literal(
        self, past: list[State], question: Question, knowledge: Knowledge, masks: Masks
    ) -> list[Step]:
        k, is_pad = _for_each(question, knowledge)

        def control(i: int, h: Tensor) -> tuple[Tensor, Tensor | None]:
            _, c, cv = self.control.literal(i, h, question)
            return c, cv

        return self._take(control, lambda h, c: self.read.literal(h, c, k, is_pad), past, masks)

    def _take(
        self,
        control: Callable[[int, Tensor], tuple[Tensor, Tensor | None]],
        read: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
        past: list[State],
        masks: Masks,
    ) -> list[Step]:
        taken = []
        for i in range(self.steps):
            h = past[-1].memory
            c, cv = control(i, h)
            r, rv = read(self._to_read(h, masks), drop(c, masks.control))
            h = self.write(torch.cat([r, h, c], -1))
            past.append(State(h, h))
            taken.append(Step(cv, rv, None, None, c, h))
        return taken


def _for_each(question: Question, knowledge: Knowledge) -> tuple[Tensor, Tensor | None]:
    """A knowledge base for each question: (B, L, d), and its padding (B, L)."""
    groups = len(question.q) // len(knowledge.elements)
    k, is_pad = knowledge
    is_pad = is_pad if is_pad is None else is_pad.repeat_interleave(groups, 0)
    return k.repeat_interleave(groups, 0), is_pad


# --- 2.2, 2.3  The recurrent network and the output unit -------------------------------------


class Reasoner(nn.Module):
    """The recurrent core: p steps over any knowledge base, be it an image or not."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        if config.control == "none":  # then none enters the read unit, to be dropped there
            self.dropout = replace(config.dropout, control=0.0)
        self.m0 = nn.Parameter(torch.randn(config.d))
        self.c0 = nn.Parameter(torch.randn(config.d)) if config.learns_c0 else None
        cell = MACCell if config.separate else SingleStateCell
        steps = [config.p] if config.share_weights else [1] * config.p
        self.cells = nn.ModuleList(cell(config, n, first=i == 0) for i, n in enumerate(steps))

    def forward(
        self, question: Question, knowledge: Knowledge, *, literal: bool = False
    ) -> tuple[Tensor, list[Step]]:
        """The final memory m_p (B, d), and all the steps that led there."""
        q, k = question.q, knowledge.elements
        refuse_uneven(len(q), len(k))
        is_pad = knowledge.is_pad
        if is_pad is not None and (is_pad.dtype != torch.bool or is_pad.shape != k.shape[:2]):
            raise InputError(
                f"the knowledge base's padding is {tuple(is_pad.shape)} of {is_pad.dtype}; it must "
                f"be {tuple(k.shape[:2])} of torch.bool"
            )
        if k.dim() != 3 or k.shape[-1] != len(self.m0):
            raise InputError(
                f"the knowledge base is {tuple(k.shape)}; it must be (bases, elements, "
                f"{len(self.m0)}), the last being d"
            )
        each = q.new_ones(len(q), 1)  # as a product, for its gradient is one then, not a slow sum
        m0 = each @ self.m0[None].to(q.dtype)
        # Where c_0 is not learned it is q, or else no unit looks at it.
        c0 = q if self.c0 is None else each @ self.c0[None].to(q.dtype)
        masks = Masks(
            held_mask(m0, self.dropout.control, self.training),
            held_mask(m0, self.dropout.memory, self.training),
        )
        past, taken = [State(c0, m0)], []
        first: Any = self.cells[0]
        question = question._replace(q=first.control.asked(q))
        for cell in self.cells:
            run: Any = cell.literal if literal else cell
            taken += run(past, question, knowledge, masks)
        return past[-1].memory, taken


def refuse_uneven(questions: int, bases: int) -> None:
    if not questions or not bases or questions % bases:
        raise InputError(
            f"{questions} questions cannot be shared out among {bases} images or knowledge bases; "
            "there must be as many about each"
        )


class OutputUnit(nn.Module):
    """[q, m_p] → answers, by two layers (Section 2.3)."""

    def __init__(self, config: MACConfig, *, answers: int) -> None:
        super().__init__()
        d, q = config.d, question_size(config)
        self.rate = config.dropout.output
        self.question: nn.Module | None = None
        width = d
        if config.output_question:
            self.question = linear(q, d) if config.output == "reference" else nn.Identity()
            width += d if config.output == "reference" else q
        self.hidden = linear(width, d)
        self.answers = linear(d, answers)

    def forward(self, q: Tensor, m: Tensor) -> Tensor:
        x = m if self.question is None else torch.cat([self.question(q), m], -1)
        x = F.elu(self.hidden(F.dropout(x, self.rate, self.training)))
        logits: Tensor = self.answers(F.dropout(x, self.rate, self.training))
        return logits


class MACNetwork(nn.Module):
    """Input unit, reasoner and output unit: images and questions in, answers out.

    The B questions are about N images, those about the first image first: B is a multiple of N, and
    where it is N itself, each question has its own. The vocabulary counts the padding, token 0.
    """

    def __init__(self, config: MACConfig, *, vocabulary: int, answers: int) -> None:
        super().__init__()
        self.config = config
        self.question = QuestionEncoder(config, vocabulary=vocabulary)
        self.image = TRUNKS[config.image](config)
        self.reasoner = Reasoner(config)
        self.output = OutputUnit(config, answers=answers)

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        # images: (N, 1024, 14, 14), or (N, H, W, 3)   questions: (B, S) → (B, answers)
        return self._answer(images, questions)[0]

    def trace(self, images: Tensor, questions: Tensor) -> tuple[Tensor, list[Step]]:
        """The answers, and each step on the way to them."""
        return self._answer(images, questions)

    def literal(self, images: Tensor, questions: Tensor) -> Tensor:
        """The same answers by the equations as printed; slow, and there to be compared with."""
        return self._answer(images, questions, literal=True)[0]

    def _answer(
        self, images: Tensor, questions: Tensor, *, literal: bool = False
    ) -> tuple[Tensor, list[Step]]:
        if questions.dim() != 2:
            raise InputError(f"questions are {tuple(questions.shape)}; they must be (B, words)")
        refuse_uneven(len(questions) if questions.numel() else 0, len(images))
        question, knowledge = self.question(questions), self.image(images)
        memory, steps = self.reasoner(question, knowledge, literal=literal)
        return self.output(question.q, memory), steps
