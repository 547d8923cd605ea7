"""CNN+LSTM+RN: the relation network of Santoro et al. (2017).

"Is there a cube of the same size as the ball?" Every cell of a coarse grid is an object. One small
network g, the same for all, takes each pair of objects together with the question: are these two a
ball and a cube of its size? The sum of its outputs over all pairs is what f answers from.

    o_i  (N, L, 26)  the L = 64 objects of an image: 24 channels and 2 coordinates
    q    (B, 128)    the question, read backwards;  B = N·G, G questions about each image

    answer = f(Σ_i Σ_j g(o_i, o_j, q)),  over all ordered pairs, those of an object with itself too

The first layer of g is a sum of three products, W_1 o_i + W_2 o_j + W_q q, so that two are computed
once per image and one per question; only their sum is of every pair.

The paper gives no initialisation. With torch's own, each layer of g and f weakens what depends on
image and question against its bias, and the sum of thousands makes logits of twenty. So they have
He's, without biases, and the first layer of f is divided by the number of pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.configuration import check_fields
from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.encoders import coordinates, question_lengths
from macnet.models.layers import can_use_triton, compute_dtype, has_large_shared_memory
from macnet.models.lstm import reversed_positions
from macnet.models.mac import check_group_sizes
from macnet.models.norm import BatchNorm2d
from macnet.models.recipe import FAST_WITH_EMA, Recipe
from macnet.models.system import System, TrainingSpec
from macnet.models.systems.inputs import (
    FeatureMaps,
    LastStateEncoder,
    StridedCNN,
    check_questions,
)

COORDINATE_RANGE = 4  # both public codes give coordinates from −4 to 4


@dataclass(frozen=True, kw_only=True)
class RelationNetworkConfig:
    """Options of the relation network; the defaults are as published, but for CNN and pooling."""

    backbone: Literal["residual", "strided"] = "residual"
    """What pixels pass first: MAC's residual backbone, or the published strided convolutions."""
    object_channels: int = 24
    """Channels of an object, besides its two coordinates."""
    embedding: int = 32
    """The dimension of word vectors."""
    units: int = 128
    """Hidden units of the LSTM."""
    g: int = 256
    """Hidden units of each of the layers of g."""
    g_layers: int = 4
    """Number of layers of g."""
    f: int = 256
    """Hidden units of the two hidden layers of f."""
    dropout: float = 0.5
    """The dropout rate in the second layer of f."""
    pooling: Literal["sum", "mean"] = "mean"
    """Whether the outputs of g for all pairs are summed, as published, or averaged.

    Either is the other with another first layer of f, but a step of that layer changes the logits
    by as many times more as there are pairs if it takes a sum.
    """

    def __post_init__(self) -> None:
        check_fields(self, repeated=("g_layers",))
        if not (isinstance(self.dropout, int | float) and 0 <= self.dropout < 1):
            raise InputError(f"dropout is {self.dropout!r}; it must be a number from 0 to below 1")


