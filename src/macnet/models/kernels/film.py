"""FiLM's modulation of normalised maps, and its pooling of them, as Triton kernels.

Maps are (N, C, H, W) with channels last: rows of C numbers, a row for each of the H·W cells of each
map. Normalisation and modulation are one affine map of a cell, so a block ends in

    out = r + ReLU(s ⊙ x + o),  s = γ/σ,  o = β − s ⊙ μ

with the mean μ and deviation σ of each channel. With g = dout where the ReLU is positive, and sums
over the cells of a question, G₀ = Σ g and G₁ = Σ g ⊙ x,

    dβ = G₀     dγ = (G₁ − μ G₀)/σ     dx = s ⊙ g − (m₀ + m₁ (x − μ)/σ)/σ

where m₀ and m₁ are the means of γ g and of γ g (x − μ)/σ over all cells, because μ and σ depend on
x as well. The pooled maps are max ReLU(s ⊙ x + o) over cells, where g is of one cell only.
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

from macnet.models.norm import BatchNorm2d, check_values

CELLS, WIDTH = 16, 128  # cells and channels of a program at a time
TILE = {"CELLS": CELLS, "WIDTH": WIDTH}


def modulate(r: Tensor, x: Tensor, norm: BatchNorm2d, gamma: Tensor, beta: Tensor) -> Tensor:
    """r + ReLU(γ ⊙ norm(x) + β) in training: r and x (N, C, H, W), γ and β (B, C)."""
    r, x = (maps.contiguous(memory_format=torch.channels_last) for maps in (r, x))
    out: Tensor = _Modulate.apply(r, x, gamma.float(), beta.float(), *_measure(x, norm))
    return out


def pool(x: Tensor, norm: BatchNorm2d) -> Tensor:
    """The maximum of ReLU(norm(x)) over cells, in training: (B, C, H, W) → (B, C)."""
    x = x.contiguous(memory_format=torch.channels_last)
    pooled: Tensor = _Pool.apply(x, norm.weight.float(), norm.bias.float(), *_measure(x, norm))
    return pooled


def _measure(x: Tensor, norm: BatchNorm2d) -> tuple[Tensor, Tensor]:
    """μ and 1/σ (C) of each channel, over all cells of all maps; the running statistics move."""
    maps, channels, height, width = x.shape
    cells = height * width
    values = maps * cells
    check_values(values)
    parts = x.new_empty(2, maps, channels, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _measure_map[maps, triton.cdiv(channels, WIDTH)](x, parts, maps, cells, channels, **TILE)
    means, within = parts
    between, mean = torch.var_mean(means, 0, correction=0)
    var = within.mean(0) + between
    norm.track(mean, var, values)
    return mean, (var + norm.eps).rsqrt()


class _Modulate(torch.autograd.Function):
    """The end of a block."""

    @staticmethod
    def forward(
        ctx: Any,
        r: Tensor,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        mean: Tensor,
        inverse: Tensor,
    ) -> Tensor:
        (n, channels, height, width), batch = x.shape, len(gamma)
        cells = height * width
        scale = gamma * inverse  # (B, C)
        offset = torch.addcmul(beta, scale, mean, value=-1)
        out = x.new_empty(batch, height, width, channels).permute(0, 3, 1, 2)
        grid = batch, triton.cdiv(cells, CELLS), triton.cdiv(channels, WIDTH)
        with torch.cuda.device_of(x):
            _modulate[grid](r, x, scale, offset, out, batch // n, cells, channels, **TILE)
        ctx.save_for_backward(x, gamma, scale, offset, mean, inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, scale, offset, mean, inverse = ctx.saved_tensors
        (n, channels, height, width), batch = x.shape, len(gamma)
        cells, groups = height * width, batch // n
        dout = dout.contiguous(memory_format=torch.channels_last)
        sums = x.new_empty(2, batch, channels, dtype=torch.float32)
        blocks = triton.cdiv(channels, WIDTH)
        of_x = dout, x, scale, offset
        with torch.cuda.device_of(x):
            _modulate_sums[batch, blocks](*of_x, sums, batch, groups, cells, channels, **TILE)
            dbeta, of_input = sums
            dgamma = (of_input - mean * dbeta) * inverse
            constant, slope = _through_moments(
                gamma * dbeta, gamma * dgamma, mean, inverse, n * cells
            )
            dx = torch.empty_like(x)
            dr = torch.empty_like(x) if groups > 1 else dout
            _modulate_backward[n, triton.cdiv(cells, CELLS), blocks](
                *(*of_x, constant, slope, dx, dr if groups > 1 else None),
                *(groups, cells, channels),
                **TILE,
            )
        return dr, dx, dgamma, dbeta, None, None


class _Pool(torch.autograd.Function):
    """The head's normalisation, ReLU and global maximum."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor
    ) -> Tensor:
        batch, channels, height, width = x.shape
        scale = weight * inverse  # (C)
        offset = torch.addcmul(bias, scale, mean, value=-1)
        pooled = x.new_empty(batch, channels)
        place = x.new_empty(batch, channels, dtype=torch.int32)
        with torch.cuda.device_of(x):
            _pool[batch, triton.cdiv(channels, WIDTH)](
                x, scale, offset, pooled, place, height * width, channels, **TILE
            )
        ctx.save_for_backward(x, weight, pooled, place, scale, mean, inverse)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dpooled: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, pooled, place, scale, mean, inverse = ctx.saved_tensors
        batch, channels, height, width = x.shape
        cells = height * width
        g = dpooled.float() * (pooled > 0)
        # The one cell of each map that has a gradient: (B, cells, C) in memory.
        highest = x.permute(0, 2, 3, 1).reshape(batch, cells, channels)
        highest = highest.gather(1, place.long()[:, None]).squeeze(1)
        of_input = g * ((highest - mean) * inverse)
        constant, slope = _through_moments(
            weight * g, weight * of_input, mean, inverse, batch * cells
        )
        dx = torch.empty_like(x)
        grid = batch, triton.cdiv(cells, CELLS), triton.cdiv(channels, WIDTH)
        with torch.cuda.device_of(x):
            _pool_backward[grid](x, g * scale, place, constant, slope, dx, cells, channels, **TILE)
        return dx, of_input.sum(0), g.sum(0), None, None


