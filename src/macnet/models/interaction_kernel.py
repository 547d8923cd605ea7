"""The elementwise parts of `interaction.py`, and their derivatives, as Triton kernels.

    X = m ⊙ k          Y = X hiddenᵀ           meet
    Z = ELU(Y + direct)                        activate
    V = Z combineᵀ + bias                      a product alone
    logit = score · dropout(ELU(c ⊙ V))        judge

Each kernel reads and writes a large tensor once; sums over questions or elements are taken on the
way. Dropout's mask is never stored: it is drawn again in the backward pass from the same seed.
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

# Of the L×d values of a question, what a program takes at a time: elements, columns, and the warps
# that share them. Of several, these were the fastest on an H200 at 64×10×196×512.
TILE = (16, 128, 4)
SUMMED = (8, 256, 1)  # where sums over elements are taken: so, each thread has its own columns
JUDGED = (8, 4)  # where whole rows are taken


class Interact(Function):
    """`interaction.interact`, where it is not plain."""

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
        grid, options = _tiles(TILE, n, groups, size, d)
        x = k.new_empty(n, groups, size, d)
        _meet[grid](m, k, x, **options)
        z = F.linear(x, hidden)
        _activate[grid](z, direct, **options)
        v = F.linear(z, combine, bias)
        # Drawn only where it is needed: an evaluation is not to change the training after it.
        seed = torch.randint(2**31, (1,), device=k.device) if rate else m.new_empty(0)
        logits = k.new_empty(n, groups, size, dtype=torch.float32)
        elements, warps = JUDGED
        _judge[(n * groups, triton.cdiv(size, elements))](
            *(v, c, score, seed, logits, size, rate),
            D=d,
            ELEMENTS=elements,
            DROPS=rate > 0,
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
        grid, options = _tiles(TILE, n, groups, size, d)
        dv, dc = torch.empty_like(v), torch.empty_like(c)
        dscore, dbias = (v.new_empty(n * groups, d, dtype=torch.float32) for _ in range(2))
        _judge_back[(n * groups, grid[2])](
            *(v, c, score, seed, dlogits.contiguous(), dv, dc, dscore, dbias),
            rate=ctx.rate,
            DROPS=ctx.rate > 0,
            **options,
        )
        dcombine = dv.view(-1, d).t() @ z.view(-1, d)
        dy = dv @ combine
        ddirect = torch.empty_like(k)
        _activate_back[grid](z, dy, ddirect, **options)
        dhidden = dy.view(-1, d).t() @ x.view(-1, d)
        dx = dy @ hidden
        dk = torch.empty_like(k)
        grid, options = _tiles(SUMMED, n, groups, size, d)
        dm = m.new_empty(grid[1], n, groups, d, dtype=torch.float32)
        _meet_back[grid](m, k, dx, dm, dk, **options)
        ones = v.new_ones(n * groups, dtype=torch.float32)  # sums as products: faster
        return (
            dm.sum(0).to(m.dtype),
            dc,
            dk,
            ddirect,
            dhidden,
            dcombine,
            (ones @ dbias).to(combine.dtype),
            (ones @ dscore).to(score.dtype),
            None,
        )


def _tiles(
    tile: tuple[int, int, int], n: int, groups: int, size: int, d: int
) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Programs over images, elements and columns, and what they are told."""
    elements, columns, warps = tile
    columns = min(columns, d)
    return (n, triton.cdiv(size, elements), d // columns), {
        "groups": groups,
        "size": size,
        "D": d,
        "ELEMENTS": elements,
        "COLUMNS": columns,
        "num_warps": warps,
    }


@triton.jit
def _tile(size, D: tl.constexpr, ELEMENTS: tl.constexpr, COLUMNS: tl.constexpr):
    """This program's part of L×d values, which of them exist, and its columns."""
    element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)[:, None]
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    return element * D + column[None], element < size, column


@triton.jit
def _meet(
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
def _meet_back(
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
def _activate(
    y_ptr,
    direct_ptr,
    groups,
    size,
    D: tl.constexpr,
    ELEMENTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """In place."""
    n = tl.program_id(0).to(tl.int64)
    at, exists, _ = _tile(size, D, ELEMENTS, COLUMNS)
    direct = tl.load(direct_ptr + n * size * D + at, mask=exists, other=0.0).to(tl.float32)
    for g in range(groups):
        here = y_ptr + (n * groups + g) * size * D + at
        y = tl.load(here, mask=exists, other=0.0) + direct
        z = tl.where(y > 0, y, tl.exp(y) - 1)
        tl.store(here, z.to(y_ptr.dtype.element_ty), mask=exists)


@triton.jit
def _activate_back(
    z_ptr,
    dz_ptr,
    ddirect_ptr,
    groups,
    size,
    D: tl.constexpr,
    ELEMENTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """In place: dz becomes dy."""
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
def _kept(
    seed_ptr,
    row,
    first,
    rate,
    D: tl.constexpr,
    ELEMENTS: tl.constexpr,
    COLUMNS: tl.constexpr,
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
def _judge(
    v_ptr,
    c_ptr,
    score_ptr,
    seed_ptr,
    logits_ptr,
    size,
    rate,
    D: tl.constexpr,
    ELEMENTS: tl.constexpr,
    DROPS: tl.constexpr,
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
    if DROPS:
        e *= _kept(seed_ptr, tl.program_id(0) * size + element, 0, rate, D, ELEMENTS, D)
    tl.store(logits_ptr + question * size + element, tl.sum(e * score, 1), mask=exists)


@triton.jit
def _judge_back(
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
    DROPS: tl.constexpr,
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
        if DROPS:
            row = tl.program_id(0) * size + element
            dkept *= _kept(seed_ptr, row, first, rate, D, ELEMENTS, COLUMNS)
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
