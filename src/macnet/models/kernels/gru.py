"""The GRU of `gru.py` as Triton kernels: FiLM's has 4096 units, and takes most of its time.

The longest questions come first, so that those which still have words at step t are the first
n_t. Their rows are packed, step after step: row start_t + i of all arrays is of the t-th word of
question i, and there are P rows in all, less than half of (longest question) × (questions). What
does not wait for the word before is one product over these rows. n_t and P are on the device, where
a CUDA graph may read them; programs beyond them have nothing to do.

With a = h_before, the state before the word, a step is

    r = σ(x_r + V_r a)     z = σ(x_z + V_z a)     m = x_m + V_n a     n = tanh(x_n + r ⊙ m)
    h = (1 − z) ⊙ n + z ⊙ a

where x_r, x_z, x_m, x_n are the input's part, with all biases: that of m is a bias alone. Gradients
of all four are that of h times a slope, which the step keeps.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor
from torch.autograd.function import once_differentiable

from macnet.models.kernels.lstm import _tanh, with_bias
from macnet.models.layers import needs_gradient

ROWS = 128  # questions of a program
FORWARD = {"ROWS": ROWS, "COLUMNS": 64, "DEPTH": 64, "num_warps": 8, "num_stages": 4}
BACKWARD = {"ROWS": ROWS, "COLUMNS": 256, "DEPTH": 64, "num_warps": 8, "num_stages": 3}
WEIGHTS = {"ROWS": 128, "COLUMNS": 256, "DEPTH": 64, "num_warps": 8, "num_stages": 4}
PROGRAMS = 128  # that an H200 runs at once: with fewer tiles, several share one by its terms
SHARES = 4  # the most that do
SPAN = 1024  # units of a program that has none to multiply


class Packing(NamedTuple):
    """Where the words of B questions are, in S steps."""

    order: Tensor  # (B): the questions, the longest first
    counts: Tensor  # (S + 2): n_t; those of the last two are 0
    starts: Tensor  # (S + 2): start_t; the last are P
    source: Tensor  # (S·B): the word, of B·S, in each packed row; any word beyond P
    row: Tensor  # (B, S): the packed row of each word; −1 for padding


def pack(lengths: Tensor, steps: int) -> Packing:
    """The packed rows of questions of such lengths, padded to `steps` words."""
    batch = len(lengths)
    lengths, order = lengths.sort(descending=True)
    step = torch.arange(steps + 2, device=lengths.device)
    counts = (lengths > step[:, None]).sum(1)  # (S + 2)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(order)
    rank[order] = torch.arange(batch, device=order.device)
    reads = step[:-2] < lengths[:, None]  # (B, S) of the questions in order
    row = starts[:-2] + torch.arange(batch, device=order.device)[:, None]
    word = order[:, None] * steps + step[:-2]
    beyond = steps * batch
    source = word.new_zeros(beyond + 1).scatter_(
        0, row.where(reads, beyond).flatten(), word.flatten()
    )
    row = row.where(reads, -1)[rank]
    return Packing(order, counts.int(), starts.int(), source[:-1], row)


def gru(
    x: Tensor,
    lengths: Tensor,
    weight_x: Tensor,
    weight_h: Tensor,
    bias_x: Tensor,
    bias_h: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """The last states of `gru.gru_last_state`, computed in `dtype`."""
    # The four parts of the input: (4u, e), and their biases (4u). That of m is none but a bias.
    w_r, w_z, w_n = weight_x.chunk(3)
    (x_r, x_z, x_n), (h_r, h_z, h_n) = bias_x.chunk(3), bias_h.chunk(3)
    weight_x = torch.cat([w_r, w_z, torch.zeros_like(w_n), w_n])
    bias = torch.cat([x_r + h_r, x_z + h_z, h_n, x_n])
    inputs = x, lengths, weight_x, weight_h, bias
    last: Tensor = _GRU.apply(*inputs, dtype, needs_gradient(*inputs))
    return last


class _GRU(torch.autograd.Function):
    """The steps, and the products before and after them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        lengths: Tensor,
        weight_x: Tensor,
        weight_h: Tensor,
        bias: Tensor,
        dtype: torch.dtype,
        keeps: bool,
    ) -> Tensor:
        # x: (B, S, e)   lengths: (B)   weight_x: (4u, e)   weight_h: (3u, u)   bias: (4u)
        (batch, steps, inputs), units = x.shape, weight_h.shape[-1]
        ctx.inputs, ctx.dtypes = inputs, [a.dtype for a in (x, weight_x, weight_h, bias)]
        packing = pack(lengths, steps)

        words = x.to(dtype).flatten(0, 1)[packing.source]  # (S·B, e)
        words, weight_x = with_bias(words, weight_x, bias)  # (S·B, E), (4u, E)
        weight_h = weight_h.to(dtype).contiguous()

        gates = words @ weight_x.T  # (S·B, 4u), the inputs' part
        before = gates.new_empty(steps * batch, units)  # the state before each word
        before[:batch] = 0
        slopes = gates.new_empty(steps * batch, 5 * units) if keeps else None
        state = gates.new_zeros(batch, units, dtype=torch.float32)  # carried from step to step
        last = gates.new_empty(batch, units)
        grid = triton.cdiv(batch, ROWS), units // FORWARD["COLUMNS"]
        arrays = gates, weight_h, before, slopes, state, last, *packing[1:3]
        with torch.cuda.device_of(x):
            for t in range(steps):
                _step[grid](*arrays, t, UNITS=units, **FORWARD)
        ctx.save_for_backward(words, weight_x, weight_h, before, slopes, *packing)
        return torch.empty_like(last).index_copy_(0, packing.order, last)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dlast: Tensor) -> tuple[Tensor | None, ...]:
        words, weight_x, weight_h, before, slopes, *rest = ctx.saved_tensors
        packing = Packing(*rest)
        (batch, units), steps = dlast.shape, len(words) // len(dlast)
        dlast = dlast[packing.order]
        dgates = slopes.new_empty(steps * batch, 4 * units)
        parts = slopes.new_empty(SHARES, batch, units, dtype=torch.float32)  # of V's product
        dstate = slopes.new_empty(batch, units, dtype=torch.float32)  # carried from step to step
        columns = units // BACKWARD["COLUMNS"]
        programs = max(triton.cdiv(batch, ROWS) * columns, PROGRAMS)
        sizes = {"UNITS": units, "TILES": columns, "PROGRAMS": PROGRAMS, "SHARES": SHARES}
        with torch.cuda.device_of(dlast):
            for t in reversed(range(steps)):
                steps_of = *packing[1:3], t, batch
                if t < steps - 1:
                    _multiply[programs,](dgates, weight_h, parts, *steps_of, **sizes, **BACKWARD)
                _step_backward[batch, triton.cdiv(units, SPAN)](
                    *(slopes, parts, dlast, dgates, dstate, *steps_of),
                    **sizes,
                    ROWS=ROWS,
                    SPAN=SPAN,
                )
            dweight_x = _sum_of_products(dgates, words, packing)  # (4u, E), with the bias's
            dweight_h = _sum_of_products(dgates[:, : 3 * units], before, packing)  # (3u, u)
        dx = (dgates @ weight_x)[:, : ctx.inputs]  # rows beyond P are of no word
        dx = torch.where((packing.row >= 0)[..., None], dx[packing.row], 0)
        e, (x_dtype, weight_x_dtype, weight_h_dtype, bias_dtype) = ctx.inputs, ctx.dtypes
        return (
            dx.to(x_dtype),
            None,
            dweight_x[:, :e].to(weight_x_dtype),
            dweight_h.to(weight_h_dtype),
            dweight_x[:, e].to(bias_dtype),
            None,
            None,
        )


