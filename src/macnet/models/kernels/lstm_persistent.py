"""The steps of the bidirectional LSTM in one launch per pass, on the H100 and H200.

`lstm.py` launches each step anew, and each launch reads the recurrent weights anew. Here every
program keeps the weights of its units in shared memory over all steps, and before each step waits
for the programs that make the other units of the same questions; so all of them must run at once.

The questions, longest first, are cut into tiles. The programs form groups, and each group reads a
share of the tiles; within it, each program makes some units of one direction. The group that got
the longest tile gets the shortest of all further rounds, which gives the groups much the same work.

On an H200 it saves 14.3% of the whole training step of preset `paper` (5.749 → 4.927 ms) and 2.3%
of `reference`, but nothing of `pixels`, whose 192 units it does not support
(results/lstm_persistent_h200.json, by benchmarks/lstm_persistent.py).

This is written in Gluon, the level below Triton, where one says what lies in shared memory. Gluon
changes with each release: from 3.5 to 3.8 this compiles, and on others it cannot be imported.
"""

# The arguments of Triton's kernels have no types, and their constants are written in capitals.
# ruff: noqa: N806
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor
from triton.experimental import gluon  # type: ignore[import-not-found,unused-ignore]
from triton.experimental.gluon import language as gl  # type: ignore[import-not-found,unused-ignore]
from triton.experimental.gluon.language.nvidia import (  # type: ignore[import-not-found,unused-ignore]
    hopper,
)

if not (3, 5) <= tuple(int(n) for n in triton.__version__.split(".")[:2]) <= (3, 8):
    raise ImportError(f"the LSTM in one launch needs Triton 3.5 to 3.8, not {triton.__version__}")

copy, copied = hopper.async_copy.async_copy_global_to_shared, hopper.async_copy.wait_group
commit, fence_async_shared = hopper.async_copy.commit_group, hopper.fence_async_shared
warpgroup_mma, warpgroup_mma_wait = hopper.warpgroup_mma, hopper.warpgroup_mma_wait
warpgroup_mma_init = hopper.warpgroup_mma_init
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # Triton 3.7 renamed it

ROWS = gl.constexpr(64)
"""Questions per tile: as many as these GPUs' tensor cores multiply at once."""
COLUMNS = gl.constexpr(32)
"""Units per program: of 512, their weights are 128 KB of the 227 KB of shared memory."""
DEPTH = gl.constexpr(128)
"""Terms of a product that are copied to shared memory at once."""
STAGES = gl.constexpr(5)
"""The backward pass's buffers for such copies: what is left of shared memory."""

