"""The attention of `attention.py` as one Triton kernel that serves both directions.

Forwards, x is the queries, and what lies between the two products is a softmax. Backwards, x is the
gradient of the sums, and between the products is the softmax's derivative. Either way a block holds
all L weights of 16 queries, and the elements pass through it twice, some columns at a time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES = 16  # the least a tensor core multiplies
SPLIT_BELOW = 128  # sets of elements: with fewer, two programs share the sums of each


def attention(
    x: Tensor, elements: Tensor, is_pad: Tensor | None, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Forwards: queries x (N·G, d), elements (N, L, d) → sums (N·G, d), weights (N·G, L).

    Backwards, where the weights are given, x is the gradient of the sums; returned are those of the
    queries and of the logits.
    """
    n, size, d = elements.shape
    x = x.contiguous()
    out, between = torch.empty_like(x), x.new_empty(len(x), size)
    queries = len(x) // n
    block = max(16, triton.next_power_of_2(size))
    # An array that is absent is not read either, but must have an address.
    arrays = (x, elements, x if is_pad is None else is_pad, x if weights is None else weights)
    has_pad, is_backward = is_pad is not None, weights is not None
    options = {"D": d, "HAS_PAD": has_pad, "BACKWARD": is_backward, "BLOCK": block}
    with torch.cuda.device_of(elements):
        if queries == 1 and block <= 64 and d == triton.next_power_of_2(d) <= 1024:
            _attention_of_one[(n,)](*(*arrays, out, between, size), **options, ROWS=8, num_warps=2)
            return out, between
        columns = 64 if block <= 256 else 32
        parts = 2 if n < SPLIT_BELOW and d % (2 * columns) == 0 else 1
        _attention[(n, triton.cdiv(queries, QUERIES), parts)](
            *(*arrays, out, between, queries, size),
            **options,
            QUERIES=QUERIES,
            COLUMNS=columns,
            PARTS=parts,
            num_warps=2 if block <= 64 else 4,
            num_stages=3,
        )
    return out, between


@triton.jit
def _attention(
    x_ptr,
    elements_ptr,
    is_pad_ptr,
    weights_ptr,
    out_ptr,
    between_ptr,
    queries,
    size,
    D: tl.constexpr,
    HAS_PAD: tl.constexpr,
    BACKWARD: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    PARTS: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    query = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    element = tl.arange(0, BLOCK)
    rows = (n * queries + query)[:, None]
    is_query, shown = (query < queries)[:, None], element < size
    between = rows * size + element[None]
    is_between = is_query & shown[None]
    if HAS_PAD:
        shown &= tl.load(is_pad_ptr + n * size + element, mask=shown, other=1) == 0
    elements_ptr += n * size * D + element[:, None] * D

    product = tl.zeros((QUERIES, BLOCK), tl.float32)
    for start in range(0, D, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None]
        x = tl.load(x_ptr + rows * D + column, mask=is_query & (column < D), other=0.0)
        e = tl.load(elements_ptr + column, mask=shown[:, None] & (column < D), other=0.0)
        product = tl.dot(x, tl.trans(e), product)

    if BACKWARD:
        weights = tl.load(weights_ptr + between, mask=is_between, other=0.0).to(tl.float32)
        w = weights * (product - tl.sum(weights * product, 1)[:, None])
    else:
        product = tl.where(shown[None], product, float("-inf"))
        w = tl.exp(product - tl.max(product, 1)[:, None])
        w = w / tl.sum(w, 1)[:, None]
    w = w.to(between_ptr.dtype.element_ty)
    if tl.program_id(2) == 0:
        tl.store(between_ptr + between, w, mask=is_between)

    part = tl.program_id(2) * (D // PARTS)
    for start in range(0, D // PARTS, COLUMNS):
        column = part + start + tl.arange(0, COLUMNS)[None]
        e = tl.load(elements_ptr + column, mask=shown[:, None] & (column < D), other=0.0)
        out = tl.dot(w, e).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + rows * D + column, out, mask=is_query & (column < D))


@triton.jit
def _attention_of_one(
    x_ptr,
    elements_ptr,
    is_pad_ptr,
    weights_ptr,
    out_ptr,
    between_ptr,
    size,
    D: tl.constexpr,
    HAS_PAD: tl.constexpr,
    BACKWARD: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The same for one query to few elements, a question's words: whole rows, no tensor cores."""
    n = tl.program_id(0).to(tl.int64)
    element, column = tl.arange(0, BLOCK), tl.arange(0, D)
    shown = element < size
    if HAS_PAD:
        shown &= tl.load(is_pad_ptr + n * size + element, mask=shown, other=1) == 0
    end = tl.max(tl.where(shown, element, 0), 0) + 1  # words fill only part of their block
    elements_ptr += n * size * D
    x = tl.load(x_ptr + n * D + column).to(tl.float32)

    product = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, end, ROWS):
        row = start + tl.arange(0, ROWS)
        e = tl.load(
            elements_ptr + row[:, None] * D + column[None], mask=(row < end)[:, None], other=0.0
        )
        here = element[:, None] == row[None]
        product += tl.sum(tl.where(here, tl.sum(e.to(tl.float32) * x[None], 1)[None], 0.0), 1)

    at = n * size + element
    if BACKWARD:
        weights = tl.load(weights_ptr + at, mask=shown, other=0.0).to(tl.float32)
        w = weights * (product - tl.sum(weights * product, 0))
    else:
        product = tl.where(shown, product, float("-inf"))
        w = tl.exp(product - tl.max(product, 0))
        w = w / tl.sum(w, 0)
    tl.store(between_ptr + at, w.to(between_ptr.dtype.element_ty), mask=element < size)

    out = tl.zeros((ROWS, D), tl.float32)
    for start in range(0, end, ROWS):
        row = start + tl.arange(0, ROWS)
        e = tl.load(
            elements_ptr + row[:, None] * D + column[None], mask=(row < end)[:, None], other=0.0
        )
        weight = tl.sum(tl.where(element[None] == row[:, None], w[None], 0.0), 1)
        out += e.to(tl.float32) * weight[:, None]
    tl.store(out_ptr + n * D + column, tl.sum(out, 0).to(out_ptr.dtype.element_ty))
