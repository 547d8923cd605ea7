"""The scores of additive attention as Triton kernels, without an array of all pairs of vectors.

    score_ts = v · tanh(q_t + k_s)

for T queries and S keys of u numbers each. As torch computes it, it writes and reads arrays of
(B, T, S, u) several times; here the hyperbolic tangent is computed twice instead, forwards and
backwards, and stays in registers.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor
from torch.autograd.function import once_differentiable

from macnet.models.kernels.lstm import _tanh, largest_power_of_two

UNITS = 64
"""Numbers of each vector that a program takes at once, or fewer if this does not divide u."""


def additive_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The scores (B, T, S), in float32, of queries (B, T, u), keys (B, S, u) and a vector v (u)."""
    scores: Tensor = _AdditiveScores.apply(q, k, v)
    return scores


class _AdditiveScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # q: (B, T, u)   k: (B, S, u)   v: (u)
        q, k = q.contiguous(), k.contiguous()
        (batch, queries, units), keys = q.shape, k.shape[1]
        scores = q.new_empty(batch, queries, keys, dtype=torch.float32)
        with torch.cuda.device_of(q):
            _score[batch * queries,](q, k, v, scores, queries, keys, **_sizes(units, keys))
        ctx.save_for_backward(q, k, v)
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dscores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # dscores: (B, T, S)
        q, k, v = ctx.saved_tensors
        (batch, queries, units), keys = q.shape, k.shape[1]
        dq, dk = torch.empty_like(q), torch.empty_like(k)
        dv = q.new_empty(batch, units, dtype=torch.float32)
        sizes = _sizes(units, keys)
        with torch.cuda.device_of(q):
            _score_backward[batch, units // sizes["UNITS"]](
                *(q, k, v, dscores.contiguous(), dq, dk, dv, queries, keys), **sizes
            )
        return dq, dk, dv.sum(0).to(v.dtype)


def _sizes(units: int, keys: int) -> dict[str, int]:
    """The constants that the kernels are compiled with."""
    block = largest_power_of_two(units, UNITS)
    return {"SIZE": units, "UNITS": block, "KEYS": triton.next_power_of_2(keys)}


@triton.jit
def _score(
    q_ptr,
    k_ptr,
    v_ptr,
    scores_ptr,  # (B, T, S), out
    queries,
    keys,
    SIZE: tl.constexpr,
    UNITS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """All scores of a query."""
    query = tl.program_id(0).to(tl.int64)
    key = tl.arange(0, KEYS)
    exists = key < keys
    acc = tl.zeros((KEYS,), tl.float32)
    for start in range(0, SIZE, UNITS):
        unit = start + tl.arange(0, UNITS)
        q = tl.load(q_ptr + query * SIZE + unit).to(tl.float32)
        v = tl.load(v_ptr + unit).to(tl.float32)
        at = (query // queries * keys + key)[:, None] * SIZE + unit[None]
        k = tl.load(k_ptr + at, mask=exists[:, None], other=0.0).to(tl.float32)
        acc += tl.sum(_tanh(q[None] + k) * v[None], 1)
    tl.store(scores_ptr + query * keys + key, acc, mask=exists)


@triton.jit
def _score_backward(
    q_ptr,
    k_ptr,
    v_ptr,
    dscores_ptr,  # (B, T, S)
    dq_ptr,
    dk_ptr,
    dv_ptr,  # (B, u)
    queries,
    keys,
    SIZE: tl.constexpr,
    UNITS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """The gradients of some units of one question's queries and keys, and its part of v's."""
    question = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    key = tl.arange(0, KEYS)
    exists = key < keys
    at = (question * keys + key)[:, None] * SIZE + unit[None]
    k = tl.load(k_ptr + at, mask=exists[:, None], other=0.0).to(tl.float32)
    v = tl.load(v_ptr + unit).to(tl.float32)
    dk = tl.zeros((KEYS, UNITS), tl.float32)
    dv = tl.zeros((UNITS,), tl.float32)
    for t in range(queries):
        row = question * queries + t
        q = tl.load(q_ptr + row * SIZE + unit).to(tl.float32)
        dscore = tl.load(dscores_ptr + row * keys + key, mask=exists, other=0.0)
        h = _tanh(q[None] + k)  # (S, U)
        dv += tl.sum(dscore[:, None] * h, 0)
        d = dscore[:, None] * v[None] * (1 - h * h)
        dk += d
        dq = tl.sum(d, 0)
        tl.store(dq_ptr + row * SIZE + unit, dq.to(dq_ptr.dtype.element_ty))
    tl.store(dk_ptr + at, dk.to(dk_ptr.dtype.element_ty), mask=exists[:, None])
    tl.store(dv_ptr + question * SIZE + unit, dv)
