"""Batch normalisation over the batch of all processes, so that several train as one would.

torch's own, `SyncBatchNorm`, refuses tensors on a CPU, where the tests are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from macnet import parallel
from macnet.errors import InputError


class BatchNorm2d(nn.BatchNorm2d):
    """torch's; with several processes, in training, the mean and variance are those of all.

    The shares of a batch must be of one shape.
    """

    def __init__(self, channels: int, *, affine: bool = True) -> None:
        super().__init__(channels, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        # x: (N, C, H, W)
        values = x.numel() // x.shape[1] * parallel.size()  # of a channel
        if self.training and values == 1:
            raise InputError(
                "one image of one place cannot be normalised; take more images in a batch, or "
                "larger ones"
            )
        if not self.training or parallel.size() == 1:
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        mean, var = _of_all(x.detach().to(self.running_mean.dtype))
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (values / (values - 1)), self.momentum)
        weight = torch.ones_like(var) if self.weight is None else self.weight
        bias = torch.zeros_like(mean) if self.bias is None else self.bias
        y: Tensor = _Normalise.apply(x, weight, bias, mean, var, self.eps)  # type: ignore[no-untyped-call]
        return y


def _of_all(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (C) of each channel, over all processes."""
    # Each puts its own beside those of the others: a sum of squares would lose digits.
    shares = x.new_zeros(parallel.size(), 2, x.shape[1])
    shares[parallel.rank()] = torch.stack(torch.var_mean(x, (0, 2, 3), correction=0))
    within, means = parallel.sum_over_all(shares).unbind(1)  # (processes, C)
    between, mean = torch.var_mean(means, 0, correction=0)
    return mean, within.mean(0) + between


class _Normalise(Function):
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
        sums = parallel.sum_over_all(torch.stack([dweight, dbias]))  # of dy x̂ and of dy
        values = x.numel() // x.shape[1] * parallel.size()
        of_x, of_one = -sums * (weight * (var + ctx.eps).rsqrt() / values)
        dx = dx + F.batch_norm(x, mean, var, of_x, of_one, eps=ctx.eps)
        return dx, dweight, dbias, None, None, None
