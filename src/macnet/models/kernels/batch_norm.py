"""Batch normalisation in training, and what follows it, as Triton kernels.

Maps are (N, C, H, W) with channels last: n = N·H·W rows of C numbers. With the mean μ and the
deviation σ of each channel over all rows,

    x̂ = (x − μ)/σ     t = w ⊙ x̂ + b + r     y = a(t)

where a is ReLU, ELU or the identity, and r is what is added, if anything is. With g = a'(t) ⊙ dy,

    db = Σ g     dw = Σ g ⊙ x̂     dr = g     dx = w/σ ⊙ (g − db/n − x̂ ⊙ dw/n)

because μ and σ depend on x as well. Either direction is two kernels, which read a map once each:
the first takes sums over chunks of rows, and every program of the second adds up those of its
channels before it goes on, which spares a kernel in between. The same program always adds the same
numbers in the same order, so that results are the same at each run. t is not stored, but computed
again.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from macnet.models.norm import Activation, BatchNorm2d

# Rows and channels that a program holds at a time, and its warps. The channels of a row are 64
# bytes, two sectors of memory; they are few, because that makes chunks few, whose sums a program of
# the second kernel adds up.
TILE = {"ROWS": 256, "WIDTH": 32, "num_warps": 16, "maxnreg": 64}
BACKWARD_TILE = {**TILE, "ROWS": 128}  # of more arrays at once: else they would not fit
PROGRAMS = 264  # an H100 or H200 has 132 processors, which run two of so many registers at once
CHUNKS = 128  # the most chunks; the sums of all are one tile


def normalize(
    x: Tensor, norm: BatchNorm2d, activation: Activation | None, residual: Tensor | None
) -> Tensor:
    """`BatchNorm2d.forward` in training: x and residual (N, C, H, W); the statistics move."""
    x = x.contiguous(memory_format=torch.channels_last)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    y: Tensor = _Normalize.apply(x, residual, norm.weight, norm.bias, norm, activation)
    return y


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        norm: BatchNorm2d,
        activation: Activation | None,
    ) -> Tensor:
        sizes, grid = _chunks(x)
        channels, chunks = x.shape[1], grid[1]
        parts = x.new_empty(2, chunks, channels, dtype=torch.float32)
        moments = x.new_empty(2, channels, dtype=torch.float32)
        y = torch.empty_like(x)
        with torch.cuda.device_of(x):
            _measure[grid](x, parts, *sizes, **TILE)
            _normalize[grid](
                *(x, residual, weight, bias, parts, y, moments),
                *(norm.running_mean, norm.running_var, norm.num_batches_tracked),
                *(*sizes, norm.momentum, norm.eps),
                ACTIVATION=activation,
                CHUNKS=CHUNKS,
                **TILE,
            )
        # Where nothing follows, g is dy, whatever was added.
        ctx.save_for_backward(x, residual if activation else None, weight, bias, moments)
        ctx.activation = activation
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, residual, weight, bias, moments = ctx.saved_tensors
        sizes, grid = _chunks(x)
        dy = dy.contiguous(memory_format=torch.channels_last)
        # With a residual, g is needed as its gradient, and need not be computed twice.
        g, remaining = (dy, ctx.activation) if residual is None else (torch.empty_like(x), None)
        sums = x.new_empty(2, grid[1], x.shape[1], dtype=torch.float32)
        dx, dweight, dbias = (torch.empty_like(tensor) for tensor in (x, weight, bias))
        with torch.cuda.device_of(x):
            _normalize_sums[grid](
                *(dy, x, residual, weight, bias, moments, sums, None if residual is None else g),
                *sizes,
                ACTIVATION=ctx.activation,
                **BACKWARD_TILE,
            )
            _normalize_backward[grid](
                *(g, x, weight, bias, moments, sums, dx, dweight, dbias),
                *sizes,
                ACTIVATION=remaining,
                CHUNKS=CHUNKS,
                **BACKWARD_TILE,
            )
        return dx, g if ctx.needs_input_grad[1] else None, dweight, dbias, None, None


def _chunks(x: Tensor) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Rows, channels and rows of a chunk; the grid of programs over channels and chunks."""
    rows, channels = x.numel() // x.shape[1], x.shape[1]
    blocks = triton.cdiv(channels, TILE["WIDTH"])
    chunks = min(max(PROGRAMS // blocks, 1), CHUNKS)
    tiles = triton.cdiv(triton.cdiv(rows, chunks), TILE["ROWS"])  # of a chunk
    chunk = tiles * TILE["ROWS"]
    return (rows, channels, chunk), (blocks, triton.cdiv(rows, chunk))


@triton.jit
def _channels(channels, WIDTH: tl.constexpr):
    """This program's channels, and which of them exist: (1, WIDTH)."""
    channel = (tl.program_id(0) * WIDTH + tl.arange(0, WIDTH))[None]
    return channel, channel < channels


@triton.jit
def _chunk(rows, channels, chunk):
    """Where this program's rows start in a map, and how many they are."""
    first = tl.program_id(1) * chunk
    return first.to(tl.int64) * channels, tl.minimum(chunk, rows - first)


@triton.jit
def _load(ptr, here, mask):
    return tl.load(ptr + here, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _load_parts(parts_ptr, channels, channel, exists, CHUNKS: tl.constexpr):
    """The two sums of each chunk: (CHUNKS, WIDTH) each."""
    part, chunks = tl.arange(0, CHUNKS)[:, None], tl.num_programs(1)
    here = part * channels + channel
    mask = (part < chunks) & exists
    return _load(parts_ptr, here, mask), _load(parts_ptr + chunks * channels, here, mask)


@triton.jit
def _store_parts(parts_ptr, first, second, channels, channel, exists):
    """Two sums of this program's chunk, (1, WIDTH) each."""
    parts_ptr += tl.program_id(1) * channels + channel
    tl.store(parts_ptr, first, mask=exists)
    tl.store(parts_ptr + tl.num_programs(1) * channels, second, mask=exists)


@triton.jit
def _merge(means, squares, counts, count):
    """The mean and the sum of squared deviations of a union (1, WIDTH), by Chan's formula.

    Given are those of its sets (K, WIDTH), and how many numbers are in each (K, 1) and in all.
    """
    mean = tl.sum(means * counts, 0, keep_dims=True) / count
    off = means - mean
    return mean, tl.sum(squares + off * off * counts, 0, keep_dims=True)


@triton.jit
def _scale_and_offset(weight_ptr, bias_ptr, mean, inverse, channel, exists):
    """w ⊙ x̂ + b as scale ⊙ x + offset, of which a program has to hold less: (1, WIDTH) each."""
    scale = _load(weight_ptr, channel, exists) * inverse
    return scale, _load(bias_ptr, channel, exists) - scale * mean


@triton.jit
def _activate(t, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        t = tl.where(t < 0, 0.0, t)  # a NaN stays one, as in torch
    elif ACTIVATION == "elu":
        t = tl.where(t > 0, t, tl.exp(t) - 1)
    return t


@triton.jit
def _activate_backward(dy, t, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        dy = tl.where(t <= 0, 0.0, dy)
    elif ACTIVATION == "elu":
        dy = tl.where(t > 0, dy, dy * tl.exp(t))
    return dy


@triton.jit(do_not_specialize=["rows", "chunk"])
def _measure(
    x_ptr,  # (rows, C)
    parts_ptr,  # (2, chunks, C), out: the mean of a chunk, and its sum of squared deviations
    rows,
    channels,
    chunk,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Mean and squared deviations of a chunk."""
    channel, exists = _channels(channels, WIDTH)
    begin, count = _chunk(rows, channels, chunk)
    x_ptr += begin
    row = tl.arange(0, ROWS)[:, None]
    # Each place of the tile has its own, of every ROWS-th row, by Welford's method: a sum of
    # squares would lose digits.
    means = tl.zeros((ROWS, WIDTH), tl.float32)
    squares = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, count, ROWS):
        mask = (start + row < count) & exists
        x = _load(x_ptr, (start + row) * channels + channel, mask)
        off = tl.where(mask, x - means, 0.0)
        means += off * (1 / (start // ROWS + 1))
        squares += off * (x - means)
    counts = (count - row + ROWS - 1) // ROWS  # of the rows: row, row + ROWS, ...
    mean, square = _merge(means, squares, counts, count)
    _store_parts(parts_ptr, mean, square, channels, channel, exists)


@triton.jit(do_not_specialize=["rows", "chunk"])
def _normalize(
    x_ptr,  # (rows, C)
    residual_ptr,  # (rows, C), or None
    weight_ptr,  # (C)
    bias_ptr,  # (C)
    parts_ptr,  # (2, chunks, C)
    y_ptr,  # (rows, C), out
    moments_ptr,  # (2, C), out: μ and 1/σ
    running_mean_ptr,  # (C), in and out
    running_var_ptr,  # (C), in and out
    batches_ptr,  # (), in and out
    rows,
    channels,
    chunk,
    momentum,
    eps,
    ACTIVATION: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """μ and σ of all rows; y of a chunk. The first chunk moves the running statistics."""
    channel, exists = _channels(channels, WIDTH)
    means, squares = _load_parts(parts_ptr, channels, channel, exists, CHUNKS)
    before = tl.arange(0, CHUNKS)[:, None] * chunk
    counts = tl.minimum(tl.maximum(rows - before, 0), chunk)
    mean, square = _merge(means, squares, counts, rows)
    inverse = tl.rsqrt(square / rows + eps)
    if tl.program_id(1) == 0:
        tl.store(moments_ptr + channel, mean, mask=exists)
        tl.store(moments_ptr + channels + channel, inverse, mask=exists)
        old_mean = _load(running_mean_ptr, channel, exists)
        old_var = _load(running_var_ptr, channel, exists)
        new_mean = (1 - momentum) * old_mean + momentum * mean
        new_var = (1 - momentum) * old_var + momentum * (square / (rows - 1))
        tl.store(running_mean_ptr + channel, new_mean, mask=exists)
        tl.store(running_var_ptr + channel, new_var, mask=exists)
        if tl.program_id(0) == 0:
            tl.store(batches_ptr, tl.load(batches_ptr) + 1)

    scale, offset = _scale_and_offset(weight_ptr, bias_ptr, mean, inverse, channel, exists)
    begin, count = _chunk(rows, channels, chunk)
    x_ptr += begin
    y_ptr += begin
    row = tl.arange(0, ROWS)[:, None]
    for start in range(0, count, ROWS):
        mask = (start + row < count) & exists
        here = (start + row) * channels + channel
        t = scale * _load(x_ptr, here, mask) + offset
        if residual_ptr is not None:
            t += _load(residual_ptr + begin, here, mask)
        y = _activate(t, ACTIVATION)
        tl.store(y_ptr + here, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "chunk"])
def _normalize_sums(
    dy_ptr,  # (rows, C)
    x_ptr,  # (rows, C)
    residual_ptr,  # (rows, C), or None
    weight_ptr,  # (C)
    bias_ptr,  # (C)
    moments_ptr,  # (2, C)
    sums_ptr,  # (2, chunks, C), out: the sums of g and of g ⊙ (x − μ)
    g_ptr,  # (rows, C), out; None where there is no residual
    rows,
    channels,
    chunk,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The sums of a chunk."""
    channel, exists = _channels(channels, WIDTH)
    mean = _load(moments_ptr, channel, exists)
    inverse = _load(moments_ptr + channels, channel, exists)
    scale, offset = _scale_and_offset(weight_ptr, bias_ptr, mean, inverse, channel, exists)
    begin, count = _chunk(rows, channels, chunk)
    dy_ptr += begin
    x_ptr += begin
    row = tl.arange(0, ROWS)[:, None]
    of_one = tl.zeros((ROWS, WIDTH), tl.float32)
    of_input = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, count, ROWS):
        mask = (start + row < count) & exists
        here = (start + row) * channels + channel
        x = _load(x_ptr, here, mask)
        t = scale * x + offset
        if residual_ptr is not None:
            t += _load(residual_ptr + begin, here, mask)
        g = _activate_backward(_load(dy_ptr, here, mask), t, ACTIVATION)
        if g_ptr is not None:
            tl.store(g_ptr + begin + here, g.to(g_ptr.dtype.element_ty), mask=mask)
        of_one += g
        of_input += g * (x - mean)
    first = tl.sum(of_one, 0, keep_dims=True)
    second = tl.sum(of_input, 0, keep_dims=True)
    _store_parts(sums_ptr, first, second, channels, channel, exists)


@triton.jit(do_not_specialize=["rows", "chunk"])
def _normalize_backward(
    g_ptr,  # (rows, C): dy, if g is to be computed from it
    x_ptr,  # (rows, C)
    weight_ptr,  # (C)
    bias_ptr,  # (C)
    moments_ptr,  # (2, C)
    sums_ptr,  # (2, chunks, C)
    dx_ptr,  # (rows, C), out
    dweight_ptr,  # (C), out
    dbias_ptr,  # (C), out
    rows,
    channels,
    chunk,
    ACTIVATION: tl.constexpr,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """dx of a chunk. The first one also has the gradients of w and b."""
    channel, exists = _channels(channels, WIDTH)
    of_one, of_input = _load_parts(sums_ptr, channels, channel, exists, CHUNKS)
    mean = _load(moments_ptr, channel, exists)
    inverse = _load(moments_ptr + channels, channel, exists)
    dbias = tl.sum(of_one, 0, keep_dims=True)
    dweight = tl.sum(of_input, 0, keep_dims=True) * inverse
    if tl.program_id(1) == 0:
        tl.store(dbias_ptr + channel, dbias, mask=exists)
        tl.store(dweight_ptr + channel, dweight, mask=exists)

    scale, offset = _scale_and_offset(weight_ptr, bias_ptr, mean, inverse, channel, exists)
    slope = -scale * inverse * (dweight / rows)
    constant = -scale * (dbias / rows) - slope * mean
    begin, count = _chunk(rows, channels, chunk)
    g_ptr += begin
    x_ptr += begin
    dx_ptr += begin
    row = tl.arange(0, ROWS)[:, None]
    for start in range(0, count, ROWS):
        mask = (start + row < count) & exists
        here = (start + row) * channels + channel
        x = _load(x_ptr, here, mask)
        g = _activate_backward(_load(g_ptr, here, mask), scale * x + offset, ACTIVATION)
        dx = scale * g + (slope * x + constant)
        tl.store(dx_ptr + here, dx.to(dx_ptr.dtype.element_ty), mask=mask)
