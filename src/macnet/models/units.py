"""What the units of a MAC cell have in common (Section 2.2 of the paper).

Units that attend have two forms of one function. `literal` is the paper's equations as printed, for
one step and one knowledge base per question; it is what to read. `prepare` is what runs: it
computes all that the steps have in common, and returns the step as a function of the state alone.
Tests show them equal, gradients included, to 1e-10. (Fresh dropout masks on a knowledge base are
sampled for each question by the one, for each knowledge base by the other.) The sizes B, N, S, L
and d are as in `mac.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from macnet.models.config import MACConfig
from macnet.models.encoders import EncodedQuestion, KnowledgeBase


class State(NamedTuple):
    """The state of B questions after a step."""

    control: Tensor  # c: (B, d)
    memory: Tensor  # m: (B, d)


class MemoryUpdate(NamedTuple):
    """The new memory, and how it was computed."""

    memory: Tensor  # m: (B, d)
    ungated: Tensor  # (B, d): the same before the gate
    self_attention: Tensor | None  # sa: (B, j), over the steps before
    gate: Tensor | None  # (B, 1) or (B, d): the share of the old memory that was kept


Past = list[State]
"""The initial state and all steps before."""
Attended = tuple[Tensor, Tensor | None]
"""What an attention makes of B queries (B, d), and its weights, if it has any."""
QueryStep = Callable[[int, Tensor], Tensor]
"""Step i, c_{i-1} (B, d) → cq_i (B, d), multiplied with the scale of the word attention."""
ControlResult = tuple[Tensor, Tensor, Tensor | None]
"""cq_i (B, d), c_i (B, d) and, where words are attended to, cv_i (B, S)."""
ControlResults = tuple[Tensor, Sequence[Tensor] | None]
"""c of all steps (steps, B, d) and, where words are attended to, cv_i (B, S) of each."""
ControlStep = Callable[[int, Tensor], Attended]
"""Step i, c_{i-1} (B, d) → c_i (B, d) and, where words are attended to, cv_i (B, S)."""
ReadStep = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""Step i, m_{i-1} (B, d) → r_i (B, d) and rv_i (B, L)."""
InfoStep = Callable[..., Tensor]
"""r_i, m_{i-1} and maybe what is recalled (B, d) → m_i^info (B, d)."""
WriteStep = Callable[[Tensor, Tensor, Tensor, Past], MemoryUpdate]
"""r_i, c_i and cq_i (B, d), and the states before → m_i."""


class Query(Protocol):
    """Compute cq_i, which is compared with the words of the question (eq. c1)."""

    recurrent: bool  # whether cq_i depends on c_{i-1}

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        """For so many steps; the unit of the first cell has the weights that all cells share."""

    def project_question(self, q: Tensor) -> Tensor:
        """The question vector (B, 2d or d) as the other methods take it."""

    def literal(self, i: int, c_prev: Tensor, q: Tensor) -> Tensor:
        """cq_i (B, d) of step i from c_{i-1} (B, d), by the equation as printed."""

    def all_steps(self, c_prev: Tensor, q: Tensor) -> Tensor:
        """cq_i of all steps from c_{i-1} of all steps: (steps, B, d)."""

    def prepare(self, q: Tensor, scale: Tensor) -> QueryStep:
        """The step as a function of i and c_{i-1} alone; cq_i is multiplied with the scale (d)."""


class WordCast(Protocol):
    """Compute c_i (B, d) from cq_i and the words, by the attention cv_i (B, S) (eqs. c2.1–c2.3)."""

    @property
    def scale(self) -> Tensor:
        """The weights (d) of the logits, with which `prepare` expects cq_i to be multiplied."""

    def literal(self, cq: Tensor, words: Tensor, is_pad: Tensor) -> Attended:
        """c_i and cv_i from cq_i (B, d), words (B, S, d) and their padding (B, S), as printed."""

    def prepare(self, words: Tensor, is_pad: Tensor) -> Callable[[Tensor], Attended]:
        """The same as a function of cq_i ⊙ scale alone; several queries a question may follow."""


class Control(Protocol):
    """Choose the reasoning operation c_i (Section 2.2.1)."""

    def __init__(self, config: MACConfig, steps: int, *, first: bool) -> None:
        """For so many steps; the unit of the first cell has the weights that all cells share."""

    def project_question(self, q: Tensor) -> Tensor:
        """The question vector (B, 2d or d) as the units of all cells take it in a question."""

    def literal(self, i: int, c_prev: Tensor, question: EncodedQuestion) -> ControlResult:
        """cq_i, c_i and cv_i of step i from c_{i-1} (B, d), by the equations as printed."""

    def __call__(self, c_prev: Tensor, question: EncodedQuestion) -> ControlResults:
        """All steps from c_0 (B, d), as control never sees the memory."""

    def queries(self, c_prev: Tensor, question: EncodedQuestion) -> Tensor:
        """cq_i of all steps from c_{i-1} of all steps: (steps, B, d)."""


class Read(Protocol):
    """Retrieve r_i (B, d) from the knowledge base, by the attention rv_i (B, L) (Section 2.2.2)."""

    def __init__(self, config: MACConfig) -> None:
        """The same weights for all steps of a cell."""

    def literal(self, m_prev: Tensor, c: Tensor, knowledge: KnowledgeBase) -> tuple[Tensor, Tensor]:
        """r_i and rv_i from m_{i-1} and c_i (B, d) and B knowledge bases, as printed."""

    def prepare(self, knowledge: KnowledgeBase, c: Tensor) -> ReadStep:
        """The step as a function of i and m_{i-1} alone; c is that of all steps (steps, B, d)."""


class Gate(Protocol):
    """Mix the old memory and the new one; also return the share of the old (eqs. w3.1, w3.2)."""

    def __call__(self, c: Tensor, m_prev: Tensor, m: Tensor) -> tuple[Tensor, Tensor | None]:
        """The mixed memory (B, d), and the share of the old one (B, 1 or d), if there is a gate."""


class Write(Protocol):
    """Integrate what was retrieved into the memory (Section 2.2.3)."""

    uses_query: bool  # whether cq_i is used; where it is not, any tensor may take its place

    def literal(self, r: Tensor, c: Tensor, cq: Tensor, past: Past) -> MemoryUpdate:
        """m_i from r_i, c_i and cq_i (B, d) and the states before, by the equations as printed."""

    def prepare(self) -> WriteStep:
        """The same function, with what the steps have in common computed beforehand."""
