"""Layers that a recurrence uses p times, and whose weight gradients are computed once.

Autograd would make p small products for the gradient of a shared weight W and add them up. Their
sum is one product, dYᵀX over the inputs and output gradients of all steps: `RepeatedLinear` keeps
both and multiplies when the last of them is there. `RepeatedAttention` does so for its elements.

How the waiting works: each step's function takes a token, an empty tensor, as an input, and the
token's own function takes the weight. Autograd runs that one after all the steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from macnet.models.attention import attend, attend_backward
from macnet.models.layers import working_dtype


class RepeatedLinear:
    """y = x Wᵀ + b, or + any term given with x; made once for each forward pass."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._tape = _LinearTape()
        self._token = _GatherLinear.apply(weight, bias, working_dtype(weight), self._tape)  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        # x: (…, in)   plus: (B, out), where x is (B, in)
        y: Tensor = _StepLinear.apply(x.to(self._tape.weight.dtype), plus, self._token, self._tape)  # type: ignore[no-untyped-call]
        return y


def over_many(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer of so many rows that the sum for its bias's gradient had better be a product."""
    return RepeatedLinear(layer.weight, layer.bias)(x)


class _Tape:
    """What the steps of a repeated layer share, and what they keep for its gradient.

    It must not know the token: that would be a ring of references through autograd, never freed.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, ...]] = []
        self._backward_pass = -1

    def keep(self, *tensors: Tensor) -> None:
        now = torch._C._current_graph_task_id()
        if now != self._backward_pass:  # an earlier one did not want the weights' gradient
            self._kept.clear()
            self._backward_pass = now
        self._kept.append(tensors)

    def all(self) -> list[tuple[Tensor, ...]]:
        """For each tensor that was kept, those of all steps."""
        kept, self._kept = self._kept, []
        return list(zip(*kept, strict=True))


class _LinearTape(_Tape):
    weight: Tensor
    bias: Tensor | None


class _GatherLinear(Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, tape: _LinearTape
    ) -> Tensor:
        tape.weight = weight.to(dtype)
        tape.bias = None if bias is None else bias.to(dtype)
        ctx.tape, ctx.dtype = tape, weight.dtype
        return weight.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        x, dy = (each[0] if len(each) == 1 else torch.cat(each) for each in ctx.tape.all())
        db = None
        if ctx.tape.bias is not None:  # summed by a product, which is faster than a sum
            db = (dy.new_ones(1, len(dy)) @ dy)[0].to(ctx.dtype)
        return (dy.t() @ x).to(ctx.dtype), db, None, None


class _StepLinear(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, plus: Tensor | None, token: Tensor, tape: _LinearTape
    ) -> Tensor:
        ctx.save_for_backward(x, tape.weight)  # so that torch notices if it is changed meanwhile
        ctx.tape = tape
        if plus is not None:
            return torch.addmm(plus, x, tape.weight.t())
        return torch.nn.functional.linear(x, tape.weight, tape.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        ctx.tape.keep(x.flatten(0, -2), dy.flatten(0, -2))
        plus = dy if ctx.needs_input_grad[1] else None
        return dy @ weight, plus, dy.new_empty(0), None


class RepeatedAttention:
    """Σ_l softmax_l(z·e_l) e_l over the elements e: G queries z to each set of L elements."""

    def __init__(self, elements: Tensor, is_pad: Tensor | None = None) -> None:
        # elements: (N, L, d)   is_pad: (N, L)
        self._tape = _AttentionTape()
        elements = elements.to(working_dtype(elements))
        self._token = _GatherAttention.apply(elements, is_pad, self._tape)  # type: ignore[no-untyped-call]

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Queries z (N·G, d) → the sums (N·G, d) and, without gradient, the weights (N·G, L)."""
        z = z.to(self._tape.elements.dtype)
        out: tuple[Tensor, Tensor] = _StepAttention.apply(z, self._token, self._tape)  # type: ignore[no-untyped-call]
        return out


class _AttentionTape(_Tape):
    elements: Tensor
    is_pad: Tensor | None


class _GatherAttention(Function):
    @staticmethod
    def forward(ctx: Any, elements: Tensor, is_pad: Tensor | None, tape: _AttentionTape) -> Tensor:
        tape.elements = elements.contiguous()
        tape.is_pad = is_pad if is_pad is None else is_pad.contiguous()
        ctx.tape = tape
        return elements.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        # An element is in the sums, by its weight, and in the logits, by the query.
        z, weights, dsums, dlogits = ctx.tape.all()
        n = len(ctx.tape.elements)
        left = torch.cat([x.view(n, -1, x.shape[-1]) for x in weights + dlogits], 1)  # (N, ·, L)
        right = torch.cat([x.reshape(n, -1, x.shape[-1]) for x in dsums + z], 1)  # (N, ·, d)
        return left.transpose(1, 2) @ right, None, None


class _StepAttention(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, token: Tensor, tape: _AttentionTape) -> tuple[Tensor, Tensor]:
        sums, weights = attend(z, tape.elements, tape.is_pad)
        ctx.save_for_backward(z, weights, tape.elements)
        ctx.mark_non_differentiable(weights)
        ctx.tape = tape
        return sums, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dsums: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        z, weights, elements = ctx.saved_tensors
        dz, dlogits = attend_backward(dsums, weights, elements, ctx.tape.is_pad)
        ctx.tape.keep(z, weights, dsums, dlogits)
        return dz, dz.new_empty(0), None
