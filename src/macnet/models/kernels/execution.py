"""The modules of an execution engine (`systems/execution_engine.py`) as Triton kernels.

All nodes of a level run in one launch, whatever their modules: a tile of the product is some cells
of one node, and takes the weights of that node's module. So nothing is sorted out by module, no
shape depends on the programs, and the host never waits. How many nodes a level has is read on the
device by as many programs as the GPU runs at once, each of which takes tile after tile.

Nodes are numbered by level, and the images' `scene` come first, at level 0, one for all programs
about an image. With N images, B programs of L tokens and S = N + B·L, these arrays have a row for
each node n; a row is (H·W, C):

    maps       N rows of the images, S of outputs (that of n is N + n), S of what pairs combine
    hidden     relu(W_1 * x + b_1)
    gradients  S rows for n's (first) input, S for its second, B of the roots, N of the `scene`s
    errors     the gradient behind the last ReLU of n;   dhidden, dpairs: of hidden, of combined

A node has one parent, which writes its gradient; only those of `scene` are many, and are summed.
Gradients of weights are summed over chunks of nodes of one module and then over chunks, always in
the same order, so that they are the same at each run.
"""

# The arguments of Triton's kernels have no types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from macnet.data.vocab import PROGRAM_TOKENS
from macnet.models.kernels import module_kernels as kernels
from macnet.models.layers import has_large_shared_memory, needs_gradient
from macnet.models.systems.programs import ARITIES, PAIRS, SCENE, Trees, lookup_table


class Tiles(NamedTuple):
    """How kernels are cut into programs, and how these are run."""

    convolve: dict[str, int]
    pairs: dict[str, int]
    weights: dict[str, int]


LARGE = Tiles(  # for 227 KB of shared memory, in bfloat16
    {"ROWS": 128, "DEPTH": 128, "num_warps": 8, "num_stages": 3},
    {"ROWS": 128, "DEPTH": 64, "num_warps": 8, "num_stages": 3},
    {"ROWS": 64, "num_warps": 4, "num_stages": 3},
)
SMALL = Tiles(  # for any GPU, and for float32
    {"ROWS": 64, "DEPTH": 32, "num_warps": 4, "num_stages": 1},
    {"ROWS": 64, "DEPTH": 32, "num_warps": 4, "num_stages": 1},
    {"ROWS": 32, "num_warps": 4, "num_stages": 2},
)
CHUNK = 32  # nodes of a module whose gradients one program sums
BLOCK = 4096  # numbers that an elementwise program takes at once
TOKENS = len(PROGRAM_TOKENS)
PAIR_INDEX = tuple(PAIRS.index(token) if token in PAIRS else -1 for token in range(TOKENS))


class Schedule(NamedTuple):
    """Which node runs when, on what, in int32; columns (S) are of nodes in their order."""

    modules: Tensor  # (S): the token, or TOKENS if there is no such node
    inputs: Tensor  # (S): the row of maps that its residual block takes
    first: Tensor  # (S): of a pair, the rows of maps that it combines
    second: Tensor  # (S)
    pairs: Tensor  # (TOKENS): the index of a token among those of pairs, or −1
    gradients: Tensor  # (S): the row of gradients that has its output's
    starts: Tensor  # (L + 2): the first node of each level
    roots: Tensor  # (B): the rows of maps that have the results
    scene_rows: Tensor  # (B, P): the rows of gradients of each program's `scene`s
    scene_counts: Tensor  # (B)
    order: Tensor  # (S): nodes by module
    chunks: Tensor  # (TOKENS + 1): the first chunk of each module
    chunk_starts: Tensor  # (chunks, 2): the first of its nodes in `order`, and that after the last


def execute(stem: Tensor, trees: Trees, *weights: Tensor) -> Tensor:
    """The roots' outputs (B, H, W, C) of programs about images' maps (N, H, W, C).

    The weights are those of `ModuleBank`, in its order.
    """
    schedule = make_schedule(trees, len(stem))
    keeps = needs_gradient(stem, *weights)
    out: Tensor = _Execute.apply(keeps, stem, schedule, *weights)
    return out


