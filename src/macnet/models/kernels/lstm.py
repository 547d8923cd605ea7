"""The LSTM as Triton kernels, for both directions at once where it has two.

What does not wait for the word before is done for all words in one product: first the inputs' part
of the gates, and in the end the gradients of inputs and weights. In between, each step multiplies
the last states by the recurrent weights, and does the rest of the cell in registers. The steps are
one launch per pass where `lstm_persistent` can run, and elsewhere one launch per word, given here.

At step t a question handles the t-th word that it reads: position t forwards, length - 1 - t
backwards. Once it has ended, it handles position t either way, which is padding, and writes the
zeros that belong there. The longest questions come first, so that those that have ended share
tiles; such tiles have nothing to multiply.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor
from torch.autograd.function import once_differentiable

from macnet.models.layers import needs_gradient

try:
    from macnet.models.kernels import lstm_persistent as persistent
except (ImportError, AttributeError):  # it supports some releases of Triton only
    persistent = None  # type: ignore[assignment]


class Tiling(NamedTuple):
    """How a step is cut into programs, and how those are run."""

    rows: int
    """Questions per program."""
    units: int
    """Units per program, or fewer if this does not divide the LSTM's."""
    depth: int
    """Terms of the product that are loaded at once, or fewer likewise."""
    warps: int
    stages: int
    """Loads under way at once."""
    registers: int
    """Per thread, at most: the fewer, the more programs share a processor."""


# For 640 questions and 512 units, all programs of a step then fit on an H200 at once: 320 of them,
# three to a processor, and 160, two to a processor.
FORWARD = Tiling(rows=64, units=32, depth=64, warps=4, stages=3, registers=168)
BACKWARD = Tiling(rows=64, units=64, depth=64, warps=8, stages=4, registers=128)


