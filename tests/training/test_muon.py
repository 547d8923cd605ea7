"""Muon's steps against what they are by definition, and against AdamW where it leaves them be."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from macnet.training import muon
from macnet.training.muon import (
    ADAM_RMS,
    MOMENTUM,
    Muon,
    is_matrix,
    orthogonalize,
    plan_stacks,
)


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(2, 12), more=st.integers(0, 20), seed=st.integers(0, 1000))
def test_orthogonal_is_the_matrix_with_its_singular_values_near_one(
    rows: int, more: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    u, _ = torch.linalg.qr(torch.randn(rows, rows, generator=generator))
    v, _ = torch.linalg.qr(torch.randn(rows + more, rows + more, generator=generator))
    # The polynomial needs singular values that are no smaller than a hundredth of their norm.
    values = torch.rand(rows, generator=generator) * 0.9 + 0.1
    scale = 10 ** float(torch.randn((), generator=generator))
    matrix = scale * u @ torch.diag(values) @ v[:rows]
    found = u.T @ orthogonalize(matrix[None])[0] @ v[:rows].T  # the identity, if it is u @ v[:rows]
    assert (found.diagonal() - 1).abs().max() < 0.35
    assert (found - torch.diag(found.diagonal())).abs().max() < 1e-3


def test_the_orthogonal_of_nothing_is_nothing() -> None:
    assert orthogonalize(torch.zeros(2, 3, 4)).eq(0).all()


def test_zeros_around_a_matrix_change_nothing() -> None:
    matrices = torch.randn(3, 5, 9, generator=torch.Generator().manual_seed(0))
    larger = torch.zeros(3, 8, 16)
    larger[:, :5, :9] = matrices
    found = orthogonalize(larger)
    torch.testing.assert_close(found[:, :5, :9], orthogonalize(matrices))
    assert found[:, 5:].eq(0).all()
    assert found[:, :, 9:].eq(0).all()


def test_a_stack_holds_smaller_matrices_where_zeros_are_cheap() -> None:
    shapes = [(4, 6), (6, 4), (3, 4, 6), (5, 2, 3, 3), (7, 7), (2, 3)]
    weights = [nn.Parameter(torch.randn(shape)) for shape in shapes]

    def found(**options: int) -> list[tuple[int, int, list[int]]]:
        stacks = plan_stacks(weights, **options)
        return [(s.rows, s.columns, [w.dim() for w in s.weights]) for s in stacks]

    assert found() == [(5, 18, [4]), (7, 7, [2]), (4, 6, [2, 2, 3]), (2, 3, [2])]
    assert found(multiple=8)[0] == (8, 24, [4])
    # (2, 3) fits into (4, 6) at the cost of 4 · 4² · 6 + 2 · 4³ − (4 · 2² · 3 + 2 · 2³) operations,
    # five times.
    assert found(waste=2_240)[2] == (4, 6, [2, 2, 3, 2])
    assert len(found(waste=2_239)) == 4
    assert len(found(waste=10**9)) == 2


def named(*weights: nn.Parameter) -> list[tuple[str, nn.Parameter]]:
    return [(f"weight {i}", weight) for i, weight in enumerate(weights)]


def by_hand(weight: Tensor, gradients: list[Tensor], rate: float, decay: float) -> Tensor:
    """One matrix, step by step."""
    momentum = torch.zeros_like(weight)
    for gradient in gradients:
        momentum = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
        push = (1 - MOMENTUM) * gradient + MOMENTUM * momentum
        flat = push.flatten(1)
        tall = flat.shape[0] > flat.shape[1]
        step = orthogonalize((flat.T if tall else flat)[None])[0]
        step = (step.T if tall else step).reshape(weight.shape)
        length = ADAM_RMS * math.sqrt(max(flat.shape))
        weight = (1 - rate * decay) * weight - rate * length * step
    return weight


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("waste", [0, 10**9])
def test_each_matrix_takes_its_own_step_and_all_else_that_of_adamw(
    decay: float, waste: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "plan_stacks", partial(plan_stacks, waste=waste))
    torch.manual_seed(0)
    # Of some shapes there are several, upright and lying; a stack holds one to a step.
    shapes = [(4, 6), (6, 4), (4, 6), (3, 4, 6), (5, 2, 3, 3), (7, 7)]
    weights = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    vectors = [nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(1, 8))]
    twins = [nn.Parameter(vector.detach().clone()) for vector in vectors]
    before = [weight.detach().clone() for weight in weights]
    optimizer = Muon(named(*weights, *vectors), lr=0.01, weight_decay=decay)
    adamw = torch.optim.AdamW(twins, lr=0.01, weight_decay=decay)
    steps = [[torch.randn_like(weight) for weight in weights] for _ in range(3)]
    for gradients in steps:
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        for vector, twin in zip(vectors, twins, strict=True):
            vector.grad = torch.randn_like(vector)
            twin.grad = vector.grad.clone()
        optimizer.step()
        adamw.step()
    for i, (weight, start) in enumerate(zip(weights, before, strict=True)):
        own = [gradients[i] for gradients in steps]
        if weight.dim() == 3:
            each = [by_hand(w, [g[k] for g in own], 0.01, decay) for k, w in enumerate(start)]
            wanted = torch.stack(each)
        else:
            wanted = by_hand(start, own, 0.01, decay)
        torch.testing.assert_close(weight.detach(), wanted, rtol=1e-4, atol=1e-6)
    for vector, twin in zip(vectors, twins, strict=True):
        torch.testing.assert_close(vector, twin)


def test_a_matrix_without_a_gradient_stays() -> None:
    weights = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))]
    weights[0].grad = torch.randn(2, 3)
    Muon(named(*weights, nn.Parameter(torch.ones(2))), lr=0.1).step()
    assert not weights[0].eq(1).all()
    assert weights[1].eq(1).all()


@pytest.mark.parametrize(
    ("name", "shape", "matrix"),
    [
        ("reasoner.m0", (8,), False),
        ("read.score.weight", (1, 8), False),
        ("question.embedding.weight", (90, 8), False),
        ("read.memory.weight", (8, 8), True),
        ("control.query.position.weight", (12, 8, 16), True),
        ("image.features.0.0.weight", (64, 3, 3, 3), True),
    ],
)
def test_what_maps_vectors_to_vectors_is_a_matrix(
    name: str, shape: tuple[int, ...], matrix: bool
) -> None:
    assert is_matrix(name, torch.zeros(shape)) is matrix
