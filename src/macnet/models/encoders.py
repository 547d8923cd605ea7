"""The input unit (Section 2.1): questions become words and a vector, images a knowledge base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from macnet.errors import InputError
from macnet.models.config import BLOCKS, WIDTHS, MACConfig
from macnet.models.layers import drop, held_mask, linear, working_dtype
from macnet.models.lstm import BiLSTM
from macnet.models.norm import BatchNorm2d
from macnet.models.repeated import over_many

PAD = 0
"""The token that fills up short questions."""
SMALL_TABLE = 512
"""Up to so many words have their gradient by a product."""


class Question(NamedTuple):
    """What is known of B questions, padded to S words."""

    q: Tensor  # (B, 2d) or (B, d): the question as a whole
    words: Tensor  # (B, S, d): each word in its context
    is_pad: Tensor  # (B, S)


class Knowledge(NamedTuple):
    """N knowledge bases of up to L elements, and at least one; an image's are its places."""

    elements: Tensor  # K: (N, L, d)
    is_pad: Tensor | None = None  # (N, L), where the bases differ in size


def question_size(config: MACConfig) -> int:
    """How many numbers q has."""
    return 2 * config.d if config.lstm == "d" else config.d


class QuestionEncoder(nn.Module):
    """Words → embeddings → biLSTM → contextual words cw_s and question vector q."""

    def __init__(self, config: MACConfig, *, vocabulary: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.embedding = nn.Embedding(vocabulary, config.embedding, padding_idx=PAD)
        nn.init.uniform_(self.embedding.weight, config.embedding_low, 1)
        with torch.no_grad():
            self.embedding.weight[PAD] = 0
        q = question_size(config)
        self.lstm = BiLSTM(config.embedding, q // 2)
        self.over_vectors = config.attend == "word vectors"
        width = config.embedding if self.over_vectors else q
        # Words must have d numbers to meet a control; where nothing attends to them, they need not.
        fits = width == config.d or config.attend == "nothing"
        self.project = None if fits else linear(width, config.d)

    def forward(self, tokens: Tensor) -> Question:
        # tokens: (B, S), whole numbers
        lengths = lengths_of(tokens)
        is_pad = torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None]
        vectors = look_up(self.embedding.weight, tokens)  # (B, S, embedding)
        if self.dropout.hold_words:
            mask = held_mask(vectors[:, :1], self.dropout.words, self.training)
            vectors = drop(vectors, mask)
        else:
            vectors = F.dropout(vectors, self.dropout.words, self.training)
        states, q = self.lstm(vectors, lengths)  # (B, S, 2u), (B, 2u): [forwards, backwards]
        q = F.dropout(q, self.dropout.question, self.training)
        words = vectors if self.over_vectors else states
        return Question(
            q, words if self.project is None else over_many(self.project, words), is_pad
        )


def lengths_of(tokens: Tensor) -> Tensor:
    """A question ends with its last word, or after one empty word if there is none."""
    # tokens: (B, S) → (B)
    position = torch.arange(tokens.shape[1], device=tokens.device)
    return ((tokens != PAD) * (position + 1)).amax(1).clamp(min=1)


def look_up(table: Tensor, tokens: Tensor) -> Tensor:
    """Each token's row of the table; no gradient reaches that of PAD."""
    table = table.to(working_dtype(table))
    if len(table) > SMALL_TABLE or not table.is_cuda:
        return F.embedding(tokens, table, padding_idx=PAD)
    vectors: Tensor = _SmallTable.apply(table, tokens)  # type: ignore[no-untyped-call]
    return vectors


class _SmallTable(Function):
    """A lookup's gradient is a sort and a scatter; a product with few words is faster on a GPU."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.words = len(table)
        return F.embedding(tokens, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dvectors: Tensor) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        is_word = tokens.flatten() == torch.arange(ctx.words, device=tokens.device)[:, None]
        is_word[PAD] = False
        return is_word.to(dvectors.dtype) @ dvectors.flatten(0, -2), None


class FeatureTrunk(nn.Module):
    """Feature maps (N, channels, H, W) → K, through two 3×3 convolutions with d channels.

    The paper's features come from a ResNet that is ready. Behind maps that are still to learn,
    both are `normalised`.
    """

    def __init__(
        self, config: MACConfig, channels: int | None = None, *, normalised: bool = False
    ) -> None:
        super().__init__()
        self.channels = channels or config.channels
        self.rate = config.dropout.image
        self.coordinates = config.coordinates
        inputs, d = self.channels + 2 * config.coordinates, config.d
        self.first = _normalised(inputs, d) if normalised else _convolution(inputs, d)
        self.second = _normalised(d, d) if normalised else _convolution(d, d)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, maps: Tensor) -> Knowledge:
        if maps.dim() != 4 or maps.shape[1] != self.channels:
            raise InputError(
                f"features are {tuple(maps.shape)}; they must be (images, {self.channels}, height, "
                "width), or set channels"
            )
        # Channels last is how tensor cores read an image, and makes K below a view.
        dtype = working_dtype(next(self.parameters()))
        maps = maps.to(dtype, memory_format=torch.channels_last)
        if self.coordinates:
            maps = torch.cat([maps, _coordinates(maps)], 1)
        for convolution in (self.first, self.second):
            maps = F.elu(convolution(F.dropout(maps, self.rate, self.training)))
        return Knowledge(maps.flatten(2).transpose(1, 2))  # (N, d, H, W) → (N, L, d)


class Residual(nn.Module):
    """x + what two convolutions make of x; that is nothing at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _normalised(width, width)
        self.second = _normalised(width, width, scale=0)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


class PixelMaps(nn.Sequential):
    """Pictures (N, H, W, 3), bytes → maps at an eighth of their size, as a ResNet makes them.

    Each width halves the picture, and has its residual blocks. All is learned with the rest.
    """

    SHRINKS = 2 ** len(WIDTHS)

    def __init__(self, widths: Sequence[int] = WIDTHS, blocks: Sequence[int] = BLOCKS) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs, count in zip((3, *widths[:-1]), widths, blocks, strict=True):
            layers += [_normalised(inputs, outputs, stride=2), nn.ReLU()]
            layers += [Residual(outputs) for _ in range(count)]
        super().__init__(*layers)

    def forward(self, pictures: Tensor) -> Tensor:
        if pictures.dim() != 4 or pictures.shape[3] != 3 or pictures.dtype != torch.uint8:
            raise InputError(
                f"pictures are {tuple(pictures.shape)} of {pictures.dtype}; they must be "
                "(images, height, width, 3) of torch.uint8"
            )
        pixels = pictures.permute(0, 3, 1, 2).to(working_dtype(next(self.parameters())))
        maps: Tensor = super().forward(pixels / 127.5 - 1)  # type: ignore[no-untyped-call]
        return maps


class PixelTrunk(nn.Module):
    """Pictures (N, H, W, 3), bytes → K at an eighth of their size, learned with the rest."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.features = PixelMaps(config.widths, config.blocks)
        self.trunk = FeatureTrunk(config, config.widths[-1], normalised=True)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @staticmethod
    def centres(height: int, width: int) -> tuple[range, range]:
        """The pixels, down and across, on which the rows and columns of places are centred.

        Strided convolutions with a padding of one centre place i on pixel i · 8: half a stride
        before the middle of the i-th of equal stretches.
        """
        return range(0, height, PixelMaps.SHRINKS), range(0, width, PixelMaps.SHRINKS)

    def forward(self, pictures: Tensor) -> Knowledge:
        knowledge: Knowledge = self.trunk(self.features(pictures))
        return knowledge


TRUNKS: dict[str, type[FeatureTrunk] | type[PixelTrunk]] = {
    "features": FeatureTrunk,
    "pixels": PixelTrunk,
}


def _normalised(inputs: int, outputs: int, stride: int = 1, scale: float = 1) -> nn.Sequential:
    """A convolution and batch normalisation, which starts at that scale."""
    # Without a bias: the normalisation would take it away again.
    convolution = _convolution(inputs, outputs, stride=stride, bias=False)
    norm = BatchNorm2d(outputs)
    nn.init.constant_(norm.weight, scale)
    return nn.Sequential(convolution, norm)


def _convolution(inputs: int, outputs: int, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _coordinates(maps: Tensor) -> Tensor:
    """Where each place lies, from −1 to 1: (N, 2, H, W)."""
    n, _, height, width = maps.shape
    y = torch.linspace(-1, 1, height, device=maps.device, dtype=maps.dtype)
    x = torch.linspace(-1, 1, width, device=maps.device, dtype=maps.dtype)
    return torch.stack(torch.meshgrid(y, x, indexing="ij")).expand(n, 2, height, width)
