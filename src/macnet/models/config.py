"""The configuration of a MAC network; it selects units, which do not branch on it themselves.

Where the paper's equations and the authors' published code differ, the choice has a field, and the
two forms are called "paper" and "reference". `docs/model.md` has the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from macnet.configuration import REPEATS, SIZES, check_choice, check_fields
from macnet.errors import InputError


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Dropout rates, by place; the defaults are the paper's 0.15 everywhere.

    A variational mask is sampled once per question and kept for all its words or steps; a fresh one
    is sampled at every use.
    """

    words: float = 0.15
    """Rate of the word embeddings."""
    variational_words: bool = True
    """Whether all the words of a question have the same mask."""
    question: float = 0.15
    """Rate of the question vector q, which is dropped once for all its uses."""
    image: float = 0.15
    """Rate of the input of the two convolutions before the knowledge base; fresh."""
    control: float = 0.15
    """Rate of c_i where it enters the read unit (r3.1); variational."""
    memory: float = 0.15
    """Rate of m_{i-1} where it enters the read unit (r1); variational."""
    memory_again: float = 0.0
    """Rate of a second mask of m_{i-1} in the read unit; fresh."""
    knowledge: float = 0.0
    """Rate of K in r1 and r2; fresh at every step. It needs the reference's read unit."""
    interaction: float = 0.0
    """Rate of each element's vector before r3.1; fresh. It needs the reference's read unit."""
    output: float = 0.15
    """Rate of the input of each layer of the output unit; fresh."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "variational_words":
                check_choice("dropout.variational_words", bool, value)
            elif not (_is_number(value) and 0 <= value < 1):
                raise InputError(
                    f"dropout.{field.name} is {value!r}; it must be a number from 0 to below 1"
                )


NO_DROPOUT = Dropout(words=0, question=0, image=0, control=0, memory=0, output=0)


WIDTHS, BLOCKS = (64, 128, 256), (0, 1, 2)

DATA_FIELDS = ("image", "channels")
"""Fields of a MACConfig that follow from the data."""


@dataclass(frozen=True, kw_only=True)
class MACConfig:
    """A MAC network; the defaults are the paper's equations with the basic write unit."""

    d: int = 512
    """The dimension d of control, memory and knowledge base."""
    p: int = 12
    """The number p of reasoning steps."""

    image: Literal["features", "pixels"] = "features"
    """Whether images are features, such as ResNet-101's conv4 (1024×14×14), or pixels."""
    channels: int = 1024
    """The number of channels of features; pixels have three."""
    widths: tuple[int, int, int] = WIDTHS
    """Channels of the backbone for pixels, after each of the three times it halves an image."""
    blocks: tuple[int, int, int] = BLOCKS
    """Residual blocks of the backbone for pixels, after each of the three times."""
    coordinates: bool = False
    """Whether the y and x of each cell are two more channels of the feature maps."""

    embedding: int = 300
    """The dimension of word vectors."""
    embedding_low: float = 0.0
    """Word vectors are initialised uniformly between this and 1."""
    lstm: Literal["d", "d/2"] = "d"
    """LSTM units per direction. With d, q has 2d numbers, and words are projected to d."""
    attend: Literal["contextual words", "word vectors", "nothing"] = "contextual words"
    """What the control attends to (c2); with nothing, c_i = cq_i."""

    control: Literal["paper", "reference", "reference-recurrent", "question", "none"] = "paper"
    """How cq_i is computed (c1). With "question" c_i is q at every step; with "none" it is 1."""
    c0: Literal["learned", "question"] = "learned"
    """The control before the first step."""

    read: Literal["paper", "reference"] = "paper"
    """Equations r1–r3.3, or the two-layer form of r2 and r3.1 in the authors' code."""
    direct_knowledge: bool = True
    """Whether r2 sees the element k beside the interaction I."""

    write: Literal["linear", "projected", "retrieved"] = "linear"
    """The form of m_i^info: W[r, m] + b (w1), W r + b, or r."""
    optional_steps: Literal["paper", "reference"] = "paper"
    """Whose self-attention (w2) and memory gate (w3) are used, if any."""
    self_attention: bool = False
    """Whether a step attends to the memories of earlier steps (w2)."""
    gate: bool = False
    """Whether a gate mixes the old memory with the new one (w3)."""
    gate_bias: float | None = None
    """The initial bias of the gate, as in table 2: at 1, the default, it favours new memory."""

    separate: bool = True
    """Whether control and memory are two states."""
    share_weights: bool = True
    """Whether the p steps share weights; in the reference, the first projection of q always is."""

    output: Literal["paper", "reference"] = "paper"
    """Whether the output unit takes q as it is or, as in the reference, projected to d."""
    output_question: bool = True
    """Whether the output unit takes the question at all."""

    dropout: Dropout = Dropout()
    """Dropout rates, by place."""

    def __post_init__(self) -> None:
        check_fields(self, repeated=("p",))
        for name, least, most in (("widths", 1, SIZES), ("blocks", 0, REPEATS)):
            value = getattr(self, name)
            whole = all(type(count) is int and least <= count <= most for count in value)
            if len(value) != len(WIDTHS) or not whole:
                raise InputError(
                    f"{name} is {value!r:.60}; it must be {len(WIDTHS)} whole numbers from {least} "
                    f"to {most:,}"
                )
        if not _is_number(self.embedding_low) or self.embedding_low >= 1:
            raise InputError(
                f"embedding_low is {self.embedding_low!r}; it must be a number below 1"
            )
        if self.gate_bias is not None and not _is_number(self.gate_bias):
            raise InputError(f"gate_bias is {self.gate_bias!r}; it must be a number")
        if type(self.dropout) is not Dropout:
            raise InputError(f"dropout is {self.dropout!r}; choose a Dropout, with a rate by place")
        self._refuse_contradictions()

    @property
    def learns_c0(self) -> bool:
        """Whether c_0 is a parameter: it is none where no unit uses it."""
        recurrent = self.control in ("paper", "reference-recurrent")
        recalled = self.self_attention and self.optional_steps == "reference"
        return self.separate and self.c0 == "learned" and (recurrent or recalled)

    def _refuse_contradictions(self) -> None:
        if self.lstm == "d/2" and self.d % 2:
            raise InputError(
                f"d is {self.d}; a biLSTM of d/2 units per direction needs an even d, "
                'or choose lstm "d"'
            )
        if self.gate_bias is not None and not self.gate:
            raise InputError(
                f"gate_bias is {self.gate_bias} but gate is False; choose gate True or no gate_bias"
            )
        if self.c0 == "question" and self.lstm == "d":
            raise InputError(
                'c0 is "question" but lstm is "d", which makes q twice as long as a control; '
                'choose c0 "learned" or lstm "d/2"'
            )
        if self.control in ("question", "none") and self.attend != "nothing":
            raise InputError(
                f"attend is {self.attend!r} but control is {self.control!r}, which asks no words; "
                'choose attend "nothing", or control paper, reference or reference-recurrent'
            )
        if self.read == "paper" and (self.dropout.knowledge or self.dropout.interaction):
            raise InputError(
                f"dropout.knowledge is {self.dropout.knowledge} and dropout.interaction "
                f"{self.dropout.interaction} but read is 'paper', which folds both away; "
                "choose 0 for them, or read reference"
            )
        if not self.separate:
            for name, only in SINGLE_STATE_CHOICES.items():
                if getattr(self, name) not in only:
                    raise InputError(
                        f"{name} is {getattr(self, name)!r} but separate is False, and one state "
                        f"for both has no such thing; choose separate True, or for {name} "
                        + " or ".join(map(str, only))
                    )


SINGLE_STATE_CHOICES: dict[str, tuple[str | bool, ...]] = {
    "control": ("paper", "reference", "reference-recurrent"),
    "write": ("linear",),
    "self_attention": (False,),
    "gate": (False,),
}
"""The choices that remain where control and memory are one state."""
