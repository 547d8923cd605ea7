"""Muon (Jordan et al., 2024): matrices learn by steps of which all singular values are alike.

A logit of the read unit is a product of four learned matrices, and memory passes one p times.
An entry-wise step such as Adam's can be one long push in a single direction, which such products
multiply: the rate must be low enough for that push, and everything else learns as slowly. Muon
makes the step of a matrix, the momentum M = UΣVᵀ, into UVᵀ: as far in every direction, and no
farther in any.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
# An odd polynomial that, applied five times, brings singular values from a hundredth on to about 1;
# smaller ones grow, but not so far.
POLYNOMIAL, TIMES = (3.4445, -4.7750, 2.0315), 5
LIKE_ADAM = 0.2  # the root mean square of Adam's steps, in learning rates


class Muon(torch.optim.AdamW):
    """Steps of matrices are made orthogonal; vectors and tables take those of AdamW.

    Steps are as large as Adam's usually are, so that one learning rate does for both.
    """

    def __init__(self, weights: Iterable[tuple[str, nn.Parameter]], **settings: Any) -> None:
        parts = defaultdict[bool, list[nn.Parameter]](list)
        for name, weight in weights:
            parts[is_matrix(name, weight)].append(weight)
        self._matrices = parts[True]
        super().__init__([{"params": part} for part in parts.values()], **settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        # Matrices of one shape, lying or upright, are made orthogonal together.
        alike = defaultdict[torch.Size, list[tuple[nn.Parameter, Tensor]]](list)
        for weight in self._matrices:
            if weight.grad is not None:
                lying = _laid(stacked(self._pushed(weight, weight.grad)))
                alike[lying.shape[1:]].append((weight, lying))
        for shape, those in alike.items():
            steps = orthogonal(torch.cat([lying for _, lying in those]))
            sizes = [len(lying) for _, lying in those]
            for (weight, _), step in zip(those, steps.split(sizes), strict=True):
                self._move(weight, step, LIKE_ADAM * math.sqrt(shape[1]))
                weight.grad = None  # what is left is AdamW's
        super().step()

    def _move(self, weight: nn.Parameter, step: Tensor, length: float) -> None:
        rate, decay = self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]
        if decay:
            weight.mul_(1 - rate * decay)
        own = stacked(weight)
        upright = step if own.shape == step.shape else step.mT
        weight.sub_(upright.reshape(weight.shape) * (rate * length))

    def _pushed(self, weight: nn.Parameter, gradient: Tensor) -> Tensor:
        """Nesterov's momentum: where the weight is going, and its last push once more."""
        state = self.state[weight]
        if not state:
            state["momentum"] = torch.zeros_like(weight)
        momentum: Tensor = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        return gradient.lerp(momentum, MOMENTUM)


def is_matrix(name: str, weight: Tensor) -> bool:
    """Whether a weight maps vectors to vectors; a table of word vectors does not."""
    return weight.dim() > 1 and min(stacked(weight).shape[1:]) > 1 and "embedding" not in name


def stacked(weight: Tensor) -> Tensor:
    """(n, rows, columns): a stack of matrices, one to a step or direction; or one, a filter's."""
    return weight if weight.dim() == 3 else weight.flatten(1)[None]


def _laid(matrices: Tensor) -> Tensor:
    """With no more rows than columns."""
    return matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT


def orthogonal(matrices: Tensor) -> Tensor:
    """Of each of (n, r, c), r ≤ c, the nearest with orthonormal rows, nearly: UVᵀ for UΣVᵀ."""
    low = torch.bfloat16 if matrices.is_cuda else torch.float32
    norm = matrices.norm(dim=(1, 2), keepdim=True)
    x = (matrices / (norm + 1e-12)).to(low)
    a, b, c = POLYNOMIAL
    for _ in range(TIMES):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    near: Tensor = x.to(matrices.dtype)
    return near
