"""The input unit (Section 2.1): encoders of questions and of images."""

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
from macnet.models.kernels.deferred_grad import linear_with_fast_bias_grad
from macnet.models.layers import Linear, apply_mask, compute_dtype, variational_dropout_mask
from macnet.models.lstm import BiLSTM
from macnet.models.norm import BatchNorm2d

PAD = 0
"""The token that fills up short questions."""
SMALL_VOCABULARY = 512
"""The largest vocabulary whose embedding gradient is computed by a product on a GPU."""


class EncodedQuestion(NamedTuple):
    """B questions, padded to S words."""

    q: Tensor  # (B, 2d) or (B, d): the question as a whole
    words: Tensor  # (B, S, d): each word in its context
    is_pad: Tensor  # (B, S)


class KnowledgeBase(NamedTuple):
    """N knowledge bases of 1 to L elements; those of an image are the cells of its grid."""

    elements: Tensor  # K: (N, L, d)
    is_pad: Tensor | None = None  # (N, L), where the bases differ in size


def question_size(config: MACConfig) -> int:
    """The dimension of the question vector q."""
    return 2 * config.d if config.lstm == "d" else config.d


class QuestionEncoder(nn.Module):
    """Words → embeddings → biLSTM → contextual words cw_s and question vector q."""

    def __init__(self, config: MACConfig, *, vocabulary: int) -> None:
        super().__init__()
        self.dropout = config.dropout
        self.embedding = nn.Embedding(vocabulary, config.embedding, padding_idx=PAD)
        nn.init.uniform_(self.embedding.weight, config.embedding_low, 1)
        nn.init.zeros_(self.embedding.weight[PAD])
        q = question_size(config)
        self.lstm = BiLSTM(config.embedding, q // 2)
        self.over_vectors = config.attend == "word vectors"
        width = config.embedding if self.over_vectors else q
        # Words must have d numbers to meet a control; where nothing attends to them, they need not.
        fits = width == config.d or config.attend == "nothing"
        self.project = None if fits else Linear(width, config.d)

    def forward(self, tokens: Tensor) -> EncodedQuestion:
        # tokens: (B, S), whole numbers
        lengths = question_lengths(tokens)
        is_pad = torch.arange(tokens.shape[1], device=tokens.device) >= lengths[:, None]
        vectors = embed_tokens(self.embedding.weight, tokens)  # (B, S, embedding)
        if self.dropout.variational_words:
            mask = variational_dropout_mask(vectors[:, :1], self.dropout.words, self.training)
            vectors = apply_mask(vectors, mask)
        else:
            vectors = F.dropout(vectors, self.dropout.words, self.training)
        states, q = self.lstm(vectors, lengths)  # (B, S, 2u), (B, 2u): [forwards, backwards]
        q = F.dropout(q, self.dropout.question, self.training)
        words = vectors if self.over_vectors else states
        if self.project is not None:
            words = linear_with_fast_bias_grad(self.project, words)
        return EncodedQuestion(q, words, is_pad)


def question_lengths(tokens: Tensor) -> Tensor:
    """The lengths (B) of questions (B, S): up to the last word, and 1 where there is none."""
    position = torch.arange(tokens.shape[1], device=tokens.device)
    return ((tokens != PAD) * (position + 1)).amax(1).clamp(min=1)


def embed_tokens(table: Tensor, tokens: Tensor) -> Tensor:
    """Each token's row of the table (B, S, embedding); PAD's row gets no gradient."""
    table = table.to(compute_dtype(table))
    if len(table) > SMALL_VOCABULARY or not table.is_cuda:
        return F.embedding(tokens, table, padding_idx=PAD)
    vectors: Tensor = _SmallEmbedding.apply(table, tokens)  # type: ignore[no-untyped-call]
    return vectors


class _SmallEmbedding(Function):
    """Torch's gradient is a sort and a scatter; with few words a product is faster on a GPU."""

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


class FeatureEncoder(nn.Module):
    """Feature maps (N, channels, H, W) → K (N, H·W, d), through two 3×3 convolutions.

    The paper's features come from a pretrained ResNet. Behind a backbone that is trained along with
    the rest, whose `channels` are given, the convolutions are normalized.
    """

    def __init__(self, config: MACConfig, channels: int | None = None) -> None:
        super().__init__()
        self.channels = channels or config.channels
        self.rate = config.dropout.image
        conv, d = _conv if channels is None else _normalized_conv, config.d
        self.first = conv(self.channels, d, coordinates=config.coordinates)
        self.second = conv(d, d)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, maps: Tensor) -> KnowledgeBase:
        if maps.dim() != 4 or maps.shape[1] != self.channels:
            raise InputError(
                f"features are {tuple(maps.shape)}; they must be (images, {self.channels}, height, "
                "width), or set channels"
            )
        # Channels last is how tensor cores read an image, and makes K below a view.
        dtype = compute_dtype(next(self.parameters()))
        maps = maps.to(dtype, memory_format=torch.channels_last)
        for convolution in (self.first, self.second):
            maps = F.elu(convolution(F.dropout(maps, self.rate, self.training)))
        return KnowledgeBase(maps.flatten(2).transpose(1, 2))  # (N, d, H, W) → (N, L, d)