def lstm(
    x: Tensor,
    lengths: Tensor,
    weight_x: Tensor,
    weight_h: Tensor,
    bias: Tensor,
    dtype: torch.dtype,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The states, last states and last cells of `lstm.run_lstm`, computed in `dtype`."""
    inputs: tuple[Any, ...] = x, lengths, weight_x, weight_h, bias, *(start or (None, None))
    states, last, cells = _LSTM.apply(*inputs, dtype, needs_gradient(*inputs))
    return states, last, cells


class _LSTM(torch.autograd.Function):
    """The steps, and the products before and after them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        lengths: Tensor,
        weight_x: Tensor,
        weight_h: Tensor,
        bias: Tensor,
        start_h: Tensor | None,
        start_c: Tensor | None,
        dtype: torch.dtype,
        keeps: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # x: (B, S, e)   lengths: (B)   weight_x: (D, 4u, e)   weight_h: (D, 4u, u)   bias: (D, 4u)
        # start_h, start_c: (B, u), or None; with them, D is 1
        (batch, steps, inputs), (directions, _, units) = x.shape, weight_h.shape
        ctx.inputs, ctx.dtypes = inputs, [a.dtype for a in (x, weight_x, weight_h, bias)]

        is_pad = torch.arange(steps, device=x.device) >= lengths[:, None]  # (B, S)
        words, weight_x = with_bias(x.to(dtype), weight_x, bias)  # (B, S, E), (D, 4u, E)
        words.masked_fill_(is_pad[..., None], 0)  # padding may be NaN, and 0 · NaN is no gradient
        weight_x = weight_x.flatten(0, 1)  # (D·4u, E)
        weight_h = weight_h.to(dtype).contiguous()

        # The inputs' part of the gates.
        gates = (words.flatten(0, 1) @ weight_x.T).view(batch, steps, directions, 4 * units)
        if start_h is not None:  # the first step has no state before it to multiply
            start_h = start_h.to(dtype)
            gates[:, 0, 0].addmm_(start_h, weight_h[0].T)
        states = gates.new_empty(batch, steps, directions * units)
        slopes = None  # all that backward needs of a step
        if keeps:
            slopes = gates.new_empty(batch, steps, directions, 6, units)
        # Carried from step to step, and in the end the last ones.
        cells = gates.new_empty(batch, directions, units, dtype=torch.float32)
        if start_c is not None:
            cells[:, 0] = start_c
        last = gates.new_empty(batch, directions * units)
        lengths, order = lengths.sort(descending=True)
        arrays = gates, weight_h, states, slopes, cells, last
        if _is_persistent(weight_h):
            persistent.forward(*arrays, order, lengths)
        else:
            grid, options = _tiles(FORWARD, batch, weight_h, terms=units)
            with torch.cuda.device_of(x):
                for t in range(steps):
                    has_cells = t > 0 or start_c is not None
                    _step[grid](*arrays, order, lengths, t, has_cells, batch, steps, **options)
        ctx.save_for_backward(words, weight_x, weight_h, states, slopes, order, lengths, start_h)
        return states, last, cells.view(batch, directions * units)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dstates: Tensor, dlast: Tensor, dlast_cells: Tensor
    ) -> tuple[Tensor | None, ...]:
        # dstates: (B, S, D·u)   dlast: (B, D·u)   dlast_cells: (B, D·u) float32
        words, weight_x, weight_h, states, slopes, order, lengths, start_h = ctx.saved_tensors
        batch, steps, directions, _, units = slopes.shape
        dstates, dlast = dstates.contiguous(), dlast.contiguous()
        dgates = slopes.new_empty(batch, steps, directions, 4 * units)
        # Carried from step to step; the last word starts from what comes from outside.
        dcells = dlast_cells.reshape(batch, directions, units).clone()
        arrays = slopes, weight_h, dstates, dlast, dgates, dcells
        if _is_persistent(weight_h):
            persistent.backward(*arrays, order, lengths)
        else:
            grid, options = _tiles(BACKWARD, batch, weight_h, terms=4 * units)
            with torch.cuda.device_of(slopes):
                for t in reversed(range(steps)):
                    _step_backward[grid](*arrays, order, lengths, t, batch, steps, **options)

        rows = dgates.view(batch * steps, -1)  # (B·S, D·4u)
        # With the bias's.
        dweight_x = (rows.T @ words.flatten(0, 1)).view(directions, 4 * units, -1)
        dx = (rows @ weight_x).view_as(words) if ctx.needs_input_grad[0] else None

        # Each word met the state at the word that was read before it: of all words in a row, that
        # is one back forwards and one ahead backwards. Only the first word read met none.
        dz, h = dgates.view(-1, directions, 4 * units), states.view(-1, directions, units)
        dweight_h = torch.empty_like(weight_h)
        first = None if start_h is None else dgates[:, 0, 0].clone()  # (B, 4u)
        dgates[:, 0, 0] = 0
        torch.mm(dz[1:, 0].T, h[:-1, 0], out=dweight_h[0])
        if directions == 2:
            dgates[:, -1, 1] = 0
            torch.mm(dz[:-1, 1].T, h[1:, 1], out=dweight_h[1])
        dstart: tuple[Tensor | None, ...] = (None, None)
        if first is not None:
            dweight_h[0].addmm_(first.T, start_h)
            dstart = first @ weight_h[0], dcells[:, 0]

        e, (x_dtype, weight_x_dtype, weight_h_dtype, bias_dtype) = ctx.inputs, ctx.dtypes
        return (
            dx[..., :e].to(x_dtype) if dx is not None else None,
            None,
            dweight_x[..., :e].to(weight_x_dtype),
            dweight_h.to(weight_h_dtype),
            dweight_x[..., e].to(bias_dtype),
            *dstart,
            None,
            None,
        )


