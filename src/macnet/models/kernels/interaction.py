"""The elementwise parts of `interaction.py`, and their derivatives, as Triton kernels.

    X = m ⊙ k                                  _multiply
    Z = ELU(X hiddenᵀ + direct)                a product, _add_elu
    V = Z combineᵀ + bias                      a product
    logit = score · dropout(ELU(c ⊙ V))        _score

Each kernel reads and writes a large tensor once; sums over questions or elements are taken on the
way. Dropout's mask is not stored: the backward pass samples it again from the same seed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# The part of a question's L×d values that a program computes at a time: elements, columns, and the
# warps that share them. Of several, these were the fastest on an H200 at 64×10×196×512.
ELEMENTWISE_TILE = (16, 128, 4)
REDUCTION_TILE = (8, 256, 1)  # for sums over elements: each thread has its own columns
SCORE_TILE = (8, 4)  # elements and warps, for sums over all columns


class InteractionLogits(Function):
    """`interaction.interaction_logits` by the kernels below."""

    @staticmethod
    def forward(
        ctx: Any,
        m: Tensor,
        c: Tensor,
        k: Tensor,
        direct: Tensor,
        hidden: Tensor,
        combine: Tensor,
        bias: Tensor,
        score: Tensor,
        rate: float,
    ) -> Tensor:
        m, c, k, direct = (x.contiguous() for x in (m, c, k, direct))
        (n, groups, d), size = m.shape, k.shape[1]
        grid, options = _tiles(ELEMENTWISE_TILE, n, groups, size, d)
        x = k.new_empty(n, groups, size, d)
        _multiply[grid](m, k, x, **options)
        z = F.linear(x, hidden)
        _add_elu[grid](z, direct, **options)
        v = F.linear(z, combine, bias)
        # Sampled only where it is needed: an evaluation must not change the training after it.
        seed = torch.randint(2**31, (1,), device=k.device) if rate else m.new_empty(0)
        logits = k.new_empty(n, groups, size, dtype=torch.float32)
        elements, warps = SCORE_TILE
        _score[(n * groups, triton.cdiv(size, elements))](
            *(v, c, score, seed, logits, size, rate),
            D=d,
            ELEMENTS=elements,
            HAS_DROPOUT=rate > 0,
            num_warps=warps,
        )
        ctx.save_for_backward(m, c, k, hidden, combine, score, x, z, v, seed)
        ctx.rate = rate
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlogits: Tensor) -> tuple[Tensor | None, ...]:
        m, c, k, hidden, combine, score, x, z, v, seed = ctx.saved_tensors
        n, groups, size, d = x.shape
        grid, options = _tiles(ELEMENTWISE_TILE, n, groups, size, d)
        dv, dc = torch.empty_like(v), torch.empty_like(c)
        dscore, dbias = (v.new_empty(n * groups, d, dtype=torch.float32) for _ in range(2))
        _score_backward[(n * groups, grid[2])](
            *(v, c, score, seed, dlogits.contiguous(), dv, dc, dscore, dbias),
            rate=ctx.rate,
            HAS_DROPOUT=ctx.rate > 0,
            **options,
        )
        dcombine = dv.view(-1, d).t() @ z.view(-1, d)
        dy = dv @ combine
        ddirect = torch.empty_like(k)
        _add_elu_backward[grid](z, dy, ddirect, **options)
        dhidden = dy.view(-1, d).t() @ x.view(-1, d)
        dx = dy @ hidden
        dk = torch.empty_like(k)
        grid, options = _tiles(REDUCTION_TILE, n, groups, size, d)
        dm = m.new_empty(grid[1], n, groups, d, dtype=torch.float32)
        _multiply_backward[grid](m, k, dx, dm, dk, **options)
        ones = v.new_ones(n * groups, dtype=torch.float32)  # sums as products: faster
        dbias, dscore = (ones @ dbias).to(combine.dtype), (ones @ dscore).to(score.dtype)
        return dm.sum(0).to(m.dtype), dc, dk, ddirect, dhidden, dcombine, dbias, dscore, None


def _tiles(
    tile: tuple[int, int, int], n: int, groups: int, size: int, d: int
) -> tuple[tuple[int, int, int], dict[str, int]]:
    """The grid of programs over images, elements and columns, and their arguments."""
    elements, columns, warps = tile
    columns = min(columns, d)
    sizes = {"groups": groups, "size": size, "D": d}
    tile_sizes = {"ELEMENTS": elements, "COLUMNS": columns, "num_warps": warps}
    return (n, triton.cdiv(size, elements), d // columns), {**sizes, **tile_sizes}


@triton.jit
def _tile(size, D: tl.constexpr, ELEMENTS: tl.constexpr, COLUMNS: tl.constexpr):
    """This program's part of L×d values, which of them exist, and its columns."""
    element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)[:, None]
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    return element * D + column[None], element < size, column


