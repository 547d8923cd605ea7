"""Section 2 of the paper: the MAC cell, the recurrent network, and the output unit.

Start here. The cell's units have files of their own, as they have sections: `control.py` (2.2.1),
`read.py` (2.2.2) and `write.py` (2.2.3); `units.py` says what they have in common. The input unit
(2.1) is in `encoders.py`. `reference.py` has units as the authors' published code has them, and
`ablations.py` those of table 2; a configuration chooses among them in the constructors.

    B  questions, N knowledge bases: G = B/N questions to each, which follow one another
    S  words, L  elements of a knowledge base, d  numbers of a state, p  steps
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.errors import InputError
from macnet.models.config import MACConfig
from macnet.models.control import CONTROLS, ControlUnit
from macnet.models.encoders import (
    EncodedQuestion,
    FeatureEncoder,
    KnowledgeBase,
    PixelEncoder,
    QuestionEncoder,
    question_size,
)
from macnet.models.kernels.streams import SideStream
from macnet.models.layers import Linear, apply_mask, variational_dropout_mask
from macnet.models.read import READS
from macnet.models.units import MemoryUpdate, Past, State
from macnet.models.write import build_write

# --- 2.2  The cell ---------------------------------------------------------------------------


class StepTrace(NamedTuple):
    """What a step attended to, and the state it reached."""

    words: Tensor | None  # cv: (B, S), the attention over the question
    knowledge: Tensor  # rv: (B, L), the attention over the knowledge base
    self_attention: Tensor | None  # sa: (B, j), over the steps before
    gate: Tensor | None  # (B, 1) or (B, d), the share of the old memory that was kept
    control: Tensor  # c: (B, d)
    memory: Tensor  # m: (B, d)
    before: Tensor  # m_{i-1}: (B, d)
    ungated: Tensor  # (B, d), what the memory would be if the gate kept nothing of m_{i-1}

    @property
    def change(self) -> Tensor | None:
        """(B,): how far the gate let the memory move, from 0, not at all, to 1; None without gate.

        With one gate for all d numbers this is 1 minus the gate.
        """
        if self.gate is None:
            return None
        moved, way = ((m - self.before).double() for m in (self.memory, self.ungated))
        change: Tensor = moved.norm(dim=-1) / way.norm(dim=-1).clamp(min=1e-300)
        return change


class StateDropout(NamedTuple):
    """Dropout of the state where it enters the read unit.

    The masks are variational: sampled once, and the same at all steps.
    """

    control_mask: Tensor | None  # (B, d)
    memory_mask: Tensor | None  # (B, d)
    memory_rate: float  # of a second mask of the memory, sampled at every step

    def of_control(self, c: Tensor) -> Tensor:
        """The control as it enters the read unit."""
        # c: (B, d) or (steps, B, d). In full, for a product that broadcasts is slow on a GPU.
        mask = self.control_mask
        return apply_mask(c, None if mask is None else mask.expand_as(c).contiguous())

    def of_memory(self, m: Tensor) -> Tensor:
        """The memory (B, d) as it enters the read unit."""
        return F.dropout(apply_mask(m, self.memory_mask), self.memory_rate)


class CellInputs(NamedTuple):
    """What every step is given besides the states before it."""

    question: EncodedQuestion
    knowledge: KnowledgeBase
    dropout: StateDropout
    before_reading: Callable[[], None]  # waits for the knowledge base


class MACCell(nn.Module):
    """Control, read and write, `steps` times with the same weights."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        super().__init__()
        self.steps, self.separate = steps, config.separate
        self.control = CONTROLS[config.control](config, steps, first=first)
        self.read = READS[config.read](config)
        self.write = build_write(config)

    def forward(self, past: Past, inputs: CellInputs) -> list[StepTrace]:
        """Compute the steps, and append their states to the past."""
        question, knowledge, dropout, before_reading = inputs
        c0 = past[-1].control
        c, cv = self.control(c0, question)  # (steps, B, d), and (B, S) of each
        controls = queries = c.unbind()
        if self.write.uses_query:
            queries = self.control.queries(torch.cat([c0[None], c[:-1]]), question).unbind()
        before_reading()
        read = self.read.prepare(knowledge, dropout.of_control(c))
        write = self.write.prepare()
        traces = []
        for i, (c_i, cq_i) in enumerate(zip(controls, queries, strict=True)):
            r, rv = read(i, dropout.of_memory(past[-1].memory))
            cv_i = None if cv is None else cv[i]
            traces.append(_append_step(past, c_i, cv_i, rv, write(r, c_i, cq_i, past)))
        return traces

    def literal(self, past: Past, inputs: CellInputs) -> list[StepTrace]:
        """The same as printed in the paper: step by step, a knowledge base for each question."""
        question, knowledge, dropout, before_reading = inputs
        before_reading()
        knowledge = _repeat_for_questions(knowledge, len(question.q))
        traces = []
        for i in range(self.steps):
            m_prev = past[-1].memory
            c_prev = past[-1].control if self.separate else m_prev
            cq, c, cv = self.control.literal(i, c_prev, question)
            r, rv = self.read.literal(dropout.of_memory(m_prev), dropout.of_control(c), knowledge)
            traces.append(_append_step(past, c, cv, rv, self.write.literal(r, c, cq, past)))
        return traces


