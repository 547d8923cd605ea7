"""Layers that every unit is built from, initialised as the authors' code does."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

HAS_TRITON = importlib.util.find_spec("triton") is not None
"""Whether Triton is installed: torch for CUDA brings it along, but not on every platform."""


class Linear(nn.Linear):
    """W x + b with Glorot-uniform W and zero b."""

    __call__: Callable[[nn.Module, Tensor], Tensor]

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        nn.init.xavier_uniform_(self.weight)
        if bias:
            nn.init.zeros_(self.bias)


def score_layer(d: int, *, bias: bool = False) -> nn.Linear:
    """W^{1×d}. Before a softmax, a bias would add the same to every logit, so there is none."""
    layer = nn.Linear(d, 1, bias=bias)
    bound = math.sqrt(6 / (d + d))  # TensorFlow's Glorot for a vector takes d as both its sizes
    nn.init.uniform_(layer.weight, -bound, bound)
    return layer


class PerStepLinear(nn.Module):
    """W_i x + b_i for each step i, in one product."""

    __call__: Callable[[nn.Module, Tensor], Tensor]

    def __init__(self, steps: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(steps, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(steps, outputs))
        for weight in self.weight:
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor) -> Tensor:
        # x: (B, in) → (steps, B, out)
        weight = self.weight.to(compute_dtype(x))  # before it is turned, which is faster
        x = x.expand(len(weight), -1, -1)
        return torch.baddbmm(self.bias[:, None].to(weight), x, weight.transpose(1, 2))


def variational_dropout_mask(x: Tensor, rate: float, training: bool) -> Tensor | None:
    """A dropout mask like x, to be kept over words or steps (Gal and Ghahramani, 2016)."""
    if not training or rate == 0:
        return None
    # What is kept is scaled by the number nearest to 1/(1 − rate) that x can hold, and is kept as
    # often as that demands: in bfloat16 the values would be 0.3% too large otherwise.
    scale = torch.tensor(1 / (1 - rate), dtype=x.dtype).item()
    mask = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return mask.bernoulli_(1 / scale).mul_(scale)


def apply_mask(x: Tensor, mask: Tensor | None) -> Tensor:
    """x ⊙ mask, or x if there is no mask."""
    return x if mask is None else x * mask


def can_use_triton(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the Triton kernels apply: bfloat16 or float16 on CUDA, and Triton is installed."""
    return HAS_TRITON and device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def needs_gradient(*inputs: Tensor | None) -> bool:
    """Whether a backward pass may follow; inside a Function nothing tells that no_grad is on."""
    given = (tensor for tensor in inputs if tensor is not None)
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)


def has_large_shared_memory(device: torch.device) -> bool:
    """Whether a GPU's processors have 227 KB for a program, as H100, H200 and B200 do."""
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def compute_dtype(x: Tensor) -> torch.dtype:
    """The precision of products with x: autocast's where that is on, else that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
