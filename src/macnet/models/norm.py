"""Batch normalisation over the batch of all processes, so that several train as one does.

`torch.nn.SyncBatchNorm` does not support tensors on a CPU, where the tests run.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from macnet import distributed
from macnet.errors import InputError


class BatchNorm2d(nn.BatchNorm2d):
    """torch.nn.BatchNorm2d; in training, mean and variance are those over all processes.

    Each process must have a part of the batch of the same shape.
    """

    def forward(self, x: Tensor) -> Tensor:
        # x: (N, C, H, W)
        values = x.numel() // x.shape[1] * distributed.size()  # of a channel
        if self.training:
            check_values(values)
        if not self.training or distributed.size() == 1:
            return super().forward(x)
        assert self.running_mean is not None
        mean, var = _mean_and_variance(x.detach().to(self.running_mean.dtype))
        self.track(mean, var, values)
        weight = torch.ones_like(var) if self.weight is None else self.weight
        bias = torch.zeros_like(mean) if self.bias is None else self.bias
        y: Tensor = _Normalize.apply(x, weight, bias, mean, var, self.eps)  # type: ignore[no-untyped-call]
        return y

    @torch.no_grad()
    def track(self, mean: Tensor, var: Tensor, values: int) -> None:
        """Move the running statistics towards those (C) of a batch with so many values each."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * (values / (values - 1)), self.momentum)


def check_values(count: int) -> None:
    """Raise an InputError if a channel has one value only, which has no variance."""
    if count == 1:
        raise InputError(
            "a batch with one value of each channel cannot be normalised; take more images or "
            "questions in a batch"
        )


def _mean_and_variance(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (C) of each channel, over all processes."""
    # Each puts its own beside those of the others: a sum of squares would lose digits.
    shares = x.new_zeros(distributed.size(), 2, x.shape[1])
    shares[distributed.rank()] = torch.stack(torch.var_mean(x, (0, 2, 3), correction=0))
    within, means = distributed.all_reduce_sum(shares).unbind(1)  # (processes, C)
    between, mean = torch.var_mean(means, 0, correction=0)
    return mean, within.mean(0) + between


class _Normalize(Function):
    """y = w x̂ + b with x̂ = (x − mean)/√(var + ε), whose mean and variance depend on x as well.

    With σ = √(var + ε) and averages over the batch of all processes,

        dx = w/σ (dy − average(dy) − x̂ average(dy x̂)).

    Its first term is the gradient where mean and variance are given, and the others are a
    normalisation of x with other weights: both are torch's own kernels, for every device.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps = eps
        return F.batch_norm(x, mean, var, weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            dy, x, weight, mean, var, None, None, False, ctx.eps, [True, True, True]
        )
        sums = distributed.all_reduce_sum(torch.stack([dweight, dbias]))  # of dy x̂ and of dy
        values = x.numel() // x.shape[1] * distributed.size()
        of_x, of_one = -sums * (weight * (var + ctx.eps).rsqrt() / values)
        dx = dx + F.batch_norm(x, mean, var, of_x, of_one, eps=ctx.eps)
        return dx, dweight, dbias, None, None, None
