"""CNN+GRU+FiLM: feature-wise linear modulation (Perez et al., 2018).

"Are there more cubes than yellow things?" The question does not attend to places; it changes how
the image is seen. From the question, a GRU generates a factor γ and a summand β for each channel of
each of four residual blocks: a channel for yellow can be turned up, one for spheres turned off.

    x (B, 128, H, W)  the maps of each question's image;  B = N·G, G questions about each image

    r = ReLU(conv1×1[x, coordinates])     x ← r + ReLU(γ ⊙ norm(conv3×3(r)) + β)

Up to γ and β of the first block, maps are the same for all questions about an image, and are
computed once; mean and variance over them are the same, but for n/(n − 1) of the running variance.
A convolution of [x, coordinates] is a sum of two, of which that of the coordinates is the same for
all images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from macnet import distributed
from macnet.configuration import check_fields
from macnet.data.spec import DataSpec
from macnet.models.encoders import PAD, coordinates, embed_tokens, question_lengths
from macnet.models.gru import gru_last_state
from macnet.models.layers import can_use_triton, compute_dtype
from macnet.models.mac import check_group_sizes
from macnet.models.norm import BatchNorm2d
from macnet.models.recipe import FAST_WITH_EMA, Recipe
from macnet.models.system import System, TrainingSpec
from macnet.models.systems.inputs import FeatureMaps, StridedCNN, check_questions


@dataclass(frozen=True, kw_only=True)
class FiLMConfig:
    """Options of FiLM; the defaults are as published."""

    backbone: Literal["residual", "strided"] = "residual"
    """What pixels pass first: MAC's residual backbone, or the published strided convolutions."""
    embedding: int = 200
    """The dimension of word vectors."""
    units: int = 4096
    """Hidden units of the GRU."""
    channels: int = 128
    """Channels of the maps that are modulated."""
    blocks: int = 4
    """Number of residual blocks."""
    pooled: int = 512
    """Channels of the maps that are pooled into one vector."""
    hidden: int = 1024
    """Hidden units of the classifier."""

    def __post_init__(self) -> None:
        check_fields(self, repeated=("blocks",))


