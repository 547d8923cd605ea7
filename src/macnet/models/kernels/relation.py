"""RN's sum over all pairs (`relation_network.py`) as Triton kernels, bound by memory.

An array h (B, P, g) of all P = L² pairs of B questions is more than a gigabyte, so that what counts
is how often one is read or written. Forwards each layer reads one and writes one, with bias and
ReLU on the way; the last sums its columns too. Backwards each gradient is written over the output
of the ReLU that it passes, whose sign it needs, and no other array is made:

    h_1 = relu(a_i + b_j + q)       h_k = relu(W_k h_{k−1} + c_k)       sum = Σ_pairs h_n
    d_n = dsum ⊙ (h_n > 0)          d_{k−1} = (W_kᵀ d_k) ⊙ (h_{k−1} > 0)

    dW_k = Σ_pairs d_k h_{k−1}ᵀ     dc_k = Σ_pairs d_k     da_i = Σ_j d_1     db_j = Σ_i d_1

A program computes all g columns of some pairs of one question. Sums over pairs are of each program
first, in float32, and then of the programs in torch, so that they are the same at each run.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor
from torch.autograd.function import once_differentiable

from macnet.models.layers import needs_gradient

FORWARD = {"ROWS": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 3}
BACKWARD = {"ROWS": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 3}
LAST = {"ROWS": 64, "num_warps": 8}
PAIRS = {"ROWS": 32, "num_warps": 4}
SUMS = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4}


def sum_over_pairs(
    a: Tensor, b: Tensor, q: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Tensor:
    """Σ_i Σ_j of the layers after the first, of relu(a_i + b_j + q): (B, g), in float32.

    a and b are (N, L, g), q is (B, g), all in the precision to compute in; the weights are (g, g)
    and the biases (g), of the second layer to the last.
    """
    inputs = a, b, q, *weights, *biases
    out: Tensor = _SumOverPairs.apply(needs_gradient(*inputs), *inputs)
    return out


class _SumOverPairs(torch.autograd.Function):
    """All layers over all pairs, and the sum."""

    @staticmethod
    def forward(ctx: Any, keeps: bool, a: Tensor, b: Tensor, q: Tensor, *layers: Tensor) -> Tensor:
        # a, b: (N, L, g)   q: (B, g)   layers: all weights (g, g), then all biases (g)
        (n, cells, g), batch = a.shape, len(q)
        ctx.images, ctx.cells, ctx.dtypes = n, cells, [x.dtype for x in (a, b, q, *layers)]
        weights = [weight.to(a.dtype).contiguous() for weight in layers[: len(layers) // 2]]
        pairs = cells * cells
        tiles = triton.cdiv(pairs, FORWARD["ROWS"])
        sums = a.new_empty(batch, tiles, g, dtype=torch.float32)
        outputs: list[Tensor | None] = []  # of each layer
        with torch.cuda.device_of(a):
            h: Tensor | None = a.new_empty(batch, pairs, g)
            arrays = [x.contiguous() for x in (a, b, q.to(a.dtype))]
            _add_pairs[batch * cells,](*arrays, h, cells, batch // n, SIZE=g, **PAIRS)
            for k, weight in enumerate(weights):
                is_last = k == len(weights) - 1
                y = a.new_empty(batch, pairs, g) if keeps or not is_last else None
                bias = layers[len(weights) + k].float().contiguous()
                _layer[batch * tiles,](
                    *(h, weight, bias, y, sums if is_last else None, pairs), SIZE=g, **FORWARD
                )
                if keeps:
                    outputs.append(h)
                h = y  # without gradients, this frees what the layer read
        if keeps:
            # Backward overwrites these, which tensors that autograd saves must not be.
            ctx.outputs = [*outputs, h]
            ctx.save_for_backward(*weights)
        return sums.sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dsum: Tensor) -> tuple[Tensor | None, ...]:
        # dsum: (B, g)
        if ctx.outputs is None:
            raise RuntimeError(
                "the sum over pairs was differentiated once, which overwrote what it kept; "
                "run the forward pass again before another backward pass"
            )
        outputs, ctx.outputs = ctx.outputs, None
        weights, n, cells = ctx.saved_tensors, ctx.images, ctx.cells
        dy = outputs.pop()
        batch, pairs, g = dy.shape
        dsum = dsum.float().contiguous()
        tiles = triton.cdiv(pairs, LAST["ROWS"])
        sums = dsum.new_empty(batch * tiles, g)
        dweights, dbiases = [], []
        with torch.cuda.device_of(dy):
            _last_backward[batch * tiles,](dsum, dy, sums, pairs, SIZE=g, **LAST)
            for weight in reversed(weights):
                x = outputs.pop()
                dbiases.append(sums.sum(0))
                dweights.append(_sum_of_products(dy, x, n))
                tiles = triton.cdiv(pairs, BACKWARD["ROWS"])
                sums = dsum.new_empty(batch * tiles, g)
                of_bias = sums if outputs else None  # the first layer's is that of q
                _layer_backward[batch * tiles,](
                    *(dy, weight, x, of_bias, pairs), SIZE=g, **BACKWARD
                )
                dy = x
            parts = triton.cdiv(cells, SUMS["ROWS"])
            over_j = dsum.new_empty(batch, parts, cells, g)
            over_i = dsum.new_empty(batch, cells, g)
            grid = batch * parts, g // SUMS["COLUMNS"]
            _sum_pairs[grid](dy, over_j, over_i, cells, parts, SIZE=g, **SUMS)
        gradients = (
            over_j.view(n, -1, cells, g).sum(1),
            over_i.view(n, -1, cells, g).sum(1),
            over_i.sum(1),
            *reversed(dweights),
            *reversed(dbiases),
        )
        return None, *(d.to(dtype) for d, dtype in zip(gradients, ctx.dtypes, strict=True))


def _sum_of_products(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """Σ a_p b_pᵀ over all pairs p of all questions: (B, P, m), (B, P, n) → (m, n)."""
    # One product has few tiles and millions of terms; one of each image keeps a GPU busy. Each is
    # rounded to the precision of a and b before they are added in float32.
    a, b = a.view(parts, -1, a.shape[-1]), b.view(parts, -1, b.shape[-1])
    return torch.bmm(a.transpose(1, 2), b).sum(0, dtype=torch.float32)


@triton.jit
def _relu(x):
    """max(x, 0), which a NaN stays."""
    return tl.where(x < 0, 0.0, x)


@triton.jit
def _rows(pairs, SIZE: tl.constexpr, ROWS: tl.constexpr):
    """This program's question and pairs: where they are in (B, P, g), and which exist."""
    tiles = tl.cdiv(pairs, ROWS)
    question = tl.program_id(0) // tiles
    pair = tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    row = question.to(tl.int64) * pairs + pair
    return question, row[:, None] * SIZE, (pair < pairs)[:, None]  # (), (M, 1), (M, 1)


