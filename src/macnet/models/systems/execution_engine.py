"""The execution engine of PG+EE: a small network for each function of a program.

All modules take and give maps (C, H, W). With x the output of a module's input,

    unary     m(x)      = relu(x + W_2 * relu(W_1 * x + b_1) + b_2)            a residual block
    binary    m(x, y)   = the same of relu(W [x, y] + b), which is 1×1
    `scene`   m()       = the same of the image, as two convolutions make it of features

where W_1 and W_2 are 3×3. A module serves a function with its value, such as filter_color[red]; no
meaning is built in, so `unique` is a module like others. The root's output is classified.

A batch of programs is executed level by level: a node's level is its height in the tree, so that
its inputs are done before it, and all nodes of a level run at once (`kernels/execution.py`), or all
of one module at once. `literal` runs them one by one, as published.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.data.spec import DataSpec
from macnet.data.vocab import PROGRAM_TOKENS
from macnet.errors import InputError
from macnet.models.layers import HAS_TRITON, compute_dtype
from macnet.models.systems.inputs import FeatureMaps
from macnet.models.systems.programs import ARITIES, PAIRS, SCENE, Trees, read_prefix


class ModuleBank(nn.Module):
    """The weights of all modules: of residual blocks by token, and of the 1×1 layers of pairs.

    Convolutions are (tokens, C, 9·C): for each output channel the three rows of three cells, each
    of C input channels.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        tokens = len(PROGRAM_TOKENS)
        self.weight_1 = _uniform(tokens, channels, 9 * channels)
        self.bias_1 = _uniform(tokens, channels, inputs=9 * channels)
        self.weight_2 = _uniform(tokens, channels, 9 * channels)
        self.bias_2 = _uniform(tokens, channels, inputs=9 * channels)
        self.weight_pair = _uniform(len(PAIRS), channels, 2 * channels)
        self.bias_pair = _uniform(len(PAIRS), channels, inputs=2 * channels)

    def forward(self, token: int, *inputs: Tensor) -> Tensor:
        """The output (n, C, H, W) of the module of a token; `scene` takes the image's maps."""
        (x, *_), pair = inputs, len(inputs) == 2
        if pair:
            k = PAIRS.index(token)
            weight = self.weight_pair[k][..., None, None]
            x = F.relu(F.conv2d(torch.cat(inputs, 1), weight, self.bias_pair[k]))
        h = F.relu(_convolve(x, self.weight_1[token], self.bias_1[token]))
        return F.relu(x + _convolve(h, self.weight_2[token], self.bias_2[token]))


