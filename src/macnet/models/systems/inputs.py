"""What the other systems of table 1 have in common: feature maps, and questions as one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.config import WIDTHS
from macnet.models.encoders import PAD, PixelBackbone, embed_tokens, question_lengths
from macnet.models.layers import compute_dtype
from macnet.models.lstm import run_lstm
from macnet.models.norm import BatchNorm2d


class StridedCNN(nn.Sequential):
    """Images (N, H, W, 3) of bytes → maps of a 16th of their size, by four normalised convolutions.

    Relation networks and FiLM were published with such a CNN on pixels from 0 to 1.
    """

    STRIDE = 16

    def __init__(self, width: int, kernel: int) -> None:
        layers: list[nn.Module] = []
        for inputs in (3, width, width, width):
            convolution = nn.Conv2d(inputs, width, kernel, stride=2, padding=1)
            layers += [convolution, BatchNorm2d(width), nn.ReLU()]
        super().__init__(*layers)
        self.width = width
        self.min_size = 16 if kernel == 4 else 1
        """The smallest height and width of which a cell is left."""

    def forward(self, images: Tensor) -> Tensor:
        if images.dtype != torch.uint8:
            raise InputError(f"images are of {images.dtype}; they must be of torch.uint8")
        pixels = images.permute(0, 3, 1, 2).to(compute_dtype(next(self.parameters())))
        maps: Tensor = super().forward(pixels / 255)  # type: ignore[no-untyped-call]
        return maps


class FeatureMaps(nn.Module):
    """Images as feature maps (N, C, H, W): ResNet features as they are, pixels through a CNN.

    From pixels, every system has MAC's residual backbone, which is trained along with the rest, so
    that a comparison is one of reasoning and not of vision. This is our addition, and a system that
    was published with a CNN of its own has another preset with that.
    """

    def __init__(
        self, data_spec: DataSpec, cnn: StridedCNN | None = None, *, coordinates: bool = False
    ) -> None:
        """`cnn`: what pixels pass instead of the backbone, which may get their `coordinates`."""
        super().__init__()
        *_, pixels, channels, height, width = data_spec
        if cnn is not None and not pixels:
            raise InputError(
                "the data are features, but this preset has a CNN on pixels; give images, or take "
                "the preset without -pixels"
            )
        if cnn is not None and min(height, width) < cnn.min_size:
            raise InputError(
                f"images are {height}×{width}; the CNN of this preset needs at least "
                f"{cnn.min_size}×{cnn.min_size}"
            )
        self.shape = (height, width, 3) if pixels else (channels, height, width)
        self.cnn = cnn or (PixelBackbone(coordinates=coordinates) if pixels else None)
        self.channels = cnn.width if cnn else WIDTHS[-1] if pixels else channels
        """C, the number of channels of the maps."""
        self.stride = 1 if self.cnn is None else self.cnn.STRIDE
        """Pixels, or cells of features, to a cell of the maps."""
        self.size = -(-height // self.stride), -(-width // self.stride)
        """H and W, the height and width of the maps."""
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        # images: (N, channels, H, W), or (N, H, W, 3) of bytes
        if images.shape[1:] != self.shape:
            raise InputError(
                f"images are {tuple(images.shape)}; this network was made for (images, "
                f"{', '.join(map(str, self.shape))})"
            )
        return images if self.cnn is None else self.cnn(images)


class LastStateEncoder(nn.Module):
    """Word embeddings → unidirectional LSTM → the top layer's state at the last word."""

    def __init__(self, *, vocabulary: int, embedding: int, units: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=PAD)  # N(0, 1)
        self.lstm = nn.LSTM(embedding, units, layers, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        # tokens: (B, S) → (B, units)
        check_questions(tokens)
        lengths = question_lengths(tokens)
        states = embed_tokens(self.embedding.weight, tokens)  # (B, S, embedding)
        return run_layers(self.lstm, states, lengths)[1]


def run_layers(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The top layer's states (B, S, units) over words (B, S, e), and its last states (B, units)."""
    # Not by torch's layer, which wants its weights in one piece of memory: those of a copy, such as
    # a moving average, are not.
    for weight_x, weight_h, bias_x, bias_h in lstm.all_weights:
        weights = weight_x[None], weight_h[None], (bias_x + bias_h)[None]
        x, last = run_lstm(x, lengths, *weights)
    return x, last


def check_questions(tokens: Tensor) -> None:
    """Raise an InputError unless questions are a table of tokens."""
    if tokens.dim() != 2 or not tokens.numel():
        raise InputError(f"questions are {tuple(tokens.shape)}; they must be (B, words)")
