"""Layers that a recurrence uses p times, and whose weight gradients are computed once.

Autograd would compute p small products for the gradient of a shared weight W and add them up. Their
sum is one product, dYᵀX over the inputs and output gradients of all steps. `DeferredGradLinear`
keeps both until the last of them is there; `DeferredGradAttention` does so for its elements.

The steps are chained by tokens, which are empty tensors. A first function, of the weight, makes a
token; each step takes the token of the step before it and makes the next. So autograd runs the
steps from the last to the first, and the function of the weight after all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from macnet.models.attention import attend, attend_backward
from macnet.models.layers import compute_dtype


class DeferredGradLinear:
    """y = x Wᵀ + b, or + any term given with x; made anew for each forward pass."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._steps = _Steps()
        self._token = _LinearWeight.apply(weight, bias, compute_dtype(weight), self._steps)  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        # x: (…, in)   plus: (B, out), where x is (B, in)
        x = x.to(self._steps.shared.dtype)
        y, self._token = _LinearStep.apply(x, plus, self._token, self._steps)  # type: ignore[no-untyped-call]
        out: Tensor = y
        return out


def linear_with_fast_bias_grad(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer for so many rows that its bias's gradient is faster as a product than as a sum."""
    return DeferredGradLinear(layer.weight, layer.bias)(x)


class _Steps:
    """What the steps of a layer share, and what their backward passes keep for its gradient.

    It must not hold a token: that would be a cycle of references through autograd, never freed.
    """

    shared: Tensor  # the weight, or the elements
    added: Tensor | None  # the bias, or the padding

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, ...]] = []

    def keep(self, dtoken: Tensor | None, *tensors: Tensor) -> None:
        """Keep a step's tensors, if any, given the gradient of the token that the step made."""
        # Without a gradient no later step is in this backward pass. So it has just begun, and what
        # is there was kept by one that did not ask for the weight's gradient.
        if dtoken is None:
            self._kept.clear()
        if tensors:
            self._kept.append(tensors)

    def take(self) -> list[tuple[Tensor, ...]]:
        """For each tensor that was kept, those of all steps; nothing if there were no steps."""
        kept, self._kept = self._kept, []
        return list(zip(*kept, strict=True))


class _LinearWeight(Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, steps: _Steps
    ) -> Tensor:
        steps.shared = weight.to(dtype)
        steps.added = None if bias is None else bias.to(dtype)
        ctx.steps, ctx.dtype = steps, weight.dtype
        return weight.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.steps.take()
        if not kept:
            return None, None, None, None
        x, dy = (each[0] if len(each) == 1 else torch.cat(each) for each in kept)
        db = None
        if ctx.steps.added is not None:  # summed by a product, which is faster than a sum
            db = (dy.new_ones(1, len(dy)) @ dy)[0].to(ctx.dtype)
        return (dy.t() @ x).to(ctx.dtype), db, None, None


class _LinearStep(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, plus: Tensor | None, token: Tensor, steps: _Steps
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, steps.shared)  # so that torch notices if it is changed meanwhile
        ctx.steps = steps
        if plus is not None:
            y = torch.addmm(plus, x, steps.shared.t())
        else:
            y = torch.nn.functional.linear(x, steps.shared, steps.added)
        return y, token.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, dtoken: Tensor | None) -> tuple[Tensor | None, ...]:
        if dy is None:  # the result of this step was not used
            ctx.steps.keep(dtoken)
            return None, None, dtoken, None
        x, weight = ctx.saved_tensors
        ctx.steps.keep(dtoken, x.flatten(0, -2), dy.flatten(0, -2))
        plus = dy if ctx.needs_input_grad[1] else None
        return dy @ weight, plus, dy.new_empty(0), None


class DeferredGradAttention:
    """Σ_l softmax_l(z·e_l) e_l over the elements e: G queries z to each set of L elements."""

    def __init__(self, elements: Tensor, is_pad: Tensor | None = None) -> None:
        # elements: (N, L, d)   is_pad: (N, L)
        self._steps = _Steps()
        elements = elements.to(compute_dtype(elements))
        self._token = _AttentionElements.apply(elements, is_pad, self._steps)  # type: ignore[no-untyped-call]

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Queries z (N·G, d) → the sums (N·G, d) and the weights (N·G, L)."""
        z = z.to(self._steps.shared.dtype)
        sums, weights, self._token = _AttentionStep.apply(z, self._token, self._steps)  # type: ignore[no-untyped-call]
        return sums, weights


class _AttentionElements(Function):
    @staticmethod
    def forward(ctx: Any, elements: Tensor, is_pad: Tensor | None, steps: _Steps) -> Tensor:
        steps.shared = elements.contiguous()
        steps.added = is_pad if is_pad is None else is_pad.contiguous()
        ctx.steps = steps
        return elements.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        # An element is in the sums, by its weight, and in the logits, by the query.
        kept = ctx.steps.take()
        if not kept:
            return None, None, None
        z, weights, dsums, dlogits = kept
        n = len(ctx.steps.shared)
        left = torch.cat([x.view(n, -1, x.shape[-1]) for x in weights + dlogits], 1)  # (N, ·, L)
        right = torch.cat([x.reshape(n, -1, x.shape[-1]) for x in dsums + z], 1)  # (N, ·, d)
        return left.transpose(1, 2) @ right, None, None


class _AttentionStep(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, token: Tensor, steps: _Steps) -> tuple[Tensor, Tensor, Tensor]:
        sums, weights = attend(z, steps.shared, steps.added)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(z, weights, steps.shared)
        ctx.steps = steps
        return sums, weights, token.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dsums: Tensor | None, dweights: Tensor | None, dtoken: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if dsums is None and dweights is None:  # the result of this step was not used
            ctx.steps.keep(dtoken)
            return None, dtoken, None
        z, weights, elements = ctx.saved_tensors
        dsums = torch.zeros_like(z) if dsums is None else dsums
        dz, dlogits = attend_backward(dsums, weights, elements, ctx.steps.added, dweights)
        ctx.steps.keep(dtoken, z, weights, dsums, dlogits)
        return dz, dz.new_empty(0), None