def _through_moments(
    of_one: Tensor, of_input: Tensor, mean: Tensor, inverse: Tensor, values: int
) -> tuple[Tensor, Tensor]:
    """What μ and σ add to dx, as constant + slope · x: (C) each, of sums (B, C) over cells."""
    m0, m1 = (sums.sum(0) / values for sums in (of_one, of_input))
    slope = -m1 * inverse * inverse
    return -m0 * inverse - slope * mean, slope


@triton.jit
def _channels(channels, axis: tl.constexpr, WIDTH: tl.constexpr):
    """This program's channels, and which of them exist."""
    channel = tl.program_id(axis) * WIDTH + tl.arange(0, WIDTH)
    return channel, channel < channels


@triton.jit
def _load_row(ptr, row, channels, channel, exists):
    """This program's channels of a row, as (1, C)."""
    return tl.load(ptr + row * channels + channel, mask=exists, other=0.0)[None]


@triton.jit
def _measure_map(
    x_ptr,  # (N, cells, C)
    parts_ptr,  # (2, N, C), out: mean and variance of each map
    maps,
    cells,
    channels,
    CELLS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Mean and variance of one map's cells, in two passes; the second finds it in the cache."""
    image = tl.program_id(0).to(tl.int64)
    channel, exists = _channels(channels, 1, WIDTH)
    cell = tl.arange(0, CELLS)
    x_ptr += image * cells * channels + channel[None]
    total = tl.zeros((CELLS, WIDTH), tl.float32)
    for start in range(0, cells, CELLS):
        here = (start + cell)[:, None]
        total += tl.load(x_ptr + here * channels, mask=(here < cells) & exists[None], other=0.0)
    mean = tl.sum(total, 0) / cells
    squares = tl.zeros((CELLS, WIDTH), tl.float32)
    for start in range(0, cells, CELLS):
        here = (start + cell)[:, None]
        mask = (here < cells) & exists[None]
        x = tl.load(x_ptr + here * channels, mask=mask, other=0.0).to(tl.float32)
        off = tl.where(mask, x - mean[None], 0.0)
        squares += off * off
    out = parts_ptr + image * channels + channel
    tl.store(out, mean, mask=exists)
    tl.store(out + maps * channels, tl.sum(squares, 0) / cells, mask=exists)


@triton.jit
def _modulate(
    r_ptr,  # (N, cells, C)
    x_ptr,  # (N, cells, C)
    scale_ptr,  # (B, C)
    offset_ptr,  # (B, C)
    out_ptr,  # (B, cells, C), out
    groups,
    cells,
    channels,
    CELLS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Some cells of a question."""
    question = tl.program_id(0).to(tl.int64)
    channel, exists = _channels(channels, 2, WIDTH)
    cell = (tl.program_id(1) * CELLS + tl.arange(0, CELLS))[:, None]
    mask = (cell < cells) & exists[None]
    scale = _load_row(scale_ptr, question, channels, channel, exists)
    offset = _load_row(offset_ptr, question, channels, channel, exists)
    here = cell * channels + channel[None]
    source = question // groups * cells * channels + here
    r = tl.load(r_ptr + source, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + source, mask=mask, other=0.0).to(tl.float32)
    y = scale * x + offset
    out = r + tl.where(y < 0, 0.0, y)  # a NaN stays one, as in torch
    out_ptr += question * cells * channels
    tl.store(out_ptr + here, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _modulate_sums(
    dout_ptr,  # (B, cells, C)
    x_ptr,  # (N, cells, C)
    scale_ptr,  # (B, C)
    offset_ptr,  # (B, C)
    sums_ptr,  # (2, B, C), out: of g, and of g ⊙ x
    batch,
    groups,
    cells,
    channels,
    CELLS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """G₀ and G₁ of a question."""
    question = tl.program_id(0).to(tl.int64)
    channel, exists = _channels(channels, 1, WIDTH)
    scale = _load_row(scale_ptr, question, channels, channel, exists)
    offset = _load_row(offset_ptr, question, channels, channel, exists)
    dout_ptr += question * cells * channels + channel[None]
    x_ptr += question // groups * cells * channels + channel[None]
    of_one = tl.zeros((CELLS, WIDTH), tl.float32)
    of_input = tl.zeros((CELLS, WIDTH), tl.float32)
    for start in range(0, cells, CELLS):
        cell = (start + tl.arange(0, CELLS))[:, None]
        mask = (cell < cells) & exists[None]
        x = tl.load(x_ptr + cell * channels, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dout_ptr + cell * channels, mask=mask, other=0.0).to(tl.float32)
        g = tl.where(scale * x + offset > 0, g, 0.0)
        of_one += g
        of_input += g * x
    out = sums_ptr + question * channels + channel
    tl.store(out, tl.sum(of_one, 0), mask=exists)
    tl.store(out + batch * channels, tl.sum(of_input, 0), mask=exists)


@triton.jit
def _modulate_backward(
    dout_ptr,  # (B, cells, C)
    x_ptr,  # (N, cells, C)
    scale_ptr,  # (B, C)
    offset_ptr,  # (B, C)
    constant_ptr,  # (C)
    slope_ptr,  # (C)
    dx_ptr,  # (N, cells, C), out
    dr_ptr,  # (N, cells, C), out; None where it is dout
    groups,
    cells,
    channels,
    CELLS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Some cells of an image, over all questions about it."""
    image = tl.program_id(0).to(tl.int64)
    channel, exists = _channels(channels, 2, WIDTH)
    cell = (tl.program_id(1) * CELLS + tl.arange(0, CELLS))[:, None]
    mask = (cell < cells) & exists[None]
    here = cell * channels + channel[None]
    size = cells * channels
    x = tl.load(x_ptr + image * size + here, mask=mask, other=0.0).to(tl.float32)
    constant = _load_row(constant_ptr, 0, channels, channel, exists)
    dx = constant + _load_row(slope_ptr, 0, channels, channel, exists) * x
    dr = tl.zeros((CELLS, WIDTH), tl.float32)
    for question in range(image * groups, (image + 1) * groups):
        scale = _load_row(scale_ptr, question, channels, channel, exists)
        offset = _load_row(offset_ptr, question, channels, channel, exists)
        dout = tl.load(dout_ptr + question * size + here, mask=mask, other=0.0).to(tl.float32)
        dx += tl.where(scale * x + offset > 0, scale * dout, 0.0)
        dr += dout
    dtype = dx_ptr.dtype.element_ty
    tl.store(dx_ptr + image * size + here, dx.to(dtype), mask=mask)
    if dr_ptr is not None:
        tl.store(dr_ptr + image * size + here, dr.to(dtype), mask=mask)


@triton.jit
def _pool(
    x_ptr,  # (B, cells, C)
    scale_ptr,  # (C)
    offset_ptr,  # (C)
    pooled_ptr,  # (B, C), out
    place_ptr,  # (B, C), out: the cell of the maximum
    cells,
    channels,
    CELLS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The maximum over the cells of a map, and where it is."""
    image = tl.program_id(0).to(tl.int64)
    channel, exists = _channels(channels, 1, WIDTH)
    scale = _load_row(scale_ptr, 0, channels, channel, exists)
    offset = _load_row(offset_ptr, 0, channels, channel, exists)
    x_ptr += image * cells * channels + channel[None]
    best = tl.full((CELLS, WIDTH), float("-inf"), tl.float32)
    place = tl.zeros((CELLS, WIDTH), tl.int32)
    invalid = tl.zeros((CELLS, WIDTH), tl.int32)
    for start in range(0, cells, CELLS):
        cell = (start + tl.arange(0, CELLS))[:, None]
        mask = (cell < cells) & exists[None]
        x = tl.load(x_ptr + cell * channels, mask=mask, other=0.0).to(tl.float32)
        y = tl.where(mask, scale * x + offset, float("-inf"))
        invalid += tl.where(y != y, 1, 0)
        place = tl.where(y > best, cell, place)
        best = tl.maximum(y, best)
    highest = tl.max(best, 0)
    # Of equal ones the first, so that one cell has the gradient.
    place = tl.min(tl.where(best == highest[None], place, cells), 0)
    out = image * channels + channel
    # A NaN stays one, as in torch.
    highest = tl.where(tl.sum(invalid, 0) > 0, float("nan"), tl.maximum(highest, 0.0))
    tl.store(pooled_ptr + out, highest.to(pooled_ptr.dtype.element_ty), mask=exists)
    tl.store(place_ptr + out, tl.minimum(place, cells - 1), mask=exists)


@triton.jit
def _pool_backward(
    x_ptr,  # (B, cells, C)
    peak_ptr,  # (B, C): the gradient at the maximum, but for what μ and σ add
    place_ptr,  # (B, C)
    constant_ptr,  # (C)
    slope_ptr,  # (C)
    dx_ptr,  # (B, cells, C), out
    cells,
    channels,
    CELLS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Some cells of a map."""
    image = tl.program_id(0).to(tl.int64)
    channel, exists = _channels(channels, 2, WIDTH)
    cell = (tl.program_id(1) * CELLS + tl.arange(0, CELLS))[:, None]
    mask = (cell < cells) & exists[None]
    here = image * cells * channels + cell * channels + channel[None]
    x = tl.load(x_ptr + here, mask=mask, other=0.0).to(tl.float32)
    constant = _load_row(constant_ptr, 0, channels, channel, exists)
    slope = _load_row(slope_ptr, 0, channels, channel, exists)
    peak = _load_row(peak_ptr, image, channels, channel, exists)
    place = tl.load(place_ptr + image * channels + channel, mask=exists, other=0)[None]
    dx = constant + slope * x + tl.where(cell == place, peak, 0.0)
    tl.store(dx_ptr + here, dx.to(dx_ptr.dtype.element_ty), mask=mask)