@triton.jit
def _add_pairs(
    a_ptr,  # (N, L, g)
    b_ptr,  # (N, L, g)
    q_ptr,  # (B, g)
    h_ptr,  # (B, L, L, g), out
    cells,
    groups,  # questions of an image
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """relu(a_i + b_j + q) of one question and i, and all j."""
    question = tl.program_id(0) // cells
    i = tl.program_id(0) % cells
    image = question // groups
    unit = tl.arange(0, SIZE)
    a = tl.load(a_ptr + (image * cells + i).to(tl.int64) * SIZE + unit).to(tl.float32)
    a += tl.load(q_ptr + question * SIZE + unit).to(tl.float32)
    b_in = b_ptr + image.to(tl.int64) * cells * SIZE + unit[None]
    out = h_ptr + tl.program_id(0).to(tl.int64) * cells * SIZE + unit[None]
    for start in range(0, cells, ROWS):
        j = start + tl.arange(0, ROWS)[:, None]
        b = tl.load(b_in + j * SIZE, mask=j < cells, other=0.0).to(tl.float32)
        h = _relu(a[None] + b)
        tl.store(out + j * SIZE, h.to(h_ptr.dtype.element_ty), mask=j < cells)


@triton.jit
def _layer(
    x_ptr,  # (B, P, g)
    weight_ptr,  # (g, g)
    bias_ptr,  # (g)
    y_ptr,  # (B, P, g), out, or None
    sums_ptr,  # (B, tiles, g), out, or None
    pairs,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """y = relu(W x + bias) of M = ROWS pairs, and its sum over them."""
    _, rows, exists = _rows(pairs, SIZE, ROWS)
    unit = tl.arange(0, SIZE)
    term = tl.arange(0, DEPTH)
    x_in = x_ptr + rows + term[None]  # (M, K)
    weights_in = weight_ptr + unit[None] * SIZE + term[:, None]  # (K, g)
    y = tl.zeros((ROWS, SIZE), tl.float32)
    for start in range(0, SIZE, DEPTH):
        x = tl.load(x_in + start, mask=exists, other=0.0)
        y = tl.dot(x, tl.load(weights_in + start), y)
    y = _relu(y + tl.load(bias_ptr + unit)[None])
    if y_ptr is not None:
        tl.store(y_ptr + rows + unit[None], y.to(y_ptr.dtype.element_ty), mask=exists)
    if sums_ptr is not None:
        out = sums_ptr + tl.program_id(0).to(tl.int64) * SIZE + unit
        tl.store(out, tl.sum(tl.where(exists, y, 0.0), 0))


@triton.jit
def _last_backward(
    dsum_ptr,  # (B, g)
    y_ptr,  # (B, P, g), in; out, its gradient before the ReLU
    sums_ptr,  # (B, tiles, g), out
    pairs,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The gradients of the last layer, and their sum over M = ROWS pairs."""
    question, rows, exists = _rows(pairs, SIZE, ROWS)
    unit = tl.arange(0, SIZE)
    dsum = tl.load(dsum_ptr + question * SIZE + unit)[None]
    y = tl.load(y_ptr + rows + unit[None], mask=exists, other=0.0)
    dy = tl.where(y <= 0, 0.0, dsum)
    tl.store(y_ptr + rows + unit[None], dy.to(y_ptr.dtype.element_ty), mask=exists)
    tl.store(sums_ptr + tl.program_id(0).to(tl.int64) * SIZE + unit, tl.sum(dy, 0))


@triton.jit
def _layer_backward(
    dy_ptr,  # (B, P, g)
    weight_ptr,  # (g, g)
    x_ptr,  # (B, P, g), in; out, its gradient before the ReLU
    sums_ptr,  # (B, tiles, g), out, or None
    pairs,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """dx = (Wᵀ dy) ⊙ (x > 0) of M = ROWS pairs, and its sum over them."""
    _, rows, exists = _rows(pairs, SIZE, ROWS)
    unit = tl.arange(0, SIZE)
    term = tl.arange(0, DEPTH)
    dy_in = dy_ptr + rows + term[None]  # (M, K)
    weights_in = weight_ptr + term[:, None] * SIZE + unit[None]  # (K, g)
    dx = tl.zeros((ROWS, SIZE), tl.float32)
    for start in range(0, SIZE, DEPTH):
        dy = tl.load(dy_in + start, mask=exists, other=0.0)
        dx = tl.dot(dy, tl.load(weights_in + start * SIZE), dx)
    x = tl.load(x_ptr + rows + unit[None], mask=exists, other=0.0)
    dx = tl.where(x <= 0, 0.0, dx.to(x.dtype))  # rounded first: that takes fewer registers
    tl.store(x_ptr + rows + unit[None], dx, mask=exists)
    if sums_ptr is not None:
        out = sums_ptr + tl.program_id(0).to(tl.int64) * SIZE + unit
        tl.store(out, tl.sum(dx.to(tl.float32), 0))


@triton.jit
def _sum_pairs(
    d_ptr,  # (B, L, L, g)
    over_j_ptr,  # (B, parts, L, g), out
    over_i_ptr,  # (B, L, g), out
    cells,
    parts,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The sums of one question over M = ROWS of its j, for each i, and over all i, for each j."""
    question = (tl.program_id(0) // parts).to(tl.int64)
    j = tl.program_id(0) % parts * ROWS + tl.arange(0, ROWS)[:, None]  # (M, 1)
    unit = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)  # (C)
    at = j * SIZE + unit[None]  # (M, C)
    d_in = d_ptr + question * cells * cells * SIZE + at
    out = over_j_ptr + tl.program_id(0).to(tl.int64) * cells * SIZE + unit
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(cells):
        d = tl.load(d_in, mask=j < cells, other=0.0).to(tl.float32)
        tl.store(out, tl.sum(d, 0))
        total += d
        d_in += cells * SIZE
        out += SIZE
    tl.store(over_i_ptr + question * cells * SIZE + at, total, mask=j < cells)