def _uniform(*shape: int, inputs: int | None = None) -> nn.Parameter:
    """Weights of layers, initialised as torch initialises those of so many inputs."""
    bound = 1 / math.sqrt(inputs or shape[-1])
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def _convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A 3×3 convolution; weight: (C, 9·C)."""
    channels = len(weight)
    return F.conv2d(x, weight.view(channels, 3, 3, -1).permute(0, 3, 1, 2), bias, padding=1)


class ExecutionEngine(nn.Module):
    """Images and programs → answers."""

    def __init__(self, data_spec: DataSpec, *, channels: int, pooled: int, hidden: int) -> None:
        super().__init__()
        self.image = FeatureMaps(data_spec)
        height, width = self.image.size
        if min(height, width) < 2:
            raise InputError(
                f"images are {data_spec.height}×{data_spec.width}; PG+EE needs at least 2×2 cells, "
                f"each of {self.image.stride}"
            )
        self.stem = nn.Sequential(
            nn.Conv2d(self.image.channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
        )
        self.bank = ModuleBank(channels)
        flat = pooled * (height // 2) * (width // 2)
        self.classifier = nn.Sequential(
            nn.Conv2d(channels, pooled, 1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(flat, hidden),
            nn.ReLU(),
            nn.Linear(hidden, data_spec.answers),
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor, programs: Tensor) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3)   programs: (B, L) → (B, answers)
        stem, trees = self._see(images), read_prefix(programs)
        if _has_kernels(stem):
            roots = self._run_kernels(stem, trees)
        else:
            outputs, rows = self._run_levels(stem, trees)
            roots = outputs[rows[:, 0]]
        logits: Tensor = self.classifier(roots)
        return logits

    def literal(self, images: Tensor, programs: Tensor) -> Tensor:
        """The same logits, module by module and question by question, as published."""
        stem, trees = self._see(images), read_prefix(programs)
        tokens, inputs = trees.tokens.tolist(), trees.inputs.tolist()

        def run(b: int, node: int, image: Tensor) -> Tensor:
            below = [run(b, i, image) for i in inputs[b][node] if i >= 0]
            output: Tensor = self.bank(tokens[b][node], *(below or [image]))
            return output

        each = len(programs) // len(images)
        roots = [run(b, 0, stem[b // each, None]) for b in range(len(programs))]
        logits: Tensor = self.classifier(torch.cat(roots))
        return logits

    def trace(self, images: Tensor, programs: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """The logits (1, answers), and the output (C, H, W) of each node of the only program."""
        trees = read_prefix(programs)
        outputs, rows = self._run_levels(self._see(images), trees)
        nodes = {i: outputs[row] for i, row in enumerate(rows[0].tolist()) if row >= 0}
        return self.classifier(nodes[0][None]), nodes

    def _see(self, images: Tensor) -> Tensor:
        """The image's maps (N, C, H, W) that `scene` takes."""
        dtype = compute_dtype(self.bank.weight_1)
        maps = self.image(images).to(dtype, memory_format=torch.channels_last)
        stem: Tensor = self.stem(maps)
        return stem

    def _run_levels(self, stem: Tensor, trees: Trees) -> tuple[Tensor, Tensor]:
        """The outputs (rows, C, H, W) of all nodes, and (B, P) the row of each; −1 if no node.

        All nodes of one level and one module run at once.
        """
        tokens, is_node, inputs, _, height, _ = trees
        image = torch.arange(len(tokens), device=stem.device) // (len(tokens) // len(stem))
        outputs = self.bank(SCENE, stem)  # the same for all programs about an image
        rows = torch.where(is_node & (tokens == SCENE), image[:, None], -1)
        for level in range(1, int(height.max()) + 1):
            of_level = [outputs]
            for token in tokens[height == level].unique().tolist():
                b, node = ((height == level) & (tokens == token)).nonzero(as_tuple=True)
                below = inputs[b, node, : ARITIES[token]].T  # (1 or 2, n)
                of_level.append(self.bank(token, *(outputs[rows[b, i]] for i in below)))
                first = sum(map(len, of_level[:-1]))
                rows[b, node] = torch.arange(first, first + len(b), device=rows.device)
            outputs = torch.cat(of_level)
        return outputs, rows

    def _run_kernels(self, stem: Tensor, trees: Trees) -> Tensor:
        """The outputs (B, C, H, W) of the roots."""
        from macnet.models.kernels.execution import execute

        bank = self.bank
        weights = bank.weight_1, bank.bias_1, bank.weight_2, bank.bias_2
        cells = stem.permute(0, 2, 3, 1).contiguous()  # (N, H, W, C)
        roots = execute(cells, trees, *weights, bank.weight_pair, bank.bias_pair)
        return roots.permute(0, 3, 1, 2)


def _has_kernels(stem: Tensor) -> bool:
    """Whether the kernels can run a level at once; without them, steps cannot be captured."""
    channels = stem.shape[1]
    if not stem.is_cuda or stem.dtype == torch.float64:
        return False
    if HAS_TRITON and 16 <= channels <= 128 and channels & (channels - 1) == 0:
        return True
    if torch.cuda.is_current_stream_capturing():
        raise InputError(
            f"`model.channels` is {channels}; a step of PG+EE can be captured only if they are 16, "
            "32, 64 or 128 and Triton is installed; switch `capture` off"
        )
    return False
