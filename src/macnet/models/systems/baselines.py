"""LSTM and CNN+LSTM, as Johnson et al. (2017) have them in "Inferring and Executing Programs".

The first reads the question and sees nothing; the second also sees the image, as one long vector.
Layers start as torch's do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.configuration import REPEATS, SIZES, refuse_no_count
from macnet.errors import InputError
from macnet.models.config import WIDTHS
from macnet.models.encoders import PAD, PixelMaps, lengths_of, look_up
from macnet.models.layers import working_dtype
from macnet.models.lstm import read
from macnet.models.mac import refuse_uneven


@dataclass(frozen=True, kw_only=True)
class LSTMConfig:
    """A network that reads questions; the defaults are as published."""

    embedding: int = 300
    """The dimension of word vectors."""
    units: int = 256
    """Of each layer of the LSTM."""
    layers: int = 2
    """Of the LSTM."""
    hidden: int = 1024
    """Units between the question and the answers."""

    def __post_init__(self) -> None:
        for field in fields(self):
            most = REPEATS if field.name == "layers" else SIZES
            refuse_no_count(field.name, getattr(self, field.name), most)


@dataclass(frozen=True, kw_only=True)
class CNNLSTMConfig(LSTMConfig):
    """A network that reads questions and sees images; the defaults are as published."""

    channels: int = 512
    """Of the image's maps before they become a vector."""


class LastState(nn.Module):
    """Words → embeddings → LSTM, forwards only → the top layer's state at the last word."""

    def __init__(self, config: LSTMConfig, *, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, config.embedding, padding_idx=PAD)  # N(0, 1)
        self.lstm = nn.LSTM(config.embedding, config.units, config.layers, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        # tokens: (B, S) → (B, units)
        if tokens.dim() != 2 or not tokens.numel():
            raise InputError(f"questions are {tuple(tokens.shape)}; they must be (B, words)")
        # In float32: autocast would have cuDNN take float16, in which small gradients vanish. And
        # by `read`: torch's layer wants its weights in one piece of memory, which those of a copy,
        # such as a moving average, are not.
        with torch.autocast(tokens.device.type, enabled=False):
            states = look_up(self.embedding.weight, tokens)  # (B, S, embedding)
            for weight_x, weight_h, bias_x, bias_h in self.lstm.all_weights:
                states = read(states, weight_x, weight_h, bias_x + bias_h)  # (B, S, units)
        # What is read after the last word, which is padding, changes nothing before it.
        last = lengths_of(tokens)[:, None, None] - 1
        return states.take_along_dim(last, dim=1).squeeze(1)


class FlatImage(nn.Module):
    """Feature maps → 1×1 convolution, ReLU, half the size → all of it in one vector.

    For pictures, the maps are made by a small CNN that is learned with the rest, as MAC's: this is
    our addition, the published system has features only.
    """

    def __init__(
        self, config: CNNLSTMConfig, *, pixels: bool, channels: int, height: int, width: int
    ) -> None:
        super().__init__()
        self.shape = (height, width, 3) if pixels else (channels, height, width)
        self.maps = PixelMaps() if pixels else None
        smallest = PixelMaps.SHRINKS + 1 if pixels else 2
        if min(height, width) < smallest:
            raise InputError(
                f"images are {height}×{width}; CNN+LSTM needs at least {smallest}×{smallest}"
            )
        shrinks = PixelMaps.SHRINKS if pixels else 1
        h, w = (-(-side // shrinks) // 2 for side in (height, width))
        self.size = config.channels * h * w
        """Of the vector."""
        self.reduce = nn.Conv2d(WIDTHS[-1] if pixels else channels, config.channels, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3) → (N, size)
        if images.shape[1:] != self.shape:
            raise InputError(
                f"images are {tuple(images.shape)}; this network was made for (images, "
                f"{', '.join(map(str, self.shape))})"
            )
        if self.maps is not None:
            images = self.maps(images)
        dtype = working_dtype(self.reduce.weight)
        maps = self.reduce(images.to(dtype, memory_format=torch.channels_last))
        return F.max_pool2d(F.relu(maps), 2).flatten(1)


class Classifier(nn.Module):
    """[q, v] → ReLU → answers."""

    def __init__(self, inputs: int, hidden: int, *, answers: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, hidden)
        self.answers = nn.Linear(hidden, answers)

    def forward(self, q: Tensor, v: Tensor) -> Tensor:
        # q: (B, ·)   v: (N, ·), each for B/N questions → (B, answers)
        of_q, of_v = self.hidden.weight.split((q.shape[1], v.shape[1]), dim=1)
        # W[q, v] = W_q q + W_v v, and an image's part, which is long, is the same for all its q.
        seen = F.linear(v, of_v).repeat_interleave(len(q) // len(v), dim=0)
        logits: Tensor = self.answers(F.relu(F.linear(q, of_q, self.hidden.bias) + seen))
        return logits


class LSTMNetwork(nn.Module):
    """Answers from the question alone: what can be known of CLEVR without looking."""

    def __init__(self, config: LSTMConfig, *, vocabulary: int, answers: int) -> None:
        super().__init__()
        self.config = config
        self.question = LastState(config, vocabulary=vocabulary)
        self.output = nn.Sequential(
            nn.Linear(config.units, config.hidden), nn.ReLU(), nn.Linear(config.hidden, answers)
        )

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        # questions: (B, S) → (B, answers)
        logits: Tensor = self.output(self.question(questions))
        return logits


class CNNLSTMNetwork(nn.Module):
    """Answers from the question and the image, each a vector: there are no objects, nor places.

    The B questions are about N images, those about the first image first: B is a multiple of N.
    """

    def __init__(
        self,
        config: CNNLSTMConfig,
        *,
        vocabulary: int,
        answers: int,
        pixels: bool,
        channels: int,
        height: int,
        width: int,
    ) -> None:
        super().__init__()
        self.config = config
        self.question = LastState(config, vocabulary=vocabulary)
        self.image = FlatImage(config, pixels=pixels, channels=channels, height=height, width=width)
        self.output = Classifier(config.units + self.image.size, config.hidden, answers=answers)

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3)   questions: (B, S) → (B, answers)
        refuse_uneven(len(questions), len(images))
        logits: Tensor = self.output(self.question(questions), self.image(images))
        return logits
