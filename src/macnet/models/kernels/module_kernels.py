"""The Triton kernels of `execution.py`, which says what their arrays are.

A level is a range of nodes that is known on the device only. The programs of a kernel are as many
as the GPU runs at once, and share out the tiles of a level: some cells of one node each.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

MODES = ("hidden", "output", "dhidden", "dinput")
"""What a convolution makes: relu(W_1 * x + b_1), relu(x + W_2 * h + b_2), and their gradients."""
HIDDEN, OUTPUT, DHIDDEN, DINPUT = (tl.constexpr(mode) for mode in range(4))


@triton.jit
def _range(starts_ptr, k):
    """The first node of level k, or chunk of module k, and how many there are."""
    first = tl.load(starts_ptr + k)
    return first, tl.load(starts_ptr + k + 1) - first


@triton.jit(do_not_specialize=["level"])
def convolve(
    x_ptr,
    weight_ptr,  # (T, C, 9, C)
    out_ptr,
    inputs_ptr,
    modules_ptr,
    pairs_ptr,
    starts_ptr,
    level,
    images,
    height,
    width,
    bias_ptr,  # (T, C), or None
    add_ptr,  # what is added, or None
    gate_ptr,  # where this is not positive, nothing passes back
    pairs_out_ptr,  # where the gradient of what a pair combines goes
    C: tl.constexpr,
    MODE: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A 3×3 convolution of each node of a level, or its transpose; M = ROWS cells at a time."""
    first, count = _range(starts_ptr, level)
    cells = height * width
    tiles = tl.cdiv(cells, ROWS)
    channel = tl.arange(0, C)
    for tile in range(tl.program_id(0), count * tiles, tl.num_programs(0)):
        n = first + tile // tiles
        cell = tile % tiles * ROWS + tl.arange(0, ROWS)
        y, x = cell // width, cell % width
        takes = tl.load(inputs_ptr + n).to(tl.int64)
        own = n.to(tl.int64)
        row = takes if MODE == HIDDEN else own
        module = tl.load(modules_ptr + n)
        # What changes from tap to tap is only added to these.
        a_ptr = x_ptr + row * cells * C + cell[:, None] * C
        w_ptr = weight_ptr + module * 9 * C * C
        acc = tl.zeros((ROWS, C), tl.float32)
        for tap in range(9):
            dy, dx = tap // 3 - 1, tap % 3 - 1
            if MODE >= DHIDDEN:
                dy, dx = -dy, -dx
            inside = (cell < cells) & (y + dy >= 0) & (y + dy < height)
            inside = inside & (x + dx >= 0) & (x + dx < width)
            shift = (dy * width + dx) * C
            for k in tl.static_range(0, C, DEPTH):
                term = k + tl.arange(0, DEPTH)
                a = tl.load(a_ptr + shift + term[None], mask=inside[:, None], other=0.0)  # (M, K)
                if MODE < DHIDDEN:  # (K, C): of input channels to output channels
                    w = tl.load(w_ptr + tap * C + channel[None] * 9 * C + term[:, None])
                else:  # (K, C): of output channels to input channels
                    w = tl.load(w_ptr + tap * C + term[:, None] * 9 * C + channel[None])
                acc = tl.dot(a, w, acc, input_precision=PRECISION)
        exists = (cell < cells)[:, None]
        to_own = (own * cells + cell)[:, None] * C + channel[None]  # (M, C)
        to_taken = (takes * cells + cell)[:, None] * C + channel[None]
        dtype = out_ptr.dtype.element_ty
        if MODE == HIDDEN:
            acc += tl.load(bias_ptr + module * C + channel)[None]
            tl.store(out_ptr + to_own, tl.maximum(acc, 0.0).to(dtype), mask=exists)
        if MODE == OUTPUT:
            acc += tl.load(bias_ptr + module * C + channel)[None]
            acc += tl.load(add_ptr + to_taken, mask=exists, other=0.0)
            to_output = ((own + images) * cells + cell)[:, None] * C + channel[None]
            tl.store(out_ptr + to_output, tl.maximum(acc, 0.0).to(dtype), mask=exists)
        if MODE == DHIDDEN:
            gate = tl.load(gate_ptr + to_own, mask=exists, other=0.0)
            tl.store(out_ptr + to_own, tl.where(gate > 0, acc, 0.0).to(dtype), mask=exists)
        if MODE == DINPUT:
            acc += tl.load(add_ptr + to_own, mask=exists, other=0.0)
            if tl.load(pairs_ptr + module) >= 0:
                gate = tl.load(gate_ptr + to_taken, mask=exists, other=0.0)
                passed = tl.where(gate > 0, acc, 0.0).to(dtype)
                tl.store(pairs_out_ptr + to_own, passed, mask=exists)
            else:
                tl.store(out_ptr + to_own, acc.to(dtype), mask=exists)


