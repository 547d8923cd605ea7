"""Muon (Jordan et al., 2024): the steps of matrices have equal singular values.

A logit of the read unit is a product of four learned matrices, and memory passes one p times.
An entry-wise step such as Adam's can be long in a single direction, which such products multiply:
the rate must be low enough for that direction, and all others are learned as slowly. Muon makes
the step of a matrix, the momentum M = UΣVᵀ, into UVᵀ, which is equally long in every direction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from macnet.models.kernels.streams import run_on_streams

MOMENTUM = 0.95
# An odd polynomial that, applied five times, brings singular values from a hundredth on to about 1;
# smaller ones grow, but not so far.
POLYNOMIAL, ITERATIONS = (3.4445, -4.7750, 2.0315), 5
ADAM_RMS = 0.2  # the root mean square of Adam's steps, in learning rates
BETAS, EPSILON = (0.9, 0.999), 1e-8  # of AdamW
# On a GPU, so many operations with zeros (40 µs of an H200's) are cheaper than to start the kernels
# of another stack; and tensor cores are slow where the size of a matrix is no multiple of 8.
ON_A_GPU = {"waste": 12_000_000_000, "multiple": 8}


class Muon:
    """Muon for matrices, AdamW for vectors and embeddings.

    Muon's steps are as large as Adam's usually are, so that one learning rate does for both.

    It is no `torch.optim.Optimizer`, though it is used like one: the first of those imports all of
    torch's compiler, which takes as long as hundreds of steps.
    """

    def __init__(
        self,
        weights: Iterable[tuple[str, nn.Parameter]],
        *,
        lr: float | Tensor,
        weight_decay: float = 0.0,
        fused: bool = True,
        capturable: bool = False,
    ) -> None:
        """`lr` may be a tensor, which a captured CUDA graph reads at each step."""
        parts = defaultdict[bool, list[nn.Parameter]](list)
        for name, weight in weights:
            parts[is_matrix(name, weight)].append(weight)
        self._matrices, self._others = parts[True], parts[False]
        self._adamw = partial(
            adamw,
            amsgrad=False,
            maximize=False,
            fused=fused,
            capturable=capturable,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=EPSILON,
        )
        settings = {"lr": lr, "weight_decay": weight_decay}
        self.param_groups: list[dict[str, Any]] = [
            {"params": part, **settings} for part in (self._matrices, self._others)
        ]
        self.state = defaultdict[Tensor, dict[str, Any]](dict)

    def zero_grad(self) -> None:
        """Remove all gradients."""
        for weight in (*self._matrices, *self._others):
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Make a step with the gradients of the weights."""
        weights = [weight for weight in self._matrices if weight.grad is not None]
        updates = dict(zip(weights, self._nesterov(weights), strict=True))
        on_gpu = bool(weights) and weights[0].is_cuda
        stacks = plan_stacks(weights, **(ON_A_GPU if on_gpu else {}))
        tasks = [partial(self._step_together, stack, updates) for stack in stacks]
        device = (self._matrices + self._others)[0].device
        run_on_streams([*tasks, self._step_others], device)

    def _step_others(self) -> None:
        """Make the steps of all that is no matrix."""
        weights: list[Tensor] = []
        gradients: list[Tensor] = []
        for weight in self._others:
            if weight.grad is not None:
                weights.append(weight)
                gradients.append(weight.grad)
                if not self.state[weight]:
                    self.state[weight] = {
                        "step": torch.zeros((), device=weight.device),
                        "exp_avg": torch.zeros_like(weight),
                        "exp_avg_sq": torch.zeros_like(weight),
                    }
        kept = [self.state[weight] for weight in weights]
        steps, averages, squares = (
            [state[name] for state in kept] for name in ("step", "exp_avg", "exp_avg_sq")
        )
        settings = {name: self.param_groups[1][name] for name in ("lr", "weight_decay")}
        self._adamw(weights, gradients, averages, squares, [], steps, **settings)

    def _step_together(self, stack: Stack, updates: Mapping[nn.Parameter, Tensor]) -> None:
        """Make the steps of the weights whose matrices are in a stack."""
        counts = [matrix_shape(weight)[0] for weight in stack.weights]
        like = updates[stack.weights[0]]
        matrices = like.new_zeros(sum(counts), stack.rows, stack.columns)
        for weight, part in zip(stack.weights, matrices.split(counts), strict=True):
            _part_of(weight, part).copy_(updates[weight])
        steps = orthogonalize(matrices).split(counts)
        rate, decay = self.param_groups[0]["lr"], self.param_groups[0]["weight_decay"]
        if decay:
            torch._foreach_mul_([*stack.weights], 1 - rate * decay)
        for weight, part in zip(stack.weights, steps, strict=True):
            step = _part_of(weight, part)
            length = ADAM_RMS * math.sqrt(max(matrix_shape(weight)[1:]))
            if isinstance(rate, Tensor):
                weight.addcmul_(step, rate, value=-length)
            else:
                weight.sub_(step, alpha=rate * length)

    def _nesterov(self, weights: Sequence[nn.Parameter]) -> Sequence[Tensor]:
        """Nesterov's momentum of each weight, updated by its gradient."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] = {"momentum": torch.zeros_like(weight)}
        momenta = [self.state[weight]["momentum"] for weight in weights]
        if not weights:
            return []
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        updates: Sequence[Tensor] = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        return updates


class Stack(NamedTuple):
    """Matrices that are made orthogonal together, smaller ones filled up with zeros."""

    rows: int
    columns: int
    weights: list[nn.Parameter]


def plan_stacks(
    weights: Sequence[nn.Parameter], *, waste: int = 0, multiple: int = 1
) -> list[Stack]:
    """Which weights share a stack: those of one shape, or its transpose.

    Those of a smaller shape do, too, if that takes at most `waste` operations more. The sizes of
    stacks are multiples of `multiple`.
    """
    same_shape = defaultdict[tuple[int, int], list[nn.Parameter]](list)
    for weight in weights:
        rows, columns = sorted(matrix_shape(weight)[1:])
        same_shape[rows, columns].append(weight)
    stacks: list[Stack] = []
    for (rows, columns), few in sorted(same_shape.items(), key=lambda item: -math.prod(item[0])):
        count = sum(matrix_shape(weight)[0] for weight in few)
        most = count * _operations(rows, columns) + waste
        fitting = [
            stack
            for stack in stacks
            if stack.rows >= rows
            and stack.columns >= columns
            and count * _operations(stack.rows, stack.columns) <= most
        ]
        if fitting:
            best = min(fitting, key=lambda stack: _operations(stack.rows, stack.columns))
            best.weights.extend(few)
        else:
            rows, columns = (-(-size // multiple) * multiple for size in (rows, columns))
            stacks.append(Stack(rows, columns, few))
    return stacks


def _part_of(weight: Tensor, matrices: Tensor) -> Tensor:
    """The part of larger matrices, in wide form, that a weight takes up, in its own shape."""
    rows, columns = matrix_shape(weight)[1:]
    part = matrices[:, : min(rows, columns), : max(rows, columns)]
    part = part if rows <= columns else part.mT
    return part if weight.dim() == 3 else part[0].unflatten(1, weight.shape[1:])


def _operations(rows: int, columns: int) -> int:
    """Floating-point operations that make a matrix orthogonal."""
    return ITERATIONS * (4 * rows * rows * columns + 2 * rows**3)


def is_matrix(name: str, weight: Tensor) -> bool:
    """Whether a weight maps vectors to vectors.

    A table of embeddings does not, nor does a bank of biases, `bias_1` of one module each.
    """
    is_list = "embedding" in name or name.rpartition(".")[2].startswith("bias_")
    return weight.dim() > 1 and min(matrix_shape(weight)[1:]) > 1 and not is_list


def matrix_shape(weight: Tensor) -> tuple[int, int, int]:
    """The shape (n, rows, columns) of a weight as a stack of matrices; of a convolution, n is 1."""
    if weight.dim() == 3:
        return len(weight), weight.shape[1], weight.shape[2]
    return 1, len(weight), math.prod(weight.shape[1:])


def orthogonalize(matrices: Tensor) -> Tensor:
    """For each of (n, r, c), r ≤ c, nearly the nearest with orthonormal rows: UVᵀ for UΣVᵀ."""
    low = torch.bfloat16 if matrices.is_cuda else torch.float32
    norm = matrices.norm(dim=(1, 2), keepdim=True)
    x = (matrices / (norm + 1e-12)).to(low)
    a, b, c = POLYNOMIAL
    for _ in range(ITERATIONS):
        square = x @ x.mT
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        x = factor @ x
    near: Tensor = x.to(matrices.dtype)
    return near