def with_bias(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """x (…, e) and W (…, e) with more columns, so that their product is W x + b, in x's precision.

    Tensor cores want rows of a multiple of 8, say E. The columns that this adds are ones, of which
    the first meets the bias: so that, and its gradient, are part of the products.
    """
    added = 8 - x.shape[-1] % 8
    weight = torch.cat([weight, bias[..., None]], dim=-1).to(x.dtype)
    return F.pad(x, (0, added), value=1.0), F.pad(weight, (0, added - 1))


def _is_persistent(weight_h: Tensor) -> bool:
    """Whether all steps are one launch."""
    directions, _, units = weight_h.shape
    return bool(persistent and directions == 2 and persistent.count_groups(units, weight_h.device))


def _tiles(
    tiling: Tiling, batch: int, weight_h: Tensor, terms: int
) -> tuple[tuple[int, int, int], dict[str, int]]:
    """The grid of a step's programs, and the constants that they are compiled with."""
    directions, _, units = weight_h.shape
    columns = largest_power_of_two(units, tiling.units)
    depth = largest_power_of_two(terms, tiling.depth)
    sizes = {"UNITS": units, "ROWS": tiling.rows, "COLUMNS": columns, "DEPTH": depth}
    limits = {"num_warps": tiling.warps, "num_stages": tiling.stages, "maxnreg": tiling.registers}
    grid = triton.cdiv(batch, tiling.rows), units // columns, directions
    return grid, {"DIRECTIONS": directions, **sizes, **limits}


def largest_power_of_two(size: int, most: int) -> int:
    """The largest power of two that divides the size, but no more than `most`, which is one too."""
    return min(size & -size, most)


@triton.jit
def _load_questions(order_ptr, lengths_ptr, batch, ROWS: tl.constexpr):
    """This program's questions; beyond the batch there are some of no words."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    question = tl.load(order_ptr + i, mask=i < batch, other=0)
    length = tl.load(lengths_ptr + i, mask=i < batch, other=0)
    return question, length, i < batch  # (M), (M), (M)


@triton.jit
def _word_rows(question, length, t, steps, DIRECTIONS: tl.constexpr):
    """Where a step's words are in (B, S, D, …), when each pair (word, direction) is a row."""
    direction = tl.program_id(2)
    turned = (direction == 1) & (t < length)
    return (question * steps + tl.where(turned, length - 1 - t, t)) * DIRECTIONS + direction  # (M)


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit(do_not_specialize=["t", "has_cells"])
def _step(
    gates_ptr,  # (B, S, D, 4u), the inputs' part
    weight_h_ptr,  # (D, 4u, u)
    states_ptr,  # (B, S, D, u), out, and in at the word before
    slopes_ptr,  # (B, S, D, 6, u), out, or None
    cells_ptr,  # (B, D, u), out, and in from the word before
    last_ptr,  # (B, D, u), out
    order_ptr,  # (B)
    lengths_ptr,  # (B)
    t,
    has_cells,  # whether there are cells from before
    batch,
    steps,
    DIRECTIONS: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Read the t-th word of M = ROWS questions into U = COLUMNS units of one direction."""
    direction = tl.program_id(2)
    question, length, exists = _load_questions(order_ptr, lengths_ptr, batch, ROWS)
    here = _word_rows(question, length, t, steps, DIRECTIONS)
    before = _word_rows(question, length, t - 1, steps, DIRECTIONS)
    reads = (t < length)[:, None]
    has_read = reads & (t > 0)
    unit = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None]  # (1, U)
    carried = (question * DIRECTIONS + direction)[:, None] * UNITS + unit  # (M, U)
    # The four gates of these units side by side, so that one wide product makes them all.
    column = tl.arange(0, 4 * COLUMNS)[None]
    gate = column // COLUMNS * UNITS + tl.program_id(1) * COLUMNS + column % COLUMNS  # (1, 4U)

    # Loaded before the product, behind which the wait for them hides.
    x_part = tl.load(gates_ptr + here[:, None] * 4 * UNITS + gate, mask=reads, other=0.0)
    c_before = tl.load(cells_ptr + carried, mask=reads & (has_cells != 0), other=0.0)

    term = tl.arange(0, DEPTH)
    states_in = states_ptr + before[:, None] * UNITS + term[None]  # (M, K)
    weights_in = weight_h_ptr + (direction * 4 * UNITS + gate) * UNITS + term[:, None]  # (K, 4U)
    h_part = tl.zeros((ROWS, 4 * COLUMNS), tl.float32)
    if (tl.max(length) > t) & (t > 0):
        for start in range(0, UNITS, DEPTH):
            h = tl.load(states_in + start, mask=has_read, other=0.0)
            w = tl.load(weights_in + start)
            h_part = tl.dot(h, w, h_part)

    # Where no word is read all parts are 0, which makes c and h 0 too: padding needs no mask.
    parts = (x_part + h_part).reshape(ROWS, 2, 2, COLUMNS).permute(0, 3, 1, 2)  # ((i, f), (g, o))
    i_g, f_o = parts.split()
    i, g = i_g.split()
    f, o = f_o.split()
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    c = f * c_before + i * g
    tanh_c = _tanh(c)
    h = (o * tanh_c).to(states_ptr.dtype.element_ty)
    tl.store(cells_ptr + carried, c, mask=reads)
    tl.store(states_ptr + here[:, None] * UNITS + unit, h, mask=exists[:, None])
    tl.store(last_ptr + carried, h, mask=(t == length - 1)[:, None])

    if slopes_ptr is not None:
        slopes_out = slopes_ptr + here[:, None] * 6 * UNITS + unit
        dtype = slopes_ptr.dtype.element_ty
        tl.store(slopes_out, (g * i * (1 - i)).to(dtype), mask=reads)  # ∂c/∂i, before its sigmoid
        tl.store(slopes_out + UNITS, (c_before * f * (1 - f)).to(dtype), mask=reads)  # ∂c/∂f
        tl.store(slopes_out + 2 * UNITS, (i * (1 - g * g)).to(dtype), mask=reads)  # ∂c/∂g
        tl.store(slopes_out + 3 * UNITS, (tanh_c * o * (1 - o)).to(dtype), mask=reads)  # ∂h/∂o
        tl.store(slopes_out + 4 * UNITS, (o * (1 - tanh_c * tanh_c)).to(dtype), mask=reads)  # ∂h/∂c
        tl.store(slopes_out + 5 * UNITS, f.to(dtype), mask=reads)  # ∂c/∂c_before


@triton.jit(do_not_specialize=["t"])
def _step_backward(
    slopes_ptr,  # (B, S, D, 6, u)
    weight_h_ptr,  # (D, 4u, u)
    dstates_ptr,  # (B, S, D, u)
    dlast_ptr,  # (B, D, u)
    dgates_ptr,  # (B, S, D, 4u), out, and in at the word after
    dcells_ptr,  # (B, D, u), out, and in from the word after, or of the last cell
    order_ptr,  # (B)
    lengths_ptr,  # (B)
    t,
    batch,
    steps,
    DIRECTIONS: tl.constexpr,
    UNITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """The gradients at the t-th word of M = ROWS questions, for U = COLUMNS units."""
    direction = tl.program_id(2)
    question, length, exists = _load_questions(order_ptr, lengths_ptr, batch, ROWS)
    here = _word_rows(question, length, t, steps, DIRECTIONS)
    after = _word_rows(question, length, t + 1, steps, DIRECTIONS)
    reads = (t < length)[:, None]
    will_read = (t + 1 < length)[:, None]
    unit = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None]  # (1, U)
    carried = (question * DIRECTIONS + direction)[:, None] * UNITS + unit  # (M, U)

    # Loaded before the product, behind which the wait for them hides. Where no word is read the
    # slopes are 0, which makes the gradients 0 too: padding needs no mask.
    slopes_in = slopes_ptr + here[:, None] * 6 * UNITS + unit
    c_i = tl.load(slopes_in, mask=reads, other=0.0)
    c_f = tl.load(slopes_in + UNITS, mask=reads, other=0.0)
    c_g = tl.load(slopes_in + 2 * UNITS, mask=reads, other=0.0)
    h_o = tl.load(slopes_in + 3 * UNITS, mask=reads, other=0.0)
    h_c = tl.load(slopes_in + 4 * UNITS, mask=reads, other=0.0)
    c_before = tl.load(slopes_in + 5 * UNITS, mask=reads, other=0.0)
    dstate = tl.load(dstates_ptr + here[:, None] * UNITS + unit, mask=reads, other=0.0)
    dlast = tl.load(dlast_ptr + carried, mask=(t == length - 1)[:, None], other=0.0)
    dc = tl.load(dcells_ptr + carried, mask=reads, other=0.0)

    term = tl.arange(0, DEPTH)
    dgates_in = dgates_ptr + after[:, None] * 4 * UNITS + term[None]  # (M, K)
    weights_in = weight_h_ptr + (direction * 4 * UNITS + term[:, None]) * UNITS + unit  # (K, U)
    dh = tl.zeros((ROWS, COLUMNS), tl.float32)
    if tl.max(length) > t + 1:
        for start in range(0, 4 * UNITS, DEPTH):
            dgates = tl.load(dgates_in + start, mask=will_read, other=0.0)
            w = tl.load(weights_in + start * UNITS)
            dh = tl.dot(dgates, w, dh)

    dh += dstate.to(tl.float32) + dlast
    dc += dh * h_c
    tl.store(dcells_ptr + carried, dc * c_before, mask=reads)
    dgates_out = dgates_ptr + here[:, None] * 4 * UNITS + unit
    dtype = dgates_ptr.dtype.element_ty
    tl.store(dgates_out, (dc * c_i).to(dtype), mask=exists[:, None])
    tl.store(dgates_out + UNITS, (dc * c_f).to(dtype), mask=exists[:, None])
    tl.store(dgates_out + 2 * UNITS, (dc * c_g).to(dtype), mask=exists[:, None])
    tl.store(dgates_out + 3 * UNITS, (dh * h_o).to(dtype), mask=exists[:, None])