@triton.jit
def _multiply(
    m_ptr,
    k_ptr,
    x_ptr,
    groups,
    size,
    D: tl.constexpr,
    ELEMENTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    at, exists, column = _tile(size, D, ELEMENTS, COLUMNS)
    k = tl.load(k_ptr + n * size * D + at, mask=exists)
    for g in range(groups):
        question = n * groups + g
        m = tl.load(m_ptr + question * D + column[None])
        tl.store(x_ptr + question * size * D + at, m * k, mask=exists)


@triton.jit
def _multiply_backward(
    m_ptr,
    k_ptr,
    dx_ptr,
    dm_ptr,
    dk_ptr,
    groups,
    size,
    D: tl.constexpr,
    ELEMENTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    at, exists, column = _tile(size, D, ELEMENTS, COLUMNS)
    k = tl.load(k_ptr + n * size * D + at, mask=exists, other=0.0).to(tl.float32)
    dk = tl.zeros((ELEMENTS, COLUMNS), tl.float32)
    # Each block of elements has its own part of dm; they are added up afterwards.
    dm_ptr += tl.program_id(1).to(tl.int64) * tl.num_programs(0) * groups * D
    for g in range(groups):
        question = n * groups + g
        m = tl.load(m_ptr + question * D + column[None]).to(tl.float32)
        dx = tl.load(dx_ptr + question * size * D + at, mask=exists, other=0.0).to(tl.float32)
        dk += dx * m
        tl.store(dm_ptr + question * D + column, tl.sum(dx * k, 0))
    tl.store(dk_ptr + n * size * D + at, dk.to(dk_ptr.dtype.element_ty), mask=exists)


@triton.jit
def _add_elu(
    y_ptr, direct_ptr, groups, size, D: tl.constexpr, ELEMENTS: tl.constexpr, COLUMNS: tl.constexpr
):
    """y becomes z, in place."""
    n = tl.program_id(0).to(tl.int64)
    at, exists, _ = _tile(size, D, ELEMENTS, COLUMNS)
    direct = tl.load(direct_ptr + n * size * D + at, mask=exists, other=0.0).to(tl.float32)
    for g in range(groups):
        here = y_ptr + (n * groups + g) * size * D + at
        y = tl.load(here, mask=exists, other=0.0) + direct
        z = tl.where(y > 0, y, tl.exp(y) - 1)
        tl.store(here, z.to(y_ptr.dtype.element_ty), mask=exists)


@triton.jit
def _add_elu_backward(
    z_ptr,
    dz_ptr,
    ddirect_ptr,
    groups,
    size,
    D: tl.constexpr,
    ELEMENTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """dz becomes dy, in place."""
    n = tl.program_id(0).to(tl.int64)
    at, exists, _ = _tile(size, D, ELEMENTS, COLUMNS)
    ddirect = tl.zeros((ELEMENTS, COLUMNS), tl.float32)
    for g in range(groups):
        here = (n * groups + g) * size * D + at
        z = tl.load(z_ptr + here, mask=exists, other=0.0).to(tl.float32)
        dz = tl.load(dz_ptr + here, mask=exists, other=0.0)
        dy = tl.where(z > 0, 1.0, z + 1) * dz
        ddirect += dy
        tl.store(dz_ptr + here, dy.to(dz_ptr.dtype.element_ty), mask=exists)
    tl.store(ddirect_ptr + n * size * D + at, ddirect.to(ddirect_ptr.dtype.element_ty), mask=exists)


@triton.jit
def _dropout_factors(
    seed_ptr, row, first, rate, D: tl.constexpr, ELEMENTS: tl.constexpr, COLUMNS: tl.constexpr
):
    """1/(1 − rate) where a value is kept and 0 where it is dropped: (ELEMENTS, COLUMNS)."""
    # A draw of Philox is four 32-bit numbers, enough for eight values.
    draw = row[:, None] * (D // 8) + first // 8 + tl.arange(0, COLUMNS // 8)[None]
    a, b, c, d = tl.randint4x(tl.load(seed_ptr), draw)
    words = tl.join(tl.join(a, b), tl.join(c, d)).to(tl.uint32, bitcast=True)
    words = words.reshape(ELEMENTS, COLUMNS // 2)
    halves = tl.join(words & 0xFFFF, words >> 16).reshape(ELEMENTS, COLUMNS)
    return tl.where(halves.to(tl.float32) >= rate * 65536, 1 / (1 - rate), 0.0)


@triton.jit
def _score(
    v_ptr,
    c_ptr,
    score_ptr,
    seed_ptr,
    logits_ptr,
    size,
    rate,
    D: tl.constexpr,
    ELEMENTS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):
    question = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    exists = element < size
    column = tl.arange(0, D)[None]
    c = tl.load(c_ptr + question * D + column).to(tl.float32)
    score = tl.load(score_ptr + column).to(tl.float32)
    here = (question * size + element[:, None]) * D + column
    t = tl.load(v_ptr + here, mask=exists[:, None], other=0.0) * c
    e = tl.where(t > 0, t, tl.exp(t) - 1)
    if HAS_DROPOUT:
        e *= _dropout_factors(seed_ptr, tl.program_id(0) * size + element, 0, rate, D, ELEMENTS, D)
    tl.store(logits_ptr + question * size + element, tl.sum(e * score, 1), mask=exists)


@triton.jit
def _score_backward(
    v_ptr,
    c_ptr,
    score_ptr,
    seed_ptr,
    dlogits_ptr,
    dv_ptr,
    dc_ptr,
    dscore_ptr,
    dbias_ptr,
    groups,
    size,
    rate,
    D: tl.constexpr,
    ELEMENTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_DROPOUT: tl.constexpr,
):
    question = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * COLUMNS
    column = first + tl.arange(0, COLUMNS)
    c = tl.load(c_ptr + question * D + column[None]).to(tl.float32)
    score = tl.load(score_ptr + column[None]).to(tl.float32)
    dc = tl.zeros((ELEMENTS, COLUMNS), tl.float32)
    dscore = tl.zeros((ELEMENTS, COLUMNS), tl.float32)
    dbias = tl.zeros((ELEMENTS, COLUMNS), tl.float32)
    for start in range(0, size, ELEMENTS):
        element = start + tl.arange(0, ELEMENTS)
        exists = (element < size)[:, None]
        here = (question * size + element[:, None]) * D + column[None]
        v = tl.load(v_ptr + here, mask=exists, other=0.0).to(tl.float32)
        dlogit = tl.load(dlogits_ptr + question * size + element, mask=element < size, other=0.0)
        dkept = tl.broadcast_to(dlogit[:, None], (ELEMENTS, COLUMNS))
        if HAS_DROPOUT:
            row = tl.program_id(0) * size + element
            dkept *= _dropout_factors(seed_ptr, row, first, rate, D, ELEMENTS, COLUMNS)
        t = v * c
        e = tl.exp(t)
        dt = dkept * score * tl.where(t > 0, 1.0, e)
        dv = dt * c
        dc += dt * v
        dscore += dkept * tl.where(t > 0, t, e - 1)
        dbias += dv
        tl.store(dv_ptr + here, dv.to(dv_ptr.dtype.element_ty), mask=exists)
    tl.store(dc_ptr + question * D + column, tl.sum(dc, 0).to(dc_ptr.dtype.element_ty))
    tl.store(dscore_ptr + question * D + column, tl.sum(dscore, 0))
    tl.store(dbias_ptr + question * D + column, tl.sum(dbias, 0))