class Objects(nn.Module):
    """Images → objects (N, L, objects + 2): the cells of a grid, with their coordinates."""

    def __init__(self, config: RelationNetworkConfig, data_spec: DataSpec) -> None:
        super().__init__()
        strided = config.backbone == "strided"
        cnn = StridedCNN(config.object_channels, kernel=3) if strided else None
        self.maps = FeatureMaps(data_spec, cnn)
        self.reduce: nn.Module | None = None
        if cnn is None:
            # Ours: the grid is halved and narrowed to about what the published CNN makes, 8×8×24.
            narrow = nn.Conv2d(self.maps.channels, config.object_channels, 3, stride=2, padding=1)
            self.reduce = nn.Sequential(narrow, BatchNorm2d(config.object_channels), nn.ReLU())
        stride = 1 if self.reduce is None else 2
        self.cells = math.prod(-(-side // stride) for side in self.maps.size)
        """L, the number of objects."""
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        maps = self.maps(images)
        if self.reduce is not None:
            dtype = compute_dtype(next(self.reduce.parameters()))
            maps = self.reduce(maps.to(dtype, memory_format=torch.channels_last))
        maps = torch.cat([maps, COORDINATE_RANGE * coordinates(maps)], 1)
        return maps.flatten(2).transpose(1, 2)


class Relation(nn.Module):
    """g, summed over all pairs of objects."""

    def __init__(self, config: RelationNetworkConfig) -> None:
        super().__init__()
        size = config.object_channels + 2
        self.parts = size, size, config.units  # of a pair: o_i, o_j, q
        widths = [sum(self.parts), *(config.g for _ in range(config.g_layers))]
        layers = nn.ModuleList(nn.Linear(*sizes) for sizes in pairwise(widths))
        self.layers = cast(list[nn.Linear], layers)

    def forward(self, objects: Tensor, q: Tensor) -> Tensor:
        # objects: (N, L, o)   q: (B, units) → (B, g)
        n, cells, _ = objects.shape
        first, *others = self.layers
        of_i, of_j, of_q = first.weight.split(self.parts, dim=1)
        a, b, asked = (
            F.linear(objects, of_i),
            F.linear(objects, of_j),
            F.linear(q, of_q, first.bias),
        )
        fits = others and len(of_q) in (64, 128, 256)
        if fits and can_use_triton(a.device, a.dtype) and has_large_shared_memory(a.device):
            from macnet.models.kernels.relation import sum_over_pairs

            weights, biases = zip(*((layer.weight, layer.bias) for layer in others), strict=True)
            return sum_over_pairs(a, b, asked, weights, biases).to(first.weight.dtype)
        pairs = a[:, :, None] + b[:, None]
        h = F.relu(pairs[:, None] + asked.view(n, -1, 1, 1, len(of_q)), inplace=True)
        # h: (N, G, L, L, g)
        for layer in others:
            h = F.relu(layer(h), inplace=True)
        # In the weights' precision: a sum of thousands loses what bfloat16 adds.
        return h.view(len(q), cells * cells, -1).sum(1, dtype=first.weight.dtype)

    def literal(self, objects: Tensor, q: Tensor) -> Tensor:
        """The same as published: g of each pair, written out."""
        objects = objects.repeat_interleave(len(q) // len(objects), 0)  # (B, L, o)
        cells = objects.shape[1]
        o_i = objects[:, :, None].expand(-1, -1, cells, -1)
        o_j = objects[:, None].expand(-1, cells, -1, -1)
        asked = q[:, None, None].expand(-1, cells, cells, -1)
        h = torch.cat([o_i, o_j, asked.to(objects.dtype)], -1)  # (B, L, L, 2o + units)
        for layer in self.layers:
            h = F.relu(layer(h))
        return h.sum((1, 2), dtype=self.layers[0].weight.dtype)


class RelationNetwork(nn.Module):
    """Objects and question → the sum of g over all pairs → f → answers."""

    def __init__(self, config: RelationNetworkConfig, data_spec: DataSpec) -> None:
        super().__init__()
        self.config = config
        self.question = LastStateEncoder(
            vocabulary=data_spec.vocabulary,
            embedding=config.embedding,
            units=config.units,
            layers=1,
        )
        self.image = Objects(config, data_spec)
        self.g = Relation(config)
        first = nn.Linear(config.g, config.f)
        self.f = nn.Sequential(
            first,
            nn.ReLU(),
            nn.Linear(config.f, config.f),
            nn.Dropout(config.dropout),
            nn.ReLU(),
            nn.Linear(config.f, data_spec.answers),
        )
        for part in (*self.g.modules(), *self.f.modules()):
            if isinstance(part, nn.Linear):
                nn.init.kaiming_uniform_(part.weight, nonlinearity="relu")
                nn.init.zeros_(part.bias)
        if config.pooling == "sum":
            with torch.no_grad():
                first.weight /= self.image.cells**2

    def forward(self, images: Tensor, questions: Tensor, *, literal: bool = False) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3)   questions: (B, S) → (B, answers)
        check_questions(questions)
        check_group_sizes(len(questions), len(images))
        # The question is read from its end: both public codes found that essential.
        turned = reversed_positions(question_lengths(questions), questions.shape[1])
        q = self.question(questions.take_along_dim(turned, 1))
        relate = self.g.literal if literal else self.g
        evidence = relate(self.image(images), q)  # (B, g)
        if self.config.pooling == "mean":
            evidence = evidence / self.image.cells**2
        logits: Tensor = self.f(evidence)
        return logits

    def literal(self, images: Tensor, questions: Tensor) -> Tensor:
        """The same logits with every pair written out; slow, and there to be compared with."""
        return self.forward(images, questions, literal=True)


# The paper trains at 2.5e-4 with ten workers of 64 questions; no public code learns that way. This
# is what those do that come nearest: 93.6% after 350 to 500 epochs.
PAPER = Recipe(
    images=640,
    lr=5e-4,
    schedule="doubling",
    weight_decay=1e-4,
    clip=50,
    ema=0,
    epochs=500,
    patience=0,
)
FAST_RN = {**FAST_WITH_EMA, "images": 64, "weight_decay": 0}
RN = System(
    name="rn",
    table1_row="CNN+LSTM+RN†‡",
    description="""\
Relation network: it compares every pair of image cells.
Objects are image cells with their coordinates. An MLP g takes each pair of
them with the question, which an LSTM reads in reverse; an MLP f classifies
the sum of g over all pairs. Santoro et al. (2017), "A simple neural network
module for relational reasoning".""",
    build=RelationNetwork,
    presets={"rn": RelationNetworkConfig()},
    training=TrainingSpec(paper=PAPER, fast=FAST_RN),
)
RN_PIXELS = System(
    name="rn-pixels",
    table1_row="CNN+LSTM+RN†‡",
    description="""\
RN with the small CNN and augmentation of its paper.
Four strided convolutions see pixels, which are shifted and rotated at random;
the rest is RN: an MLP g over all pairs of cells with the question, and an
MLP f over their sum. Santoro et al. (2017), "A simple neural network module
for relational reasoning".""",
    build=RelationNetwork,
    presets={"rn-pixels": RelationNetworkConfig(backbone="strided", pooling="sum")},
    # Images are padded by 8 and cropped at random, then turned by up to 0.05 radians.
    training=TrainingSpec(
        paper=replace(PAPER, shift=8, rotation=2.865),
        fast={**FAST_RN, "optimizer": "adam", "lr": 2.5e-4},  # the paper's rate: it takes a sum
    ),
)
