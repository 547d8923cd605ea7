"""SA+MLP, RN and FiLM in plain loops, for the tests to compare the networks with.

Written from the published descriptions before the networks were read, but for two choices that
those leave open: the order of RN's coordinates, and FiLM's `repeat`. The loops take weights and no
line that computes from a network. They handle one question, one word, one cell, one pair of
cells at a time. All is torch in float64, so that autograd gives their gradients.

A *vector* is a tensor with one index; *maps* are those of one image: (channels, H, W).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transcription import average, sigmoid, softmax

# --- Layers ----------------------------------------------------------------------------------


class Layer(NamedTuple):
    """The weight and the bias of a linear layer or of a convolution."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, layer: nn.Linear | nn.Conv2d) -> Layer:
        return cls(layer.weight, layer.bias)

    def __call__(self, x: Tensor) -> Tensor:
        """W x + b; a 1×1 convolution of one cell is that too."""
        y = self.weight.flatten(1) @ x
        return y if self.bias is None else y + self.bias


@dataclass
class Norm:
    """Batch normalisation: a scale and a shift, if it has them, and running statistics."""

    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    var: Tensor

    @classmethod
    def of(cls, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> Norm:
        assert (norm.eps, norm.momentum) == (1e-5, 0.1)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        return cls(norm.weight, norm.bias, norm.running_mean.clone(), norm.running_var.clone())

    def __call__(self, batch: list[Tensor], training: bool) -> list[Tensor]:
        """Normalize the maps of all images, channel by channel; training moves the statistics."""
        channels = []
        for c in range(len(self.mean)):
            values = torch.cat([maps[c].flatten() for maps in batch])
            mean, var = self.mean[c], self.var[c]
            if training:
                n, mean = len(values), values.mean()
                squares = ((values - mean) ** 2).sum()
                var = squares / n
                self.mean[c] = 0.9 * self.mean[c] + 0.1 * mean.detach()
                self.var[c] = 0.9 * self.var[c] + 0.1 * squares.detach() / (n - 1)
            scale = 1 if self.weight is None else self.weight[c]
            shift = 0 if self.bias is None else self.bias[c]
            channels.append([scale * (m[c] - mean) / (var + 1e-5).sqrt() + shift for m in batch])
        return [torch.stack(maps) for maps in zip(*channels, strict=True)]


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0)


def convolve(maps: Tensor, layer: Layer, *, stride: int = 1, padding: int = 0) -> Tensor:
    """A convolution of one image with a border of zeros, place by place."""
    size, (_, height, width) = layer.weight.shape[-1], maps.shape
    rows = []
    for y in range(-padding, height + padding - size + 1, stride):
        row = []
        for x in range(-padding, width + padding - size + 1, stride):
            top, left = max(y, 0), max(x, 0)
            patch = maps[:, top : y + size, left : x + size]
            down, right = top - y + patch.shape[1], left - x + patch.shape[2]
            value = (layer.weight[:, :, top - y : down, left - x : right] * patch).sum((1, 2, 3))
            row.append(value if layer.bias is None else value + layer.bias)
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


