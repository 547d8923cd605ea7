"""LSTM and CNN+LSTM, the baselines of Johnson et al. (2017), "Inferring and Executing Programs".

LSTM takes the question only; CNN+LSTM also takes the image, as one vector. Layers are initialised
as torch initialises them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.configuration import check_fields
from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.layers import compute_dtype
from macnet.models.mac import check_group_sizes
from macnet.models.recipe import Recipe
from macnet.models.system import System, TrainingSpec
from macnet.models.systems.inputs import FeatureMaps, LastStateEncoder


@dataclass(frozen=True, kw_only=True)
class LSTMConfig:
    """Options of the LSTM baseline; the defaults are as published."""

    embedding: int = 300
    """The dimension of word vectors."""
    units: int = 256
    """Hidden units of each LSTM layer."""
    layers: int = 2
    """Number of LSTM layers."""
    hidden: int = 1024
    """Hidden units of the classifier."""

    def __post_init__(self) -> None:
        check_fields(self, repeated=("layers",))


@dataclass(frozen=True, kw_only=True)
class CNNLSTMConfig(LSTMConfig):
    """Options of the CNN+LSTM baseline; the defaults are as published."""

    channels: int = 512
    """Channels of the feature maps before they are flattened."""


class FlatImage(nn.Module):
    """Feature maps → 1×1 convolution, ReLU, 2×2 max pooling → one vector."""

    def __init__(self, config: CNNLSTMConfig, data_spec: DataSpec) -> None:
        super().__init__()
        *_, height, width = data_spec
        self.maps = FeatureMaps(data_spec)
        smallest = self.maps.stride + 1
        if min(height, width) < smallest:
            raise InputError(
                f"images are {height}×{width}; CNN+LSTM needs at least {smallest}×{smallest}"
            )
        h, w = self.maps.size
        self.size = config.channels * (h // 2) * (w // 2)
        """Length of the vector."""
        self.reduce = nn.Conv2d(self.maps.channels, config.channels, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3) → (N, size)
        dtype = compute_dtype(self.reduce.weight)
        maps = self.reduce(self.maps(images).to(dtype, memory_format=torch.channels_last))
        return F.max_pool2d(F.relu(maps), 2).flatten(1)


class Classifier(nn.Module):
    """Two-layer classifier of [q, v]."""

    def __init__(self, inputs: int, hidden: int, *, answers: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.answers = nn.Linear(hidden, answers)

    def forward(self, q: Tensor, v: Tensor) -> Tensor:
        # q: (B, ·)   v: (N, ·), each for B/N questions → (B, answers)
        of_q, of_v = self.hidden.weight.split((q.shape[1], v.shape[1]), dim=1)
        # W[q, v] = W_q q + W_v v, and the long second product is the same for all q of an image.
        seen = F.linear(v, of_v).repeat_interleave(len(q) // len(v), dim=0)
        logits: Tensor = self.answers(F.relu(F.linear(q, of_q, self.hidden.bias) + seen))
        return logits


def lstm_encoder(config: LSTMConfig, data_spec: DataSpec) -> LastStateEncoder:
    """The question encoder of the LSTM, CNN+LSTM and CNN+LSTM+SA systems."""
    return LastStateEncoder(
        vocabulary=data_spec.vocabulary,
        embedding=config.embedding,
        units=config.units,
        layers=config.layers,
    )


class LSTMNetwork(nn.Module):
    """The LSTM baseline: it answers from the question alone."""

    def __init__(self, config: LSTMConfig, data_spec: DataSpec) -> None:
        super().__init__()
        self.config = config
        self.question = lstm_encoder(config, data_spec)
        hidden = nn.Linear(config.units, config.hidden)
        self.output = nn.Sequential(hidden, nn.ReLU(), nn.Linear(config.hidden, data_spec.answers))

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        # questions: (B, S) → (B, answers)
        logits: Tensor = self.output(self.question(questions))
        return logits


class CNNLSTMNetwork(nn.Module):
    """The CNN+LSTM baseline: it answers from one vector each for question and image.

    The B questions are about N images, those about the first image first: B is a multiple of N.
    """

    def __init__(self, config: CNNLSTMConfig, data_spec: DataSpec) -> None:
        super().__init__()
        self.config = config
        self.question = lstm_encoder(config, data_spec)
        self.image = FlatImage(config, data_spec)
        inputs = config.units + self.image.size
        self.output = Classifier(inputs, config.hidden, answers=data_spec.answers)

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3)   questions: (B, S) → (B, answers)
        check_group_sizes(len(questions), len(images))
        logits: Tensor = self.output(self.question(questions), self.image(images))
        return logits


HUMANS_STEPS = 279  # in an epoch of CLEVR-Humans: 17,817 training questions in batches of 64
TRAINING = TrainingSpec(  # of clevr-iep's code
    paper=Recipe(lr=5e-4, clip=0, ema=0, epochs=33),
    # Only embedding and LSTM are trained, for 100,000 steps; the best of all validations is kept.
    humans={
        "trainable": ("question",),
        "lr": 1e-4,
        "epochs": 100_000 / HUMANS_STEPS,
        "validate_every": 500 / HUMANS_STEPS,
        "patience": 0,
    },
)
LSTM = System(
    name="lstm",
    table1_row="LSTM",
    description="""\
The question alone, without the image.
A two-layer LSTM reads the question, and an MLP classifies its last state:
what can be guessed without an image. Johnson et al. (2017), "Inferring and
Executing Programs for Visual Reasoning".""",
    build=LSTMNetwork,
    presets={"lstm": LSTMConfig()},
    training=TRAINING,
)
CNN_LSTM = System(
    name="cnn-lstm",
    table1_row="CNN+LSTM",
    description="""\
One vector for the question and one for the whole image.
A two-layer LSTM reads the question. The image is reduced by a 1×1 convolution
and max pooling, and flattened. An MLP classifies both vectors together.
Johnson et al. (2017), "Inferring and Executing Programs for Visual
Reasoning".""",
    build=CNNLSTMNetwork,
    presets={"cnn-lstm": CNNLSTMConfig()},
    training=TRAINING,
)