class SingleStateCell(MACCell):
    """w/o memory-control separation: one state h is both control and memory.

    The control then depends on what was read, so that less can be computed before the steps.
    """

    control: ControlUnit

    def forward(self, past: Past, inputs: CellInputs) -> list[StepTrace]:
        """Compute the steps, and append their states to the past."""
        question, knowledge, dropout, before_reading = inputs
        before_reading()
        control, write = self.control.prepare(question), self.write.prepare()
        traces = []
        for i in range(self.steps):
            h = past[-1].memory
            c, cv = control(i, h)
            h = dropout.of_memory(h)
            r, rv = self.read.prepare(knowledge, dropout.of_control(c)[None])(0, h)
            traces.append(_append_step(past, c, cv, rv, write(r, c, c, past)))
        return traces


def _append_step(
    past: Past, c: Tensor, cv: Tensor | None, rv: Tensor, written: MemoryUpdate
) -> StepTrace:
    """Append the new state to the past, and return the trace of the step."""
    before = past[-1].memory
    past.append(State(c, written.memory))
    return StepTrace(
        words=cv,
        knowledge=rv,
        self_attention=written.self_attention,
        gate=written.gate,
        control=c,
        memory=written.memory,
        before=before,
        ungated=written.ungated,
    )


def _repeat_for_questions(knowledge: KnowledgeBase, questions: int) -> KnowledgeBase:
    """A knowledge base for each question: (B, L, d), and its padding (B, L)."""
    k, is_pad = knowledge
    groups = questions // len(k)
    is_pad = is_pad if is_pad is None else is_pad.repeat_interleave(groups, 0)
    return KnowledgeBase(k.repeat_interleave(groups, 0), is_pad)


# --- 2.2, 2.3  The recurrent network and the output unit -------------------------------------


class Reasoner(nn.Module):
    """The recurrent core: p steps over any knowledge base, be it an image or not."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.dropout = config.dropout
        # Without a control there is none to drop.
        self.control_rate = 0.0 if config.control == "none" else config.dropout.control
        self.m0 = nn.Parameter(torch.randn(config.d))
        self.c0 = nn.Parameter(torch.randn(config.d)) if config.learns_c0 else None
        cell = MACCell if config.separate else SingleStateCell
        steps = [config.p] if config.share_weights else [1] * config.p
        cells = nn.ModuleList(cell(config, n, first=i == 0) for i, n in enumerate(steps))
        self.cells = cast(Sequence[MACCell | SingleStateCell], cells)  # they have no types there

    def forward(
        self,
        question: EncodedQuestion,
        knowledge: KnowledgeBase,
        *,
        before_reading: Callable[[], None] = lambda: None,
        literal: bool = False,
    ) -> tuple[Tensor, list[StepTrace]]:
        """The final memory m_p (B, d), and the trace of each step.

        `before_reading` is called before the knowledge base is first used.
        """
        q, k = question.q, knowledge.elements
        check_group_sizes(len(q), len(k))
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
        dropout = StateDropout(
            variational_dropout_mask(m0, self.control_rate, self.training),
            variational_dropout_mask(m0, self.dropout.memory, self.training),
            self.dropout.memory_again if self.training else 0.0,
        )
        past, traces = [State(c0, m0)], list[StepTrace]()
        question = question._replace(q=self.cells[0].control.project_question(q))
        inputs = CellInputs(question, knowledge, dropout, before_reading)
        for cell in self.cells:
            traces += cell.literal(past, inputs) if literal else cell(past, inputs)
        return past[-1].memory, traces


def check_group_sizes(questions: int, bases: int) -> None:
    """Raise an InputError unless each knowledge base has the same number of questions."""
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
            self.question = Linear(q, d) if config.output == "reference" else nn.Identity()
            width += d if config.output == "reference" else q
        self.hidden = Linear(width, d)
        self.answers = Linear(d, answers)

    def forward(self, q: Tensor, m: Tensor) -> Tensor:
        x = m if self.question is None else torch.cat([self.question(q), m], -1)
        x = F.elu(self.hidden(F.dropout(x, self.rate, self.training)))
        return self.answers(F.dropout(x, self.rate, self.training))


class MACNetwork(nn.Module):
    """Input unit, reasoner and output unit: images and questions in, answers out.

    The B questions are about N images, those about the first image first: B is a multiple of N, and
    where it is N itself, each question has its own. The vocabulary counts the padding, token 0.
    """

    def __init__(self, config: MACConfig, *, vocabulary: int, answers: int) -> None:
        super().__init__()
        self.config = config
        self.question = QuestionEncoder(config, vocabulary=vocabulary)
        self.image = (PixelEncoder if config.image == "pixels" else FeatureEncoder)(config)
        self.reasoner = Reasoner(config)
        self.output = OutputUnit(config, answers=answers)

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        # images: (N, 1024, 14, 14), or (N, H, W, 3)   questions: (B, S) → (B, answers)
        return self.trace(images, questions)[0]

    def literal(self, images: Tensor, questions: Tensor) -> Tensor:
        """The same logits by the equations as printed; slow, and there to be compared with."""
        return self.trace(images, questions, literal=True)[0]

    def trace(
        self, images: Tensor, questions: Tensor, *, literal: bool = False
    ) -> tuple[Tensor, list[StepTrace]]:
        """The logits (B, answers), and the trace of each step."""
        if questions.dim() != 2:
            raise InputError(f"questions are {tuple(questions.shape)}; they must be (B, words)")
        check_group_sizes(len(questions) if questions.numel() else 0, len(images))
        # Controls depend on the question alone: they are computed beside the knowledge base.
        with SideStream(images.device) as side:
            knowledge = self.image(images)
        question = self.question(questions)
        memory, steps = self.reasoner(
            question,
            knowledge,
            before_reading=lambda: side.join(knowledge.elements),
            literal=literal,
        )
        return self.output(question.q, memory), steps