def make_schedule(trees: Trees, images: int) -> Schedule:
    """The order of execution of B programs about N images, without waiting for the device."""
    tokens, is_node, inputs, parent, height, _ = trees
    (batch, size), device = tokens.shape, tokens.device
    length = (size - 1) // 2  # nodes after these are `scene`
    nodes = images + batch * length  # S
    image = torch.arange(batch, device=device)[:, None] // (batch // images)

    # Real nodes by height, then by module, whose weights neighbours so share.
    real = (is_node & (tokens != SCENE))[:, :length]
    level = torch.where(real, height[:, :length], length + 1)
    by_level = (level * TOKENS + tokens[:, :length]).flatten().argsort(stable=True)
    rank = torch.empty_like(by_level).scatter(
        0, by_level, torch.arange(len(by_level), device=device)
    )
    number = images + rank.view(batch, length)  # n
    number = F.pad(number, (0, size - length))
    is_scene = tokens == SCENE
    output = images + torch.where(is_scene, image, number)  # rows of maps

    arities = lookup_table(ARITIES, device)[tokens]
    below = output[..., None].expand(-1, -1, 2).gather(1, inputs.clamp(min=0))  # (B, P, 2)
    takes = torch.where(arities == 2, images + nodes + number, below[..., 0])
    # A node's gradient is where its parent puts that of its input.
    is_second = torch.arange(size, device=device) != parent + 1
    gradient = number.gather(1, parent.clamp(min=0)) + nodes * is_second
    root = 2 * nodes + torch.arange(batch, device=device)[:, None]
    gradient = torch.where(parent < 0, root, gradient)

    def column(of_scene: Tensor | int, of_nodes: Tensor) -> Tensor:
        scene = torch.zeros(images, dtype=torch.long, device=device) + of_scene
        return torch.cat([scene, of_nodes[:, :length].flatten()[by_level]])

    every = torch.arange(images, device=device)
    modules = column(SCENE, torch.where(real, tokens[:, :length], TOKENS))
    levels = torch.arange(1, length + 2, device=device)
    starts = images + torch.searchsorted(level.flatten()[by_level], levels)

    scenes = is_node & is_scene
    first_scenes = (~scenes).int().argsort(dim=1, stable=True)

    sorted_modules, order = modules.sort(stable=True)
    of_module = torch.searchsorted(sorted_modules, torch.arange(TOKENS + 1, device=device))
    chunks = F.pad(
        (of_module.diff() + CHUNK - 1).div(CHUNK, rounding_mode="floor").cumsum(0), (1, 0)
    )
    chunk = torch.arange(nodes // CHUNK + TOKENS, device=device)
    module = torch.searchsorted(chunks[1:].contiguous(), chunk, right=True).clamp(max=TOKENS - 1)
    chunk_start = of_module[module] + (chunk - chunks[module]) * CHUNK
    chunk_end = torch.minimum(chunk_start + CHUNK, of_module[module + 1])

    columns = (
        modules,
        column(every, takes),
        column(0, below[..., 0]),
        column(0, below[..., 1]),
        lookup_table(PAIR_INDEX, device),
        column(2 * nodes + batch + every, gradient),
        F.pad(starts, (1, 0)),
        output[:, 0],
        gradient.gather(1, first_scenes),
        scenes.sum(1),
        order,
        chunks,
        torch.stack([chunk_start, chunk_end], 1),
    )
    return Schedule(*(x.to(torch.int32).contiguous() for x in columns))


class _Execute(torch.autograd.Function):
    """All levels, upwards; then down again."""

    @staticmethod
    def forward(
        ctx: Any, keeps: bool, stem: Tensor, schedule: Schedule, *weights: Tensor
    ) -> Tensor:
        # stem: (N, H, W, C)   weights: W_1 (T, C, 9C), b_1 (T, C), W_2, b_2, W (pairs, C, 2C), b
        (images, height, width, channels), nodes = stem.shape, len(schedule.modules)
        dtypes = [weight.dtype for weight in weights]
        weights = tuple(weight.to(stem.dtype).contiguous() for weight in weights)
        maps = stem.new_empty(images + 2 * nodes, height, width, channels)
        maps[:images] = stem
        hidden = stem.new_empty(nodes, height, width, channels)
        weight_1, bias_1, weight_2, bias_2, weight_pair, bias_pair = weights
        run = _Launcher(schedule, images, stem)
        for level in range(len(schedule.starts) - 1):
            if level > 0:
                run.combine(level, maps, weight_pair, bias_pair)
            run.convolve(level, "hidden", maps, weight_1, bias=bias_1, out=hidden)
            run.convolve(level, "output", hidden, weight_2, bias=bias_2, add=maps, out=maps)
        if keeps:
            ctx.dtypes, ctx.schedule = dtypes, schedule
            ctx.save_for_backward(maps, hidden, *weights)
        return maps.index_select(0, schedule.roots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, droots: Tensor) -> tuple[Tensor | None, ...]:
        # droots: (B, H, W, C)
        maps, hidden, weight_1, _, weight_2, _, weight_pair, _ = ctx.saved_tensors
        schedule, shape = ctx.schedule, hidden.shape[1:]
        nodes, batch = len(hidden), len(droots)
        images = len(maps) - 2 * nodes
        gradients = maps.new_empty(2 * nodes + batch + images, *shape)
        gradients[2 * nodes : 2 * nodes + batch] = droots
        errors, dhidden, dpairs = (torch.empty_like(hidden) for _ in range(3))
        run = _Launcher(schedule, images, maps)
        for level in reversed(range(len(schedule.starts) - 1)):
            if level == 0:
                run.sum_scenes(gradients, batch)
            run.pass_relu(level, gradients, maps, errors)
            run.convolve(level, "dhidden", errors, weight_2, gate=hidden, out=dhidden)
            arrays = {"add": errors, "gate": maps, "out": gradients, "pairs_out": dpairs}
            run.convolve(level, "dinput", dhidden, weight_1, **arrays)
            if level > 0:
                run.split(level, dpairs, weight_pair, gradients)
        of_weights = (
            *run.sum_weights(maps, dhidden, "input"),
            *run.sum_weights(hidden, errors, "hidden"),
            *run.sum_weights(maps, dpairs, "pair"),
        )
        # Copied, or the whole array would stay as long as the images' gradient does.
        dstem = gradients[:images].clone()
        cast = (d.to(dtype) for d, dtype in zip(of_weights, ctx.dtypes, strict=True))
        return None, dstem, None, *cast


class _Launcher:
    """Launches the kernels of levels, all on the GPU of the maps."""

    def __init__(self, schedule: Schedule, images: int, maps: Tensor) -> None:
        self._schedule, self._images = schedule, images
        _, self._height, self._width, self._channels = maps.shape
        is_large = maps.dtype != torch.float32 and has_large_shared_memory(maps.device)
        self._tiles = LARGE if is_large else SMALL
        # Of float32, as for torch's own convolutions; the latter is nearly exact.
        self._precision = "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"
        self._programs = torch.cuda.get_device_properties(maps.device).multi_processor_count

    def _tile(self, tile: dict[str, int]) -> dict[str, Any]:
        """The tile, with no more terms at once than there are channels, and the precision."""
        depth = {"DEPTH": min(tile["DEPTH"], self._channels)} if "DEPTH" in tile else {}
        return {**tile, **depth, "PRECISION": self._precision}

    def convolve(
        self, level: int, mode: str, x: Tensor, weight: Tensor, **arrays: Tensor | None
    ) -> None:
        """A convolution of each node of a level; `MODES` says what becomes of it."""
        given = {f"{name}_ptr": arrays.get(name) for name in ("bias", "add", "gate", "pairs_out")}
        schedule = self._schedule
        columns = schedule.inputs, schedule.modules, schedule.pairs, schedule.starts
        with torch.cuda.device_of(x):
            kernels.convolve[(self._programs,)](
                *(x, weight, arrays["out"], *columns, level, self._images),
                *(self._height, self._width),
                **given,
                C=self._channels,
                MODE=kernels.MODES.index(mode),
                **self._tile(self._tiles.convolve),
            )

    def combine(self, level: int, maps: Tensor, weight: Tensor, bias: Tensor) -> None:
        """What each pair of a level combines of its inputs."""
        schedule, nodes = self._schedule, len(self._schedule.modules)
        columns = schedule.first, schedule.second, schedule.modules, schedule.pairs
        with torch.cuda.device_of(maps):
            kernels.combine[(self._programs,)](
                *(maps, weight, bias, *columns, schedule.starts, level, self._images + nodes),
                self._height * self._width,
                C=self._channels,
                **self._tile(self._tiles.pairs),
            )

    def split(self, level: int, dpairs: Tensor, weight: Tensor, gradients: Tensor) -> None:
        """The gradients of both inputs of each pair of a level."""
        schedule, nodes = self._schedule, len(self._schedule.modules)
        columns = schedule.modules, schedule.pairs, schedule.starts
        with torch.cuda.device_of(gradients):
            kernels.split[(self._programs,)](
                *(dpairs, weight, gradients, *columns, level, nodes, self._height * self._width),
                C=self._channels,
                **self._tile(self._tiles.pairs),
            )

    def pass_relu(self, level: int, gradients: Tensor, maps: Tensor, errors: Tensor) -> None:
        """The gradients of a level's outputs, behind the last ReLU."""
        schedule, size = self._schedule, self._height * self._width * self._channels
        arrays = gradients, maps, errors, schedule.gradients, schedule.starts
        with torch.cuda.device_of(maps):
            kernels.pass_relu[(self._programs,)](*arrays, level, self._images, size, BLOCK=BLOCK)

    def sum_scenes(self, gradients: Tensor, batch: int) -> None:
        """The gradient of each image's `scene`, of all programs that take it."""
        schedule, size = self._schedule, self._height * self._width * self._channels
        columns = schedule.scene_rows, schedule.scene_counts
        first = 2 * len(schedule.modules) + batch
        grid = self._images, triton.cdiv(size, BLOCK)
        sizes = schedule.scene_rows.shape[1], batch // self._images, first, size
        with torch.cuda.device_of(gradients):
            kernels.sum_scenes[grid](gradients, *columns, *sizes, BLOCK=BLOCK)

    def sum_weights(self, x: Tensor, errors: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """The gradients of weights and biases: the sums of errors · xᵀ over nodes of a module."""
        schedule, channels = self._schedule, self._channels
        taps, chunks = 2 if kind == "pair" else 9, len(schedule.chunk_starts)
        of_chunks = x.new_empty(chunks, channels, taps * channels, dtype=torch.float32)
        of_biases = x.new_empty(chunks, channels, dtype=torch.float32)
        rows = {"input": schedule.inputs, "hidden": None, "pair": schedule.first}[kind]
        columns = rows, schedule.second, schedule.modules, schedule.pairs
        modules = len(PAIRS) if kind == "pair" else TOKENS
        weights = x.new_zeros(modules, channels, taps * channels, dtype=torch.float32)
        biases = x.new_zeros(modules, channels, dtype=torch.float32)
        with torch.cuda.device_of(x):
            kernels.sum_chunk[chunks, taps](
                *(x, errors, of_chunks, *columns),
                *(schedule.order, schedule.chunk_starts, self._height, self._width),
                C=channels,
                TAPS=taps,
                **self._tile(self._tiles.weights),
            )
            kernels.sum_bias_chunk[(chunks,)](
                *(errors, of_biases, schedule.order, schedule.chunk_starts),
                self._height * self._width,
                C=channels,
                ROWS=32,
            )
            for parts, whole in ((of_chunks, weights), (of_biases, biases)):
                size = parts[0].numel()
                kernels.sum_chunks[TOKENS, triton.cdiv(size, BLOCK)](
                    *(parts, whole, schedule.chunks, schedule.pairs, size),
                    PAIRS=kind == "pair",
                    BLOCK=BLOCK,
                )
        return weights, biases