def coordinates(maps: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """Two more maps (1, H, W): x and y of each cell, in equal steps from −reach to reach."""
    _, height, width = maps.shape
    x_map, y_map = torch.empty(2, height, width, dtype=maps.dtype)
    for y in range(height):
        for x in range(width):
            x_map[y, x] = reach * (2 * x / (width - 1) - 1)
            y_map[y, x] = reach * (2 * y / (height - 1) - 1)
    return x_map[None], y_map[None]


def with_coordinates(maps: Tensor) -> Tensor:
    """FiLM's: x, then y, from −1 to 1."""
    return torch.cat([maps, *coordinates(maps, 1)])


def cells(maps: Tensor) -> list[Tensor]:
    """The vectors of an image's cells, in reading order."""
    return [maps[:, y, x] for y in range(maps.shape[1]) for x in range(maps.shape[2])]


# --- Questions -------------------------------------------------------------------------------


class Recurrent(NamedTuple):
    """One layer of torch.nn.LSTM or torch.nn.GRU."""

    weight_x: Tensor
    weight_h: Tensor
    bias_x: Tensor
    bias_h: Tensor

    @classmethod
    def of(cls, layer: nn.LSTM | nn.GRU) -> list[Recurrent]:
        return [cls(*weights) for weights in layer.all_weights]


def lstm(vectors: list[Tensor], layer: Recurrent) -> list[Tensor]:
    """The states after each word; gates in the order input, forget, new, output."""
    h = cell = vectors[0].new_zeros(layer.weight_h.shape[1])
    states = []
    for x in vectors:
        sums = layer.weight_x @ x + layer.bias_x + layer.weight_h @ h + layer.bias_h
        i, f, g, o = sums.chunk(4)
        cell = sigmoid(f) * cell + sigmoid(i) * torch.tanh(g)
        h = sigmoid(o) * torch.tanh(cell)
        states.append(h)
    return states


def gru(vectors: list[Tensor], layer: Recurrent) -> list[Tensor]:
    """The states after each word; gates in the order reset, update, new."""
    h = vectors[0].new_zeros(layer.weight_h.shape[1])
    states = []
    for x in vectors:
        of_x = (layer.weight_x @ x + layer.bias_x).chunk(3)
        of_h = (layer.weight_h @ h + layer.bias_h).chunk(3)
        r, z = sigmoid(of_x[0] + of_h[0]), sigmoid(of_x[1] + of_h[1])
        n = torch.tanh(of_x[2] + r * of_h[2])
        h = (1 - z) * n + z * h
        states.append(h)
    return states


def mlp(x: Tensor, layers: Sequence[Layer]) -> Tensor:
    """Linear layers with ReLU between them, and none after the last."""
    for layer in layers[:-1]:
        x = relu(layer(x))
    return layers[-1](x)


# --- SA+MLP ----------------------------------------------------------------------------------


class Glimpse(NamedTuple):
    """The layers of one attention step."""

    image: Layer
    question: Layer
    score: Layer


def stacked_attention(
    images: list[Tensor],
    questions: list[list[int]],
    *,
    embedding: Tensor,
    lstms: list[Recurrent],
    reduce: Layer,
    glimpses: list[Glimpse],
    output: list[Layer],
) -> tuple[Tensor, list[list[Tensor]]]:
    """Logits of the questions, in order, and the attention of each at each glimpse."""
    logits, attention = [], []
    for b, words in enumerate(questions):
        states = [embedding[word] for word in words]
        for layer in lstms:
            states = lstm(states, layer)
        u = states[-1]
        values = [reduce(cell) for cell in cells(images[b // (len(questions) // len(images))])]
        looked = []
        for glimpse in glimpses:
            hidden = [torch.tanh(glimpse.image(v) + glimpse.question(u)) for v in values]
            p = softmax([glimpse.score(h).squeeze() for h in hidden])
            u = u + average(p, values)
            looked.append(torch.stack(p))
        logits.append(mlp(u, output))
        attention.append(looked)
    return torch.stack(logits), attention


# --- RN --------------------------------------------------------------------------------------


def scaled(images: Tensor) -> list[Tensor]:
    """Images (N, H, W, 3) of bytes as maps from 0 to 1."""
    return [torch.stack([image[:, :, c].double() / 255 for c in range(3)]) for image in images]


class Convolution(NamedTuple):
    """A convolution, batch normalisation and ReLU."""

    layer: Layer
    norm: Norm
    stride: int
    padding: int

    def __call__(self, batch: list[Tensor], training: bool) -> list[Tensor]:
        maps = [convolve(m, self.layer, stride=self.stride, padding=self.padding) for m in batch]
        return [relu(m) for m in self.norm(maps, training)]


def relation_network(
    images: list[Tensor],
    questions: list[list[int]],
    *,
    convolutions: list[Convolution],
    embedding: Tensor,
    recurrent: Recurrent,
    g: list[Layer],
    f: list[Layer],
    training: bool,
    mean: bool,
    kept: Tensor | None = None,
) -> Tensor:
    """Logits of the questions; `kept` (B, units) is the dropout mask of f's second layer."""
    for convolution in convolutions:
        images = convolution(images, training)
    logits = []
    for b, words in enumerate(questions):
        q = lstm([embedding[word] for word in reversed(words)], recurrent)[-1]
        maps = images[b // (len(questions) // len(images))]
        x, y = coordinates(maps, 4)
        objects = cells(torch.cat([maps, y, x]))  # the order is ours: no description gives it
        total = torch.zeros(len(g[-1].weight), dtype=q.dtype)
        for one in objects:
            for other in objects:
                pair = torch.cat([one, other, q])
                for layer in g:
                    pair = relu(layer(pair))
                total = total + pair
        if mean:
            total = total / len(objects) ** 2
        hidden = f[1](relu(f[0](total)))
        if kept is not None:
            hidden = kept[b] * hidden
        logits.append(f[2](relu(hidden)))
    return torch.stack(logits)


# --- FiLM ------------------------------------------------------------------------------------


class FiLMBlock(NamedTuple):
    """The layers of one residual block; its normalisation has no weights."""

    project: Layer
    convolution: Layer
    norm: Norm


def film(
    images: list[Tensor],
    questions: list[list[int]],
    *,
    embedding: Tensor,
    recurrent: Recurrent,
    generator: Layer,
    stem: list[Convolution],
    stem_coordinates: bool,
    blocks: list[FiLMBlock],
    pool: Convolution,
    hidden: Layer,
    hidden_norm: Norm,
    answers: Layer,
    training: bool,
    repeat: bool,
) -> Tensor:
    """Logits of the questions; normalisation is over all of them, hence one list of maps.

    In the first block, the maps of all questions about an image are the same until they meet γ and
    β; with `repeat`, there is one copy for each question all the same.
    """
    films = [gru([embedding[word] for word in words], recurrent)[-1] for words in questions]
    films = [generator(state) for state in films]
    if stem_coordinates:
        images = [with_coordinates(maps) for maps in images]
    for convolution in stem:
        images = convolution(images, training)
    each = len(questions) // len(images)
    batch = [maps for maps in images for _ in range(each)] if repeat else images
    for i, block in enumerate(blocks):
        assert block.norm.weight is None
        rests = [convolve(with_coordinates(maps), block.project) for maps in batch]
        rests = [relu(maps) for maps in rests]
        normal = block.norm([convolve(m, block.convolution, padding=1) for m in rests], training)
        each, batch = len(questions) // len(rests), []
        for b, film_vector in enumerate(films):
            rest, maps = rests[b // each], normal[b // each]
            channels = len(maps)
            gamma_change, beta = film_vector[2 * channels * i :][: 2 * channels].split(channels)
            modulated = [(1 + gamma_change[c]) * maps[c] + beta[c] for c in range(channels)]
            batch.append(rest + relu(torch.stack(modulated)))
    batch = pool([with_coordinates(maps) for maps in batch], training)
    pooled = [torch.stack([max(channel.flatten()) for channel in maps]) for maps in batch]
    normal = hidden_norm([hidden(vector)[:, None, None] for vector in pooled], training)
    return torch.stack([answers(relu(maps.flatten())) for maps in normal])
