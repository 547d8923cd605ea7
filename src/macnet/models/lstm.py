"""A bidirectional LSTM over the words of questions of different lengths.

`nn.LSTM` reads a padded question backwards from its padding, unless the questions are packed; and
packing waits for the lengths on the host, which a CUDA graph cannot. Here each question is read
from its own last word, and the host never looks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from macnet.models.layers import takes_kernels, working_dtype


class BiLSTM(nn.Module):
    """Read each question forwards and backwards; gates are in the order i, f, g, o.

    There are two forms of the same equations, and the code chooses: Triton kernels for bfloat16
    and float16 on CUDA, torch's own LSTM for everything else.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        # The first index is the direction: 0 reads forwards, 1 backwards.
        self.weight_x = nn.Parameter(torch.empty(2, 4 * units, inputs))
        self.weight_h = nn.Parameter(torch.empty(2, 4 * units, units))
        self.bias = nn.Parameter(torch.empty(2, 4 * units))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the authors' cell does, TensorFlow's BasicLSTMCell."""
        inputs, units = self.weight_x.shape[-1], self.weight_h.shape[-1]
        # It has one kernel, [x, h] → 4u, so both parts of it get the Glorot bound of the whole.
        bound = math.sqrt(6 / (inputs + units + 4 * units))
        nn.init.uniform_(self.weight_x, -bound, bound)
        nn.init.uniform_(self.weight_h, -bound, bound)
        # It adds 1 to the forget gate, so that a new cell remembers; here the bias starts there.
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.bias[:, units : 2 * units] = 1

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        # x: (B, S, e)   lengths: (B) int64, each from 1 to S, on x's device
        # -> states (B, S, 2u): [forwards, backwards] at each word, zero at padding
        # -> last (B, 2u): [forwards at the last word, backwards at the first word]
        weights = self.weight_x, self.weight_h, self.bias
        dtype = working_dtype(x)
        tiles = self.weight_h.shape[-1] % 16 == 0  # tensor cores multiply in tiles of 16
        if tiles and takes_kernels(x.device, dtype):
            from macnet.models.lstm_kernel import bilstm

            return bilstm(x, lengths, *weights, dtype)
        return plain(x, lengths, *weights)


def plain(
    x: Tensor, lengths: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """The LSTM of torch, once per direction."""
    # x: (B, S, e)   lengths: (B)   weight_x: (2, 4u, e)   weight_h: (2, 4u, u)   bias: (2, 4u)
    position = torch.arange(x.shape[1], device=x.device)
    is_pad = position >= lengths[:, None]  # (B, S)
    # Each question's words in reverse, its padding still behind them; twice is no change.
    turned = torch.where(is_pad, position, lengths[:, None] - 1 - position)[..., None]  # (B, S, 1)

    x = x.masked_fill(is_pad[..., None], 0)  # a gradient of 0 times NaN would be NaN
    forwards = read(x, weight_x[0], weight_h[0], bias[0])
    backwards = read(x.take_along_dim(turned, dim=1), weight_x[1], weight_h[1], bias[1])
    backwards = backwards.take_along_dim(turned, dim=1)

    states = torch.cat([forwards, backwards], dim=-1).masked_fill(is_pad[..., None], 0)
    final = forwards.take_along_dim(lengths[:, None, None] - 1, dim=1).squeeze(1)  # (B, u)
    return states, torch.cat([final, backwards[:, 0]], dim=-1)


def read(x: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor) -> Tensor:
    """One direction's states, word after word from zero: (B, S, e) -> (B, S, u)."""
    # torch has two biases, which are only ever added.
    weights = [weight_x, weight_h, bias, torch.zeros_like(bias)]
    # cuDNN wants them in one piece of memory, and warns at each call if they are not.
    pieces = torch.cat([w.flatten() for w in weights]).split([w.numel() for w in weights])
    weights = [piece.view_as(w) for piece, w in zip(pieces, weights, strict=True)]
    start = x.new_zeros(1, x.shape[0], weight_h.shape[-1])
    states, _, _ = torch.lstm(
        x,
        (start, start),
        weights,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=torch.is_grad_enabled(),
        bidirectional=False,
        batch_first=True,
    )
    return states