# Of a product, each thread is given pairs of neighbouring columns, eight columns apart. The weights
# are therefore put in an order of columns that makes a thread's units neighbours: then it loads and
# stores 8 or 16 bytes of every row at once. A forward step's columns are (half, gate, pair, thread,
# one of two), and its units (half, thread, pair, one of two): two halves, as its eight warps form
# two groups. A backward step's are (pair, thread, one of two) and (thread, pair, one of two).
#
# The units of a tile then lie so, each bit of the index of a register, thread or warp at a bit of
# (row, unit):
UNITS_FORWARD = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [8, 0]],
        lane_bases=[[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0], [0, 16]],
        block_bases=[],
        shape=[64, 32],
    )
)
UNITS_BACKWARD = gl.constexpr(
    gl.DistributedLinearLayout(
        reg_bases=[[0, 1], [0, 2], [0, 4], [8, 0]],
        lane_bases=[[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[16, 0], [32, 0]],
        block_bases=[],
        shape=[64, 32],
    )
)


def count_groups(units: int, device: torch.device) -> int:
    """The groups of programs that the GPU runs at once; 0 if it or the LSTM is not supported."""
    gpu = torch.cuda.get_device_properties(device)
    if gpu.major != 9 or units % DEPTH.value or units > 512:
        return 0
    return int(gpu.multi_processor_count // (units // COLUMNS.value * 2))


def forward(*arrays: Tensor | None) -> None:
    """All steps of `lstm._step`, of whose arguments these are the first eight."""
    _launch(_lstm_forward, *arrays, warps=8)


def backward(*arrays: Tensor) -> None:
    """All steps of `lstm._step_backward`, of whose arguments these are the first eight."""
    _launch(_lstm_backward, *arrays, warps=4)


def _launch(kernel: Any, *arrays: Any, warps: int) -> None:
    (batch, steps, *_), units, order = arrays[0].shape, arrays[1].shape[-1], arrays[-2]
    if not batch:
        return
    finished = order.new_zeros(-(-batch // ROWS.value), 2, dtype=torch.int32)
    grid = count_groups(units, order.device), units // COLUMNS.value, 2
    # A cooperative launch fails if the programs cannot all run at once, rather than wait for ever.
    options = {"UNITS": units, "num_warps": warps, "launch_cooperative_grid": True}
    with torch.cuda.device_of(order):
        kernel[grid](*arrays, batch, steps, finished, **options)


@gluon.jit
def _tile(k):
    """The group's k-th tile."""
    group, of = gl.program_id(0), gl.num_programs(0)
    return gl.where(k == 0, group, k * of + of - 1 - group)


@gluon.jit
def _longest(lengths_ptr, k, batch):
    """The words of the first question in the group's k-th tile; none if there is no such tile."""
    first = _tile(k) * ROWS
    return gl.load(lengths_ptr + first, mask=first < batch, other=0).to(gl.int32)


@gluon.jit
def _load_questions(order_ptr, lengths_ptr, tile, batch, LAYOUT: gl.constexpr):
    """A tile's questions; beyond the batch there are some of no words."""
    i = tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    question = gl.load(order_ptr + i, mask=i < batch, other=0)
    length = gl.load(lengths_ptr + i, mask=i < batch, other=0).to(gl.int32)
    return question, length  # (M), (M)


@gluon.jit
def _word_rows(question, length, t, steps):
    """Where a step's words are in (B, S, 2, …), when each pair (word, direction) is a row."""
    direction = gl.program_id(2)
    turned = (direction == 1) & (t < length)
    return (question * steps + gl.where(turned, length - 1 - t, t)) * 2 + direction  # (M)


@gluon.jit
def _units(LAYOUT: gl.constexpr):
    unit = gl.program_id(1) * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    return unit[None]  # (1, U)


@gluon.jit
def _zero_pad(
    out_ptr,  # (B, S, 2, PARTS, u)
    order_ptr,
    lengths_ptr,
    batch,
    steps,
    k,
    PARTS: gl.constexpr,
    UNITS: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """Write the zeros where no question of the group's k-th tile has a word."""
    question, length = _load_questions(order_ptr, lengths_ptr, _tile(k), batch, LAYOUT)
    exists = (length > 0)[:, None]
    zeros = gl.zeros([ROWS, COLUMNS], out_ptr.dtype.element_ty, LAYOUT)
    for s in range(_longest(lengths_ptr, k, batch), steps):
        row = (question * steps + s) * 2 + gl.program_id(2)
        for part in gl.static_range(PARTS):
            out = out_ptr + (row * PARTS + part)[:, None] * UNITS + _units(LAYOUT)
            gl.store(out, zeros, mask=exists)


@gluon.jit
def _wait_for_steps(finished_ptr, count):
    """Wait until the others have finished as many steps, and see what they wrote by then."""
    while _load_acquire(finished_ptr) < count:
        pass


@gluon.jit
def _load_acquire(ptr):
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l", [ptr], gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _signal_step(finished_ptr):
    """Let the others see what this program wrote."""
    barrier()
    gl.atomic_add(finished_ptr, 1, sem="release", scope="gpu")


@gluon.jit
def _tanh(x):
    """Off by 2^-11 of itself at most, where rounding to bfloat16 is by 2^-9."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _sigmoid(x):
    return 0.5 * _tanh(0.5 * x) + 0.5


@gluon.jit
def _prefetch_forward(
    gates_ptr, order_ptr, lengths_ptr, batch, steps, k, t, UNITS: gl.constexpr, COPY: gl.constexpr
):
    """Load what the t-th words of the group's k-th tile need, but for the states before them."""
    LAYOUT: gl.constexpr = UNITS_FORWARD
    tile = _tile(k)
    question, length = _load_questions(order_ptr, lengths_ptr, tile, batch, COPY)
    before = gl.where(t < length, _word_rows(question, length, t - 1, steps), -1)  # or none
    question, length = _load_questions(order_ptr, lengths_ptr, tile, batch, LAYOUT)
    reads = (t < length)[:, None]
    x_in = gates_ptr + _word_rows(question, length, t, steps)[:, None] * 4 * UNITS + _units(LAYOUT)
    x_i = gl.load(x_in, mask=reads, other=0.0)
    x_f = gl.load(x_in + UNITS, mask=reads, other=0.0)
    x_g = gl.load(x_in + 2 * UNITS, mask=reads, other=0.0)
    x_o = gl.load(x_in + 3 * UNITS, mask=reads, other=0.0)
    return tile, question, length, before, x_i, x_f, x_g, x_o


@gluon.jit(do_not_specialize=["batch", "steps"])
def _lstm_forward(
    gates_ptr,  # (B, S, 2, 4u), the inputs' part
    weight_h_ptr,  # (2, 4u, u)
    states_ptr,  # (B, S, 2, u), out, and in at the word before
    slopes_ptr,  # (B, S, 2, 6, u), out, or None
    cells_ptr,  # (B, 2, u), out, and in from the word before
    last_ptr,  # (B, 2, u), out
    order_ptr,  # (B)
    lengths_ptr,  # (B)
    batch,
    steps,
    finished_ptr,  # (tiles, 2), zeros: the steps finished, counted over the group's programs
    UNITS: gl.constexpr,
):
    """Read the group's questions into U = COLUMNS units of one direction."""
    LAYOUT: gl.constexpr = UNITS_FORWARD
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0])
    PRODUCT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 2 * COLUMNS, 16])
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    PARTS: gl.constexpr = UNITS // DEPTH
    dtype: gl.constexpr = states_ptr.dtype.element_ty
    direction = gl.program_id(2)
    rounds = gl.cdiv(gl.cdiv(batch, ROWS), gl.num_programs(0))
    for k in range(rounds):
        _zero_pad(states_ptr, order_ptr, lengths_ptr, batch, steps, k, 1, UNITS, LAYOUT)

    # Columns (half, gate, pair, thread, one of two) of units (half, thread, pair, one of two).
    column = gl.arange(0, 4 * COLUMNS, gl.SliceLayout(1, COPY))
    gate = column // 16 % 4
    unit = ((column // 64 * 4 + column // 2 % 4) * 2 + column // 8 % 2) * 2 + column % 2
    row = (direction * 4 + gate) * UNITS + gl.program_id(1) * COLUMNS + unit
    term = gl.arange(0, DEPTH, gl.SliceLayout(0, COPY))[None]
    weights = gl.allocate_shared_memory(dtype, [PARTS, 4 * COLUMNS, DEPTH], SHARED)
    for part in gl.static_range(PARTS):
        weights_in = weight_h_ptr + row[:, None] * UNITS + part * DEPTH + term
        weights.index(part).store(gl.load(weights_in))
    fence_async_shared()  # the tensor cores shall see them
    before = gl.allocate_shared_memory(dtype, [PARTS, ROWS, DEPTH], SHARED)

    loaded = _prefetch_forward(gates_ptr, order_ptr, lengths_ptr, batch, steps, 0, 0, UNITS, COPY)
    reading = rounds  # tiles of the group, of which the longest is the first
    shortest = _longest(lengths_ptr, reading - 1, batch)
    for t in range(_longest(lengths_ptr, 0, batch)):
        while shortest <= t:
            reading -= 1
            shortest = _longest(lengths_ptr, reading - 1, batch)
        for k in range(reading):
            tile, question, length, before_row, x_i, x_f, x_g, x_o = loaded
            here = _word_rows(question, length, t, steps)[:, None]
            reads = (t < length)[:, None]
            carried = (question * 2 + direction)[:, None] * UNITS + _units(LAYOUT)  # (M, U)
            finished = finished_ptr + tile * 2 + direction
            c_before = gl.load(cells_ptr + carried, mask=reads & (t > 0), other=0.0)
            if t > 0:
                _wait_for_steps(finished, t * gl.num_programs(1))
                for part in gl.static_range(PARTS):
                    h_in = states_ptr + before_row[:, None] * UNITS + part * DEPTH + term
                    copy(before.index(part), h_in, mask=(before_row >= 0)[:, None])
                    commit()

            # The wait for what comes next hides behind this step.
            is_last = k + 1 == reading
            next_k, next_t = gl.where(is_last, 0, k + 1), gl.where(is_last, t + 1, t)
            loaded = _prefetch_forward(
                gates_ptr, order_ptr, lengths_ptr, batch, steps, next_k, next_t, UNITS, COPY
            )

            h_part = gl.zeros([ROWS, 4 * COLUMNS], gl.float32, PRODUCT)
            if t > 0:
                product = warpgroup_mma_init(h_part)
                for part in gl.static_range(PARTS):
                    copied(PARTS - 1 - part)
                    w = weights.index(part).permute((1, 0))
                    product = warpgroup_mma(before.index(part), w, product, is_async=True)
                h_part = warpgroup_mma_wait(0, deps=[product])

            # ((half, gate, gate, pair, thread, two) -> (half, thread, pair, two), gate, gate)
            parts = h_part.reshape([ROWS, 2, 2, 2, 2, 4, 2]).permute((0, 1, 5, 4, 6, 2, 3))
            i_g, f_o = parts.reshape([ROWS, COLUMNS, 2, 2]).split()
            i, g = i_g.split()
            f, o = f_o.split()
            i = _sigmoid(gl.convert_layout(i, LAYOUT, assert_trivial=True) + x_i)
            f = _sigmoid(gl.convert_layout(f, LAYOUT, assert_trivial=True) + x_f)
            g = _tanh(gl.convert_layout(g, LAYOUT, assert_trivial=True) + x_g)
            o = _sigmoid(gl.convert_layout(o, LAYOUT, assert_trivial=True) + x_o)
            c = f * c_before + i * g
            tanh_c = _tanh(c)
            h = gl.where(reads, o * tanh_c, 0.0).to(dtype)
            gl.store(states_ptr + here * UNITS + _units(LAYOUT), h, mask=(length > 0)[:, None])
            _signal_step(finished)

            # What no other program waits for.
            gl.store(cells_ptr + carried, c, mask=reads)
            gl.store(last_ptr + carried, h, mask=(t == length - 1)[:, None])
            if slopes_ptr is not None:
                slopes = slopes_ptr + here * 6 * UNITS + _units(LAYOUT)
                gl.store(slopes, (g * i * (1 - i)).to(dtype), mask=reads)
                gl.store(slopes + UNITS, (c_before * f * (1 - f)).to(dtype), mask=reads)
                gl.store(slopes + 2 * UNITS, (i * (1 - g * g)).to(dtype), mask=reads)
                gl.store(slopes + 3 * UNITS, (tanh_c * o * (1 - o)).to(dtype), mask=reads)
                gl.store(slopes + 4 * UNITS, (o * (1 - tanh_c * tanh_c)).to(dtype), mask=reads)
                gl.store(slopes + 5 * UNITS, f.to(dtype), mask=reads)


@gluon.jit
def _prefetch_backward(
    slopes_ptr,
    dstates_ptr,
    dlast_ptr,
    order_ptr,
    lengths_ptr,
    batch,
    steps,
    k,
    t,
    UNITS: gl.constexpr,
    COPY: gl.constexpr,
):
    """Load what the t-th words of the group's k-th tile need, but for the gradients after them."""
    LAYOUT: gl.constexpr = UNITS_BACKWARD
    tile = _tile(k)
    question, length = _load_questions(order_ptr, lengths_ptr, tile, batch, COPY)
    after = gl.where(t + 1 < length, _word_rows(question, length, t + 1, steps), -1)  # or none
    question, length = _load_questions(order_ptr, lengths_ptr, tile, batch, LAYOUT)
    reads = ((t < length) & (t >= 0))[:, None]
    is_end = reads & (t == length - 1)[:, None]
    here = _word_rows(question, length, t, steps)[:, None]
    slopes_in = slopes_ptr + here * 6 * UNITS + _units(LAYOUT)
    c_i = gl.load(slopes_in, mask=reads, other=0.0)
    c_f = gl.load(slopes_in + UNITS, mask=reads, other=0.0)
    c_g = gl.load(slopes_in + 2 * UNITS, mask=reads, other=0.0)
    h_o = gl.load(slopes_in + 3 * UNITS, mask=reads, other=0.0)
    h_c = gl.load(slopes_in + 4 * UNITS, mask=reads, other=0.0)
    c_before = gl.load(slopes_in + 5 * UNITS, mask=reads, other=0.0)
    dstate = gl.load(dstates_ptr + here * UNITS + _units(LAYOUT), mask=reads, other=0.0)
    ends = dlast_ptr + (question * 2 + gl.program_id(2))[:, None] * UNITS + _units(LAYOUT)
    dlast = gl.load(ends, mask=is_end, other=0.0)
    words = _longest(lengths_ptr, k, batch)
    return tile, words, question, length, after, dstate, dlast, c_i, c_f, c_g, h_o, h_c, c_before


@gluon.jit(do_not_specialize=["batch", "steps"])
def _lstm_backward(
    slopes_ptr,  # (B, S, 2, 6, u)
    weight_h_ptr,  # (2, 4u, u)
    dstates_ptr,  # (B, S, 2, u)
    dlast_ptr,  # (B, 2, u)
    dgates_ptr,  # (B, S, 2, 4u), out, and in at the word after
    dcells_ptr,  # (B, 2, u), out, and in from the word after, or of the last cell
    order_ptr,  # (B)
    lengths_ptr,  # (B)
    batch,
    steps,
    finished_ptr,  # (tiles, 2), zeros: the steps finished, counted over the group's programs
    UNITS: gl.constexpr,
):
    """The gradients at all words of the group's questions, for U = COLUMNS units."""
    LAYOUT: gl.constexpr = UNITS_BACKWARD
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    WEIGHTS: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
    PRODUCT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    PARTS: gl.constexpr = 4 * UNITS // DEPTH
    dtype: gl.constexpr = dgates_ptr.dtype.element_ty
    direction = gl.program_id(2)

    # Columns (pair, thread, one of two) of units (thread, pair, one of two).
    row = direction * 4 * UNITS + gl.arange(0, DEPTH, gl.SliceLayout(1, WEIGHTS))
    weights_in = weight_h_ptr + row[:, None] * UNITS + _units(WEIGHTS)
    weights = gl.allocate_shared_memory(
        dtype, [PARTS, DEPTH, COLUMNS], gl.NVMMASharedLayout(64, 16, rank=2)
    )
    for part in range(PARTS):
        w = gl.load(weights_in + part * DEPTH * UNITS)
        w = w.reshape([DEPTH, 4, 4, 2]).permute((0, 2, 1, 3)).reshape([DEPTH, COLUMNS])
        weights.index(part).store(w)
    fence_async_shared()  # the tensor cores shall see them
    ring = gl.allocate_shared_memory(
        dtype, [STAGES, ROWS, DEPTH], gl.NVMMASharedLayout(128, 16, rank=2)
    )
    term = gl.arange(0, DEPTH, gl.SliceLayout(0, COPY))[None]

    longest = _longest(lengths_ptr, 0, batch)
    loaded = _prefetch_backward(
        *(slopes_ptr, dstates_ptr, dlast_ptr, order_ptr, lengths_ptr, batch, steps),
        *(0, longest - 1, UNITS, COPY),
    )
    reading = 0  # tiles of the group, of which the longest is the first
    coming = longest  # words of the next one
    for back in range(longest):
        t = longest - 1 - back
        while coming > t:
            _zero_pad(dgates_ptr, order_ptr, lengths_ptr, batch, steps, reading, 4, UNITS, LAYOUT)
            reading += 1
            coming = _longest(lengths_ptr, reading, batch)
        for k in range(reading):
            tile, words, question, length, after, dstate, dlast = loaded[:7]
            c_i, c_f, c_g, h_o, h_c, c_before = loaded[7:]
            here = _word_rows(question, length, t, steps)[:, None]
            exists = (length > 0)[:, None]
            will_read = (t + 1 < length)[:, None]
            carried = (question * 2 + direction)[:, None] * UNITS + _units(LAYOUT)  # (M, U)
            finished = finished_ptr + tile * 2 + direction
            dc = gl.load(dcells_ptr + carried, mask=(t < length)[:, None], other=0.0)
            dgates_in = dgates_ptr + after[:, None] * 4 * UNITS + term
            is_after = (after >= 0)[:, None]
            if t + 1 < words:
                _wait_for_steps(finished, (words - 1 - t) * gl.num_programs(1))
                for stage in gl.static_range(STAGES - 2):
                    copy(ring.index(stage), dgates_in + stage * DEPTH, mask=is_after)
                    commit()

            # The wait for what comes next hides behind this step.
            is_last = k + 1 == reading
            next_k, next_t = gl.where(is_last, 0, k + 1), gl.where(is_last, t - 1, t)
            loaded = _prefetch_backward(
                *(slopes_ptr, dstates_ptr, dlast_ptr, order_ptr, lengths_ptr, batch, steps),
                *(next_k, next_t, UNITS, COPY),
            )

            dh = gl.zeros([ROWS, COLUMNS], gl.float32, PRODUCT)
            if t + 1 < words:
                product = warpgroup_mma_init(dh)
                for part in range(PARTS):
                    copied(STAGES - 3)
                    product = warpgroup_mma(
                        ring.index(part % STAGES), weights.index(part), product, is_async=True
                    )
                    # The product before this one is done, so that its buffer is free.
                    product = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[product]))
                    ahead = part + STAGES - 2
                    if ahead < PARTS:
                        copy(ring.index(ahead % STAGES), dgates_in + ahead * DEPTH, mask=is_after)
                    commit()
                dh = warpgroup_mma_wait(0, deps=[product])

            dh = dh.reshape([ROWS, 4, 4, 2]).permute((0, 2, 1, 3)).reshape([ROWS, COLUMNS])
            dh = gl.convert_layout(dh, LAYOUT, assert_trivial=True)
            dh = gl.where(will_read, dh, 0.0) + dstate.to(gl.float32) + dlast
            dc += dh * h_c
            # Where no word is read the slopes are 0, which makes these 0 too.
            dgates = dgates_ptr + here * 4 * UNITS + _units(LAYOUT)
            gl.store(dgates, (dc * c_i).to(dtype), mask=exists)
            gl.store(dgates + UNITS, (dc * c_f).to(dtype), mask=exists)
            gl.store(dgates + 2 * UNITS, (dc * c_g).to(dtype), mask=exists)
            gl.store(dgates + 3 * UNITS, (dh * h_o).to(dtype), mask=exists)
            _signal_step(finished)
            gl.store(dcells_ptr + carried, dc * c_before, mask=(t < length)[:, None])