def _sum_of_products(a: Tensor, b: Tensor, packing: Packing) -> Tensor:
    """Σ_p a_p b_pᵀ over the P packed rows: (S·B, m), (S·B, n) → (m, n), in float32."""
    m, n = a.shape[1], b.shape[1]
    out = a.new_empty(m, n, dtype=torch.float32)
    grid = triton.cdiv(m, WEIGHTS["ROWS"]), triton.cdiv(n, WEIGHTS["COLUMNS"])
    _add_products[grid](a, b, out, packing.starts[-1:], m, n, a.stride(0), b.stride(0), **WEIGHTS)
    return out


@triton.jit(do_not_specialize=["t"])
def _step(
    gates_ptr,  # (S·B, 4, u), the inputs' part
    weight_h_ptr,  # (3, u, u)
    before_ptr,  # (S·B, u), in, and out at the next word
    slopes_ptr,  # (S·B, 5, u), out, or None
    state_ptr,  # (B, u), in and out
    last_ptr,  # (B, u), out
    counts_ptr,  # (S + 2)
    starts_ptr,  # (S + 2)
    t,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Read the t-th word of M = ROWS questions into U = COLUMNS units."""
    first = tl.program_id(0) * ROWS
    count = tl.load(counts_ptr + t)
    if first >= count:
        return
    question = first + tl.arange(0, ROWS)
    reads = (question < count)[:, None]
    here = (tl.load(starts_ptr + t) + question).to(tl.int64)[:, None]  # (M, 1)
    unit = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None]  # (1, U)

    term = tl.arange(0, DEPTH)
    states_in = before_ptr + here * UNITS + term[None]  # (M, K)
    weights_in = weight_h_ptr + unit * UNITS + term[:, None]  # (K, U)
    r = tl.zeros((ROWS, COLUMNS), tl.float32)
    z = tl.zeros((ROWS, COLUMNS), tl.float32)
    m = tl.zeros((ROWS, COLUMNS), tl.float32)
    if t > 0:
        for start in range(0, UNITS, DEPTH):
            h = tl.load(states_in + start, mask=reads, other=0.0)
            r = tl.dot(h, tl.load(weights_in + start), r)
            z = tl.dot(h, tl.load(weights_in + UNITS * UNITS + start), z)
            m = tl.dot(h, tl.load(weights_in + 2 * UNITS * UNITS + start), m)

    gates_in = gates_ptr + here * 4 * UNITS + unit
    r = tl.sigmoid(r + tl.load(gates_in, mask=reads, other=0.0))
    z = tl.sigmoid(z + tl.load(gates_in + UNITS, mask=reads, other=0.0))
    m += tl.load(gates_in + 2 * UNITS, mask=reads, other=0.0)
    n = _tanh(tl.load(gates_in + 3 * UNITS, mask=reads, other=0.0) + r * m)
    carried = question[:, None] * UNITS + unit
    a = tl.load(state_ptr + carried, mask=reads, other=0.0)
    h = n + z * (a - n)
    tl.store(state_ptr + carried, h, mask=reads)
    goes_on = (question < tl.load(counts_ptr + t + 1))[:, None]
    after = (tl.load(starts_ptr + t + 1) + question).to(tl.int64)[:, None]
    dtype = before_ptr.dtype.element_ty
    tl.store(before_ptr + after * UNITS + unit, h.to(dtype), mask=goes_on)
    tl.store(last_ptr + carried, h.to(dtype), mask=reads & (goes_on == 0))

    if slopes_ptr is not None:
        slopes_out = slopes_ptr + here * 5 * UNITS + unit
        of_n = (1 - z) * (1 - n * n)  # ∂h/∂n, before its tanh
        tl.store(slopes_out, (of_n * m * r * (1 - r)).to(dtype), mask=reads)  # ∂h/∂r
        tl.store(slopes_out + UNITS, ((a - n) * z * (1 - z)).to(dtype), mask=reads)  # ∂h/∂z
        tl.store(slopes_out + 2 * UNITS, (of_n * r).to(dtype), mask=reads)  # ∂h/∂m
        tl.store(slopes_out + 3 * UNITS, of_n.to(dtype), mask=reads)
        tl.store(slopes_out + 4 * UNITS, z.to(dtype), mask=reads)  # ∂h/∂a, but for V's product


@triton.jit
def _count_shares(tiles, PROGRAMS: tl.constexpr, SHARES: tl.constexpr):
    """Into how many parts the terms of each tile's product are divided."""
    shares = 1
    while (2 * shares <= SHARES) & (2 * shares * tiles <= PROGRAMS):
        shares *= 2
    return shares


@triton.jit(do_not_specialize=["t"])
def _multiply(
    dgates_ptr,  # (S·B, 4, u), of which the first three meet V
    weight_h_ptr,  # (3, u, u)
    parts_ptr,  # (SHARES, B, u), out
    counts_ptr,  # (S + 2)
    starts_ptr,  # (S + 2)
    t,
    batch,
    UNITS: tl.constexpr,
    TILES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    SHARES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The gradients of the states before the words of step t + 1, but for what z lets through."""
    count = tl.load(counts_ptr + t + 1)
    rows = tl.cdiv(count, ROWS)
    tiles = rows * TILES
    shares = _count_shares(tiles, PROGRAMS, SHARES)
    tile = tl.program_id(0)
    if tile >= tiles * shares:
        return
    share = tile // tiles
    tile = tile % tiles
    question = tile % rows * ROWS + tl.arange(0, ROWS)
    reads = (question < count)[:, None]
    after = (tl.load(starts_ptr + t + 1) + question).to(tl.int64)[:, None]  # (M, 1)
    unit = tile // rows * COLUMNS + tl.arange(0, COLUMNS)[None]  # (1, U)

    term = tl.arange(0, DEPTH)
    dgates_in = dgates_ptr + after * 4 * UNITS + term[None]  # (M, K)
    weights_in = weight_h_ptr + term[:, None] * UNITS + unit  # (K, U)
    blocks: tl.constexpr = 3 * UNITS // DEPTH
    dh = tl.zeros((ROWS, COLUMNS), tl.float32)
    for block in range(share * blocks // shares, (share + 1) * blocks // shares):
        dgates = tl.load(dgates_in + block * DEPTH, mask=reads, other=0.0)
        w = tl.load(weights_in + block * DEPTH * UNITS)
        dh = tl.dot(dgates, w, dh)
    out = parts_ptr + (share * batch + question[:, None]).to(tl.int64) * UNITS + unit
    tl.store(out, dh, mask=reads)


@triton.jit(do_not_specialize=["t"])
def _step_backward(
    slopes_ptr,  # (S·B, 5, u)
    parts_ptr,  # (SHARES, B, u), of which some are used
    dlast_ptr,  # (B, u)
    dgates_ptr,  # (S·B, 4, u), out
    dstate_ptr,  # (B, u), in and out
    counts_ptr,  # (S + 2)
    starts_ptr,  # (S + 2)
    t,
    batch,
    UNITS: tl.constexpr,
    TILES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    SHARES: tl.constexpr,
    ROWS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """The gradients at the t-th word of a question."""
    question = tl.program_id(0)
    if question >= tl.load(counts_ptr + t):
        return
    unit = tl.program_id(1) * SPAN + tl.arange(0, SPAN)
    exists = unit < UNITS
    carried = question * UNITS + unit
    count = tl.load(counts_ptr + t + 1)
    if question < count:
        dh = tl.load(dstate_ptr + carried, mask=exists, other=0.0)
        shares = _count_shares(tl.cdiv(count, ROWS) * TILES, PROGRAMS, SHARES)
        for share in range(shares):
            part = parts_ptr + (share * batch + question).to(tl.int64) * UNITS
            dh += tl.load(part + unit, mask=exists, other=0.0)
    else:
        dh = tl.load(dlast_ptr + carried, mask=exists, other=0.0).to(tl.float32)

    here = (tl.load(starts_ptr + t) + question).to(tl.int64)
    slopes_in = slopes_ptr + here * 5 * UNITS + unit
    dgates_out = dgates_ptr + here * 4 * UNITS + unit
    dtype = dgates_ptr.dtype.element_ty
    for part in tl.static_range(4):
        slope = tl.load(slopes_in + part * UNITS, mask=exists, other=0.0)
        tl.store(dgates_out + part * UNITS, (dh * slope).to(dtype), mask=exists)
    z = tl.load(slopes_in + 4 * UNITS, mask=exists, other=0.0)
    tl.store(dstate_ptr + carried, dh * z, mask=exists)


@triton.jit
def _add_products(
    a_ptr,  # (·, m)
    b_ptr,  # (·, n)
    out_ptr,  # (m, n)
    total_ptr,  # P, the number of rows that count
    m,
    n,
    a_stride,
    b_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """A tile of Σ_p a_p b_pᵀ."""
    total = tl.load(total_ptr)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    term = tl.arange(0, DEPTH)
    a_in = a_ptr + term[:, None].to(tl.int64) * a_stride + row[None]  # (K, M)
    b_in = b_ptr + term[:, None].to(tl.int64) * b_stride + column[None]  # (K, N)
    out = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, total, DEPTH):
        is_row = (start + term < total)[:, None]
        a = tl.load(a_in, mask=is_row & (row < m)[None], other=0.0)
        b = tl.load(b_in, mask=is_row & (column < n)[None], other=0.0)
        out = tl.dot(tl.trans(a), b, out)
        a_in += DEPTH * a_stride
        b_in += DEPTH * b_stride
    is_out = (row < m)[:, None] & (column < n)[None]
    tl.store(out_ptr + row[:, None] * n + column[None], out, mask=is_out)