class Generator(nn.Module):
    """The FiLM generator: question → γ and β (B, channels) of each block."""

    def __init__(self, config: FiLMConfig, *, vocabulary: int) -> None:
        super().__init__()
        self.blocks = config.blocks
        self.embedding = nn.Embedding(vocabulary, config.embedding, padding_idx=PAD)  # N(0, 1)
        self.gru = nn.GRU(config.embedding, config.units, batch_first=True)
        self.project = nn.Linear(config.units, 2 * config.blocks * config.channels)

    def forward(self, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
        # tokens: (B, S)
        words = embed_tokens(self.embedding.weight, tokens)  # (B, S, embedding)
        weights = self.gru.all_weights[0]
        q = gru_last_state(words, question_lengths(tokens), *weights)  # (B, units)
        # A block starts as if there were no question: what is generated is γ − 1.
        pairs = self.project(q).unflatten(1, (self.blocks, 2, -1)).unbind(1)
        return [(1 + delta, beta) for delta, beta in (pair.unbind(1) for pair in pairs)]


class CoordinateConv2d(nn.Conv2d):
    """A convolution of [x, the x and y of each cell, from −1 to 1]."""

    def __init__(self, channels: int, outputs: int, kernel: int) -> None:
        super().__init__(channels + 2, outputs, kernel, padding=kernel // 2)

    def forward(self, maps: Tensor) -> Tensor:
        """The sum of the convolutions of both; the second is the same for all maps."""
        of_maps, of_places = self.weight.split((maps.shape[1], 2), dim=1)
        places = F.conv2d(xy_coordinates(maps[:1]), of_places, self.bias, padding=self.padding)
        convolved = F.conv2d(maps, of_maps, padding=self.padding)
        out: Tensor = _AddToEach.apply(convolved, places)  # type: ignore[no-untyped-call]
        return out

    def literal(self, maps: Tensor) -> Tensor:
        """The convolution as it is written."""
        return super().forward(torch.cat([maps, xy_coordinates(maps)], 1))


class _AddToEach(Function):
    """Add one map to each of B; the gradient is a product, which is faster than a sum on a GPU."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, added: Tensor) -> Tensor:
        return maps + added

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmaps: Tensor) -> tuple[Tensor, Tensor]:
        rows = dmaps.permute(0, 2, 3, 1)  # (B, H, W, C), as channels are last in memory
        total = rows.new_ones(1, len(rows)) @ rows.flatten(1)
        return dmaps, total.view_as(rows[:1]).permute(0, 3, 1, 2)


def xy_coordinates(maps: Tensor) -> Tensor:
    """The x and y of each cell: (N, 2, H, W)."""
    return coordinates(maps).flip(1)


class Stem(nn.Module):
    """Feature maps → maps (N, C, H, W) that can be modulated."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.convolution = CoordinateConv2d(inputs, channels, 3)
        self.norm = BatchNorm2d(channels)

    def forward(self, maps: Tensor, *, literal: bool = False) -> Tensor:
        convolve = self.convolution.literal if literal else self.convolution
        return F.relu(self.norm(convolve(maps)))


class FiLMBlock(nn.Module):
    """A residual block whose normalised maps are scaled by γ and shifted by β."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.project = CoordinateConv2d(channels, channels, 1)
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = BatchNorm2d(channels, affine=False)

    def forward(self, maps: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        # maps: (N, C, H, W) or (B, C, H, W)   gamma, beta: (B, C) → (B, C, H, W)
        r = F.relu(self.project(maps))
        x = self.convolution(r)
        if can_fuse_norm(self.norm, x):
            from macnet.models.kernels import film as kernels

            return kernels.modulate(r, x, self.norm, gamma, beta)
        return modulate(r, self.norm(x), gamma, beta)

    def literal(self, maps: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        """The same as published: (B, C, H, W) of each question."""
        r = F.relu(self.project.literal(maps))
        x = self.norm(self.convolution(r))
        return r + F.relu(gamma[..., None, None] * x + beta[..., None, None])


def can_fuse_norm(norm: BatchNorm2d, maps: Tensor) -> bool:
    """Whether a kernel does normalisation and what follows it; not over several processes."""
    alone = distributed.size() == 1
    return norm.training and alone and can_use_triton(maps.device, maps.dtype)


def modulate(r: Tensor, x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """r + ReLU(γ ⊙ x + β) of all questions: (N, C, H, W) and (B, C) → (B, C, H, W)."""
    n, *shape = x.shape
    gamma, beta = (part.view(n, -1, len(part[0]), 1, 1) for part in (gamma, beta))
    return (r[:, None] + F.relu(torch.addcmul(beta, gamma, x[:, None]))).view(-1, *shape)


class PooledClassifier(nn.Module):
    """Maps (B, C, H, W) → 1×1 convolution → global max pooling → two layers → answers."""

    def __init__(self, config: FiLMConfig, *, answers: int) -> None:
        super().__init__()
        self.project = CoordinateConv2d(config.channels, config.pooled, 1)
        self.norm = BatchNorm2d(config.pooled)
        self.hidden = nn.Linear(config.pooled, config.hidden)
        self.hidden_norm = BatchNorm2d(config.hidden)
        self.answers = nn.Linear(config.hidden, answers)

    def forward(self, maps: Tensor, *, literal: bool = False) -> Tensor:
        x = (self.project.literal if literal else self.project)(maps)
        if can_fuse_norm(self.norm, x) and not literal:
            from macnet.models.kernels import film as kernels

            pooled = kernels.pool(x, self.norm)  # (B, pooled)
        else:
            pooled = F.relu(self.norm(x)).amax((2, 3))
        hidden = self.hidden_norm(self.hidden(pooled)[..., None, None]).flatten(1)
        logits: Tensor = self.answers(F.relu(hidden))
        return logits


class FiLMNetwork(nn.Module):
    """The image through blocks that the question modulates → answers."""

    def __init__(self, config: FiLMConfig, data_spec: DataSpec) -> None:
        super().__init__()
        self.config = config
        self.generator = Generator(config, vocabulary=data_spec.vocabulary)
        cnn = StridedCNN(config.channels, kernel=4) if config.backbone == "strided" else None
        self.image = FeatureMaps(data_spec, cnn)
        self.stem = None if cnn else Stem(self.image.channels, config.channels)
        blocks = nn.ModuleList(FiLMBlock(config.channels) for _ in range(config.blocks))
        self.blocks = cast(list[FiLMBlock], blocks)
        self.classifier = PooledClassifier(config, answers=data_spec.answers)
        for name, part in self.named_modules():
            is_shared = cnn is None and name.startswith("image.")
            if isinstance(part, nn.Conv2d | nn.Linear) and not is_shared:
                nn.init.kaiming_uniform_(part.weight)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor, questions: Tensor, *, literal: bool = False) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3)   questions: (B, S) → (B, answers)
        check_questions(questions)
        check_group_sizes(len(questions), len(images))
        gammas_betas = self.generator(questions)
        maps = self.image(images)
        dtype = compute_dtype(next(self.classifier.parameters()))
        maps = maps.to(dtype, memory_format=torch.channels_last)
        if self.stem is not None:
            maps = self.stem(maps, literal=literal)
        if literal:
            maps = maps.repeat_interleave(len(questions) // len(images), 0)
        for block, (gamma, beta) in zip(self.blocks, gammas_betas, strict=True):
            maps = (block.literal if literal else block)(maps, gamma, beta)
        logits: Tensor = self.classifier(maps, literal=literal)
        return logits

    def literal(self, images: Tensor, questions: Tensor) -> Tensor:
        """The same logits as published, each question with its own maps; slow, to be compared."""
        return self.forward(images, questions, literal=True)


TRAINING = TrainingSpec(
    # Weight decay is of all parameters, and coupled: a part of the gradient.
    paper=Recipe(lr=3e-4, weight_decay=1e-5, clip=0, ema=0, epochs=80),
    # At MAC's 3e-3 gradients explode in the second epoch. Without weight decay, here decoupled, it
    # learns its 70,000 images by heart: after five epochs it answers 88% of the questions it is
    # trained on and 74% of others; with it, 85 and 82% (results/systems_accuracy_h200.json).
    fast={**FAST_WITH_EMA, "lr": 1e-3, "weight_decay": 1},
    humans={"trainable": ("generator",)},  # as in training, but for what is frozen
)
FILM = System(
    name="film",
    table1_row="CNN+GRU+FiLM",
    description="""\
FiLM: the question scales and shifts channels of a CNN.
A GRU reads the question; a linear layer turns its last state into a scale γ
and a shift β for each channel of four residual blocks over the image. Their
output is max-pooled and classified by an MLP. Perez et al. (2018), "FiLM:
Visual Reasoning with a General Conditioning Layer".""",
    build=FiLMNetwork,
    presets={"film": FiLMConfig()},
    training=TRAINING,
)
FILM_PIXELS = System(
    name="film-pixels",
    table1_row="CNN+GRU+FiLM‡",
    description="""\
FiLM with the CNN of its paper, for --size 224x224.
Four strided convolutions see pixels; the rest is FiLM: a GRU reads the
question, and generates a scale and a shift for each channel of four blocks.
Perez et al. (2018), "FiLM: Visual Reasoning with a General Conditioning
Layer".""",
    build=FiLMNetwork,
    presets={"film-pixels": FiLMConfig(backbone="strided")},
    training=TRAINING,
)
