"""The write unit (Section 2.2.3): the new memory, with or without self-attention and gate."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from macnet.models import units
from macnet.models.ablations import SingleStateWrite
from macnet.models.config import MACConfig
from macnet.models.kernels.deferred_grad import DeferredGradLinear
from macnet.models.layers import Linear, score_layer
from macnet.models.reference import ReferenceGate, ReferenceSelfAttention
from macnet.models.units import Attended, InfoStep, MemoryUpdate, Past

# --- w1: the new information -----------------------------------------------------------------


class LinearInfo(Linear):
    """m_i^info = W[r_i, m_{i-1}] + b (eq. w1), maybe with what was recalled as a third input."""

    def __init__(self, d: int, inputs: int) -> None:
        super().__init__(inputs * d, d)

    def literal(self, *inputs: Tensor) -> Tensor:
        # r, m_{i-1} and maybe what was recalled: (B, d)
        return self(torch.cat(self._chosen(*inputs), -1))  # (w1)

    def prepare(self) -> InfoStep:
        # A product for each input and no concatenation: its gradient would be in strided parts.
        first, *rest = self.weight.split(len(self.weight), 1)
        layers = [DeferredGradLinear(first, self.bias), *map(DeferredGradLinear, rest)]

        def info(*inputs: Tensor) -> Tensor:
            x, *others = self._chosen(*inputs)
            m = layers[0](x)
            for layer, other in zip(layers[1:], others, strict=True):
                m = layer(other, m)
            return m

        return info

    def _chosen(self, r: Tensor, m_prev: Tensor, *recalled: Tensor) -> tuple[Tensor, ...]:
        return r, m_prev, *recalled


class ProjectedInfo(LinearInfo):
    """W · retrieved + b → memory: W does not see m_{i-1}."""

    def _chosen(self, r: Tensor, m_prev: Tensor, *recalled: Tensor) -> tuple[Tensor, ...]:
        return r, *recalled


class RetrievedInfo(nn.Module):
    """retrieved → memory: m_i^info = r_i."""

    def literal(self, r: Tensor, m_prev: Tensor) -> Tensor:
        return r

    def prepare(self) -> InfoStep:
        return self.literal


def build_info(config: MACConfig) -> LinearInfo | RetrievedInfo:
    """The unit of w1; in the reference, what was recalled is another input of it."""
    recalled = config.self_attention and config.optional_steps == "reference"
    if config.write == "linear":
        return LinearInfo(config.d, 2 + recalled)
    if config.write == "retrieved" and not recalled:
        return RetrievedInfo()
    return ProjectedInfo(config.d, 1 + recalled)


# --- w2: self-attention ----------------------------------------------------------------------


class SelfAttention(nn.Module):
    """Which earlier steps concern this one, by their controls (eq. w2.1)."""

    first = 1  # the sum of w2.2 begins with the first step, not with the initial state

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.score = score_layer(config.d)

    def forward(self, c: Tensor, earlier: Tensor) -> Tensor:
        # c: (B, d)   earlier: (j, B, d) → sa: (B, j)
        return torch.einsum("bd,jbd->bj", c * self.score.weight, earlier).softmax(-1)  # (w2.1)


def recall_memory(
    attention: SelfAttention | ReferenceSelfAttention, query: Tensor, past: Past
) -> Attended:
    """What earlier steps wrote, by attention to their controls: m_sa (B, d) and sa (B, j)."""
    past = past[attention.first :]
    if not past:  # a sum of nothing
        return torch.zeros_like(query), None
    sa = attention(query, torch.stack([state.control for state in past]))  # (w2.1)
    memories = torch.stack([state.memory for state in past])
    return torch.einsum("bj,jbd->bd", sa, memories), sa  # (w2.2)


# --- w3: the memory gate ---------------------------------------------------------------------


class MemoryGate(nn.Module):
    """One gate for all d numbers of the memory (eqs. w3.1, w3.2)."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.gate = score_layer(config.d, bias=True)
        # Table 2's rows give the bias of a gate on the new memory, as the authors' code has it.
        nn.init.constant_(self.gate.bias, -1.0 if config.gate_bias is None else -config.gate_bias)

    def forward(self, c: Tensor, m_prev: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.sigmoid(self.gate(c))  # (w3.1) (B, 1)
        return kept * m_prev + (1 - kept) * m, kept  # (w3.2)


class NoGate(nn.Module):
    """The new memory replaces the old one."""

    def forward(self, c: Tensor, m_prev: Tensor, m: Tensor) -> tuple[Tensor, None]:
        return m, None


def build_gate(config: MACConfig) -> units.Gate:
    """The unit of w3."""
    if not config.gate:
        return NoGate()
    return MemoryGate(config) if config.optional_steps == "paper" else ReferenceGate(config)


# --- The unit --------------------------------------------------------------------------------


class WriteUnit(nn.Module):
    """Integrate what was retrieved into the memory (eqs. w1–w3.2); here without self-attention."""

    uses_query = False

    def __init__(self, config: MACConfig, recall: nn.Module | None = None) -> None:
        super().__init__()
        self.add_module("recall", recall)
        self.gate = build_gate(config)
        self.combine = build_info(config)

    def literal(self, r: Tensor, c: Tensor, cq: Tensor, past: Past) -> MemoryUpdate:
        return self._write(self.combine.literal, r, c, cq, past)

    def prepare(self) -> units.WriteStep:
        return partial(self._write, self.combine.prepare())

    def _write(self, info: InfoStep, r: Tensor, c: Tensor, cq: Tensor, past: Past) -> MemoryUpdate:
        ungated, sa = self._integrate(info, r, c, cq, past)  # (w1–w2.3)
        m, kept = self.gate(c, past[-1].memory, ungated)  # (w3.1, w3.2)
        return MemoryUpdate(m, ungated, sa, kept)

    def _integrate(self, info: InfoStep, r: Tensor, c: Tensor, cq: Tensor, past: Past) -> Attended:
        return info(r, past[-1].memory), None  # (w1)


class SelfAttentionWriteUnit(WriteUnit):
    """With self-attention to the steps before (eqs. w2.1–w2.3)."""

    recall: SelfAttention

    def __init__(self, config: MACConfig) -> None:
        super().__init__(config, SelfAttention(config))
        self.of_recalled = Linear(config.d, config.d, bias=False)
        self.of_info = Linear(config.d, config.d)

    def _integrate(self, info: InfoStep, r: Tensor, c: Tensor, cq: Tensor, past: Past) -> Attended:
        m = info(r, past[-1].memory)  # (w1)
        recalled, sa = recall_memory(self.recall, c, past)  # (w2.1, w2.2)
        return self.of_recalled(recalled) + self.of_info(m), sa  # (w2.3)


class ReferenceSelfAttentionWriteUnit(WriteUnit):
    """As the authors' code has it: cq_i asks the steps before, and w1 sees what is recalled."""

    recall: ReferenceSelfAttention
    uses_query = True

    def __init__(self, config: MACConfig) -> None:
        super().__init__(config, ReferenceSelfAttention(config))

    def _integrate(self, info: InfoStep, r: Tensor, c: Tensor, cq: Tensor, past: Past) -> Attended:
        recalled, sa = recall_memory(self.recall, cq, past)  # (w2.1, w2.2)
        return info(r, past[-1].memory, recalled), sa  # (w1)


def build_write(config: MACConfig) -> units.Write:
    """The write unit, with or without self-attention."""
    if not config.separate:
        return SingleStateWrite(3 * config.d, config.d)
    if not config.self_attention:
        return WriteUnit(config)
    paper = config.optional_steps == "paper"
    return (SelfAttentionWriteUnit if paper else ReferenceSelfAttentionWriteUnit)(config)
