"""PG+EE in plain loops: programs by a recursive reader, tokens and modules one at a time.

Written from the published description. Weights are taken from a network, and no line that computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from macnet.data.vocab import PROGRAM_TOKENS
from macnet.models.systems.execution_engine import ExecutionEngine
from macnet.models.systems.pg_ee import ProgramGenerator
from system_loops import Layer, Recurrent, convolve, lstm, mlp, relu

PAIRS = (
    *("equal_color", "equal_integer", "equal_material", "equal_shape", "equal_size"),
    *("greater_than", "intersect", "less_than", "union"),
)
"""The functions of two inputs, by code point."""

# --- the program generator -------------------------------------------------------------------


def write_alone(generator: ProgramGenerator, words: list[int], before: list[int]) -> Tensor:
    """The logits (len(before) + 1, tokens) of each next token, given those before it."""
    states = [generator.encoder.embedding.weight[word] for word in words]
    for layer in Recurrent.of(generator.encoder.lstm):
        states = lstm(states, layer)
    q = states[-1]
    start = PROGRAM_TOKENS.index("<START>")
    tokens = [generator.embedding.weight[token] for token in (start, *before)]
    states = [torch.cat([q, x]) for x in tokens]
    for layer in Recurrent.of(generator.lstm):
        states = lstm(states, layer)
    output = Layer.of(generator.output)
    return torch.stack([output(state) for state in states])


def up_to_end(program: list[int]) -> list[int]:
    """The tokens of a program that was written, with its <END> if it has one."""
    end = PROGRAM_TOKENS.index("<END>")
    return program[: program.index(end) + 1] if end in program else program


# --- programs as trees -----------------------------------------------------------------------


class Node(NamedTuple):
    """A node of a tree, which was read at a position."""

    position: int
    token: str
    inputs: list[Node]


def read(tokens: Sequence[int]) -> Node:
    """A program in prefix form by recursion; what is missing is `scene`."""
    position = 0

    def node() -> Node:
        nonlocal position
        own, position = position, position + 1
        token = PROGRAM_TOKENS[tokens[own]] if own < len(tokens) else "scene"
        token = "scene" if token == "<NULL>" else token
        count = 0 if token == "scene" else 2 if token in PAIRS else 1
        return Node(own, token, [node() for _ in range(count)])

    return node()


def in_postfix(node: Node) -> list[Node]:
    """The nodes of a tree, each after its inputs."""
    return [below for child in node.inputs for below in in_postfix(child)] + [node]


# --- the execution engine --------------------------------------------------------------------


def run_node(engine: ExecutionEngine, node: Node, image: Tensor) -> Tensor:
    """The output (C, H, W) of a node on the maps of one image."""
    bank, token = engine.bank, PROGRAM_TOKENS.index(node.token)
    inputs = [run_node(engine, child, image) for child in node.inputs]
    x = inputs[0] if inputs else image
    if len(inputs) == 2:
        pair = PAIRS.index(node.token)
        layer = Layer(bank.weight_pair[pair][:, :, None, None], bank.bias_pair[pair])
        x = relu(convolve(torch.cat(inputs), layer))
    first = Layer(unpacked(bank.weight_1[token]), bank.bias_1[token])
    second = Layer(unpacked(bank.weight_2[token]), bank.bias_2[token])
    return relu(x + convolve(relu(convolve(x, first, padding=1)), second, padding=1))


def unpacked(weight: Tensor) -> Tensor:
    """The kernel (C, C, 3, 3) of (C, 9·C): rows, then cells of a row, then input channels."""
    channels = len(weight)
    kernel = torch.empty(channels, channels, 3, 3, dtype=weight.dtype)
    for i in range(channels):
        for y in range(3):
            for x in range(3):
                kernel[:, i, y, x] = weight[:, (3 * y + x) * channels + i]
    return kernel


def run_program(engine: ExecutionEngine, maps: Tensor, program: Sequence[int]) -> Tensor:
    """The logits (answers,) by a program about the feature maps (channels, H, W) of one image."""
    for layer in (engine.stem[0], engine.stem[2]):
        maps = relu(convolve(maps, layer_of(layer), padding=1))
    root = run_node(engine, read(program), maps)
    project, hidden, answers = (layer_of(engine.classifier[k]) for k in (0, 4, 6))
    root = relu(convolve(root, project))
    pooled = [
        channel[y : y + 2, x : x + 2].max()
        for channel in root
        for y in range(0, root.shape[1] - 1, 2)
        for x in range(0, root.shape[2] - 1, 2)
    ]
    return mlp(torch.stack(pooled), [hidden, answers])


def layer_of(layer: nn.Module) -> Layer:
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    return Layer.of(layer)