class ResidualBlock(nn.Module):
    """ReLU(x + f(x)), where f is two convolutions (N, C, H, W), and zero at initialisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _normalized_conv(width, width)
        self.second = _normalized_conv(width, width, scale=0)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))


class PixelBackbone(nn.Sequential):
    """Images (N, H, W, 3) of bytes → feature maps (N, C, H/8, W/8).

    Each width halves the image, and has its residual blocks. All is trained along with the rest.
    With `coordinates`, a pixel is also where it is, not only its color.
    """

    STRIDE = 2 ** len(WIDTHS)

    def __init__(
        self,
        widths: Sequence[int] = WIDTHS,
        blocks: Sequence[int] = BLOCKS,
        coordinates: bool = False,
    ) -> None:
        layers: list[nn.Module] = []
        channels = (3 + 2 * coordinates, *widths[:-1])
        for inputs, outputs, count in zip(channels, widths, blocks, strict=True):
            layers += [_normalized_conv(inputs, outputs, stride=2), nn.ReLU()]
            layers += [ResidualBlock(outputs) for _ in range(count)]
        super().__init__(*layers)
        self.coordinates = coordinates

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[3] != 3 or images.dtype != torch.uint8:
            raise InputError(
                f"images are {tuple(images.shape)} of {images.dtype}; they must be "
                "(images, height, width, 3) of torch.uint8"
            )
        pixels = images.permute(0, 3, 1, 2).to(compute_dtype(next(self.parameters()))) / 127.5 - 1
        if self.coordinates:
            pixels = torch.cat([pixels, coordinates(pixels)], 1)
        maps: Tensor = super().forward(pixels)  # type: ignore[no-untyped-call]
        return maps


class PixelEncoder(nn.Module):
    """Images (N, H, W, 3) of bytes → K (N, H/8·W/8, d), trained along with the rest."""

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        self.features = PixelBackbone(config.widths, config.blocks)
        self.trunk = FeatureEncoder(config, config.widths[-1])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @staticmethod
    def cell_centers(height: int, width: int) -> tuple[range, range]:
        """The pixels, down and across, on which the rows and columns of K's grid are centred.

        Strided convolutions with a padding of one centre row i on pixel i · 8: half a stride
        before the middle of the i-th of equal parts of the image.
        """
        return range(0, height, PixelBackbone.STRIDE), range(0, width, PixelBackbone.STRIDE)

    def forward(self, images: Tensor) -> KnowledgeBase:
        knowledge: KnowledgeBase = self.trunk(self.features(images))
        return knowledge


class CoordinateConv2d(nn.Conv2d):
    """A convolution of feature maps and, as two more channels, of the y and x of each cell.

    These are the same in all images, so that their part is computed once, and added. Together, the
    channels would not be a multiple of 8, for which a GPU has much slower convolutions.
    """

    def forward(self, maps: Tensor) -> Tensor:
        # maps: (N, C, H, W), where the weight is (outputs, C + 2, 3, 3)
        of_maps, of_coordinates = self.weight.split((maps.shape[1], 2), 1)
        there = F.conv2d(coordinates(maps[:1]), of_coordinates, self.bias, padding=1)
        # Repeated by a product, for its gradient is one then, and not a slow sum over the images.
        everywhere = maps.new_ones(len(maps), 1) @ there.permute(0, 2, 3, 1).flatten(1).to(maps)
        there = everywhere.view(-1, *there.permute(0, 2, 3, 1).shape[1:]).permute(0, 3, 1, 2)
        return F.conv2d(maps, of_maps, padding=1) + there


def _normalized_conv(
    inputs: int, outputs: int, stride: int = 1, scale: float = 1, coordinates: bool = False
) -> nn.Sequential:
    """A convolution and batch normalisation, whose scale starts at `scale`."""
    # Without a bias: the normalisation would take it away again.
    convolution = _conv(inputs, outputs, stride, bias=False, coordinates=coordinates)
    norm = BatchNorm2d(outputs)
    nn.init.constant_(norm.weight, scale)
    return nn.Sequential(convolution, norm)


def _conv(
    inputs: int, outputs: int, stride: int = 1, bias: bool = True, coordinates: bool = False
) -> nn.Conv2d:
    kind = CoordinateConv2d if coordinates else nn.Conv2d
    layer = kind(inputs + 2 * coordinates, outputs, 3, stride, padding=1, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def coordinates(maps: Tensor) -> Tensor:
    """The y and x of each cell of maps (N, C, H, W), from −1 to 1: (N, 2, H, W)."""
    sides = (torch.linspace(-1, 1, n, device=maps.device, dtype=maps.dtype) for n in maps.shape[2:])
    return torch.stack(torch.meshgrid(*sides, indexing="ij")).expand(len(maps), -1, -1, -1)