@triton.jit(do_not_specialize=["level"])
def combine(
    maps_ptr,
    weight_ptr,  # (pairs, C, 2, C)
    bias_ptr,  # (pairs, C)
    first_ptr,
    second_ptr,
    modules_ptr,
    pairs_ptr,
    starts_ptr,
    level,
    offset,  # the first row of what is combined
    cells,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """relu(W [x, y] + b) for each pair of a level; M = ROWS cells at a time."""
    start, count = _range(starts_ptr, level)
    tiles = tl.cdiv(cells, ROWS)
    channel = tl.arange(0, C)
    term = tl.arange(0, DEPTH)
    for tile in range(tl.program_id(0), count * tiles, tl.num_programs(0)):
        n = start + tile // tiles
        pair = tl.load(pairs_ptr + tl.load(modules_ptr + n))
        if pair >= 0:
            cell = tile % tiles * ROWS + tl.arange(0, ROWS)
            exists = (cell < cells)[:, None]
            x = (tl.load(first_ptr + n).to(tl.int64) * cells + cell)[:, None] * C
            y = (tl.load(second_ptr + n).to(tl.int64) * cells + cell)[:, None] * C
            acc = tl.zeros((ROWS, C), tl.float32)
            for k in range(0, 2 * C, DEPTH):
                at = tl.where(k < C, x, y) + (k % C + term)[None]
                a = tl.load(maps_ptr + at, mask=exists, other=0.0)
                w = tl.load(weight_ptr + (pair * C + channel[None]) * 2 * C + k + term[:, None])
                acc = tl.dot(a, w, acc, input_precision=PRECISION)
            acc += tl.load(bias_ptr + pair * C + channel)[None]
            out = ((offset + n).to(tl.int64) * cells + cell)[:, None] * C + channel[None]
            dtype = maps_ptr.dtype.element_ty
            tl.store(maps_ptr + out, tl.maximum(acc, 0.0).to(dtype), mask=exists)


@triton.jit(do_not_specialize=["level"])
def split(
    dpairs_ptr,
    weight_ptr,  # (pairs, C, 2, C)
    gradients_ptr,
    modules_ptr,
    pairs_ptr,
    starts_ptr,
    level,
    nodes,
    cells,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The transposed product for each pair of a level: of the first input, and of the second."""
    start, count = _range(starts_ptr, level)
    tiles = tl.cdiv(cells, ROWS)
    channel = tl.arange(0, C)
    term = tl.arange(0, DEPTH)
    for tile in range(tl.program_id(0), count * tiles * 2, tl.num_programs(0)):
        side = tile % 2
        n = start + tile // 2 // tiles
        pair = tl.load(pairs_ptr + tl.load(modules_ptr + n))
        if pair >= 0:
            cell = tile // 2 % tiles * ROWS + tl.arange(0, ROWS)
            exists = (cell < cells)[:, None]
            at = (n.to(tl.int64) * cells + cell)[:, None] * C
            acc = tl.zeros((ROWS, C), tl.float32)
            for k in range(0, C, DEPTH):
                a = tl.load(dpairs_ptr + at + (k + term)[None], mask=exists, other=0.0)
                where = (pair * C + k + term[:, None]) * 2 * C + side * C + channel[None]
                acc = tl.dot(a, tl.load(weight_ptr + where), acc, input_precision=PRECISION)
            out = ((n + side * nodes).to(tl.int64) * cells + cell)[:, None] * C + channel[None]
            dtype = gradients_ptr.dtype.element_ty
            tl.store(gradients_ptr + out, acc.to(dtype), mask=exists)


@triton.jit(do_not_specialize=["level"])
def pass_relu(
    gradients_ptr,
    maps_ptr,
    errors_ptr,
    rows_ptr,  # of each node's gradient
    starts_ptr,
    level,
    images,
    size,
    BLOCK: tl.constexpr,
):
    """The gradients of a level's outputs where these are positive, else 0."""
    start, count = _range(starts_ptr, level)
    tiles = tl.cdiv(size, BLOCK)
    for tile in range(tl.program_id(0), count * tiles, tl.num_programs(0)):
        n = start + tile // tiles
        at = tile % tiles * BLOCK + tl.arange(0, BLOCK)
        row = tl.load(rows_ptr + n).to(tl.int64)
        own = n.to(tl.int64)
        gradient = tl.load(gradients_ptr + row * size + at, mask=at < size, other=0.0)
        output = tl.load(maps_ptr + (own + images) * size + at, mask=at < size, other=0.0)
        passed = tl.where(output > 0, gradient, 0.0)
        tl.store(errors_ptr + own * size + at, passed, mask=at < size)


@triton.jit
def sum_scenes(
    gradients_ptr,
    rows_ptr,  # (B, P)
    counts_ptr,  # (B)
    width,  # P
    each,  # programs about an image
    first,  # the first row of the sums
    size,
    BLOCK: tl.constexpr,
):
    """Sum the gradients of all `scene`s of an image."""
    image = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for b in range(image * each, (image + 1) * each):
        for k in range(tl.load(counts_ptr + b)):
            row = tl.load(rows_ptr + b * width + k).to(tl.int64)
            acc += tl.load(gradients_ptr + row * size + at, mask=at < size, other=0.0)
    out = (first + image).to(tl.int64) * size + at
    tl.store(gradients_ptr + out, acc.to(gradients_ptr.dtype.element_ty), mask=at < size)


@triton.jit
def sum_chunk(
    x_ptr,
    errors_ptr,
    weights_ptr,  # (chunks, C, taps, C), out
    rows_ptr,  # of x, or None if a node's row is its own
    second_ptr,  # those of the second inputs
    modules_ptr,
    pairs_ptr,
    order_ptr,
    starts_ptr,  # (chunks, 2)
    height,
    width,
    C: tl.constexpr,
    TAPS: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum the gradients of the weights of a tap over a chunk of nodes, K = ROWS cells at a time."""
    chunk, tap = tl.program_id(0), tl.program_id(1)
    start = tl.load(starts_ptr + 2 * chunk)
    end = tl.load(starts_ptr + 2 * chunk + 1)
    if start >= end:
        return
    if TAPS == 2:
        if tl.load(pairs_ptr + tl.load(modules_ptr + tl.load(order_ptr + start))) < 0:
            return
        rows_ptr = rows_ptr if tap == 0 else second_ptr
    cells = height * width
    channel = tl.arange(0, C)
    acc = tl.zeros((C, C), tl.float32)
    for first in range(0, cells, ROWS):
        cell = first + tl.arange(0, ROWS)
        exists = cell < cells
        inside, shift = exists, 0
        if TAPS == 9:
            dy, dx = tap // 3 - 1, tap % 3 - 1
            at_y, at_x = cell // width + dy, cell % width + dx
            inside = exists & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            shift = dy * width + dx
        at = cell[:, None] * C + channel[None]  # (K, C)
        for k in range(start, end):
            n = tl.load(order_ptr + k).to(tl.int64)
            row = n
            if rows_ptr is not None:
                row = tl.load(rows_ptr + n).to(tl.int64)
            error = tl.load(errors_ptr + n * cells * C + at, mask=exists[:, None], other=0.0)
            x_at = x_ptr + (row * cells + shift) * C + at
            x = tl.load(x_at, mask=inside[:, None], other=0.0)
            acc = tl.dot(tl.trans(error), x, acc, input_precision=PRECISION)
    out = (chunk.to(tl.int64) * C + channel[:, None]) * TAPS * C + tap * C + channel[None]
    tl.store(weights_ptr + out, acc)


@triton.jit
def sum_bias_chunk(
    errors_ptr,
    biases_ptr,  # (chunks, C), out
    order_ptr,
    starts_ptr,  # (chunks, 2)
    cells,
    C: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Sum the gradients of biases over a chunk of nodes."""
    chunk = tl.program_id(0)
    start, end = tl.load(starts_ptr + 2 * chunk), tl.load(starts_ptr + 2 * chunk + 1)
    channel = tl.arange(0, C)
    acc = tl.zeros((ROWS, C), tl.float32)
    for k in range(start, end):
        n = tl.load(order_ptr + k).to(tl.int64)
        for first in range(0, cells, ROWS):
            cell = first + tl.arange(0, ROWS)
            at = errors_ptr + n * cells * C + cell[:, None] * C + channel[None]
            acc += tl.load(at, mask=(cell < cells)[:, None], other=0.0)
    tl.store(biases_ptr + chunk * C + channel, tl.sum(acc, 0))


@triton.jit
def sum_chunks(
    parts_ptr, out_ptr, chunks_ptr, pairs_ptr, size, PAIRS: tl.constexpr, BLOCK: tl.constexpr
):
    """Sum over the chunks of a module."""
    module = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    out = tl.load(pairs_ptr + module) if PAIRS else module
    if out >= 0:
        acc = tl.zeros((BLOCK,), tl.float32)
        first, count = _range(chunks_ptr, module)
        for k in range(count):
            part = parts_ptr + (first + k).to(tl.int64) * size + at
            acc += tl.load(part, mask=at < size, other=0.0)
        tl.store(out_ptr + out * size + at, acc, mask=at < size)
