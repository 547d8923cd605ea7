"""The few layers every unit is built from, initialised as the authors' code does."""

from __future__ import annotations

import functools
import importlib.util
import math

import torch
from torch import Tensor, nn


def linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """W x + b with Glorot-uniform W and zero b."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def scores(d: int, *, bias: bool = False) -> nn.Linear:
    """W^{1×d}. Before a softmax, a bias would add the same to every logit, so there is none."""
    layer = nn.Linear(d, 1, bias=bias)
    bound = math.sqrt(6 / (d + d))  # TensorFlow's Glorot for a vector takes d as both its sizes
    nn.init.uniform_(layer.weight, -bound, bound)
    return layer


class PerStepLinear(nn.Module):
    """W_i x + b_i for each step i, in one product."""

    def __init__(self, steps: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(steps, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(steps, outputs))
        for weight in self.weight:
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor) -> Tensor:
        # x: (B, in) → (steps, B, out)
        weight = self.weight.to(working_dtype(x))  # before it is turned, which is faster
        x = x.expand(len(weight), -1, -1)
        return torch.baddbmm(self.bias[:, None].to(weight), x, weight.transpose(1, 2))


def held_mask(x: Tensor, rate: float, training: bool) -> Tensor | None:
    """A dropout mask like x, to be kept over words or steps (Gal and Ghahramani, 2016)."""
    if not training or rate == 0:
        return None
    # What is kept is scaled by the number nearest to 1/(1 − rate) that x can hold, and is kept as
    # often as that demands: in bfloat16 the values would be 0.3% too large otherwise.
    scale = torch.tensor(1 / (1 - rate), dtype=x.dtype).item()
    mask = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return mask.bernoulli_(1 / scale).mul_(scale)


def drop(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


def takes_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products run on tensor cores there, and Triton is there to write kernels with."""
    low = dtype in (torch.bfloat16, torch.float16)
    return device.type == "cuda" and low and _triton_is_there()


@functools.cache
def _triton_is_there() -> bool:
    """Torch for CUDA brings it along, but not on every platform."""
    return importlib.util.find_spec("triton") is not None


def working_dtype(x: Tensor) -> torch.dtype:
    """In which precision products with x are taken: autocast's, where that is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
