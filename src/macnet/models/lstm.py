"""A bidirectional LSTM over the words of questions of different lengths.

`nn.LSTM` reads a padded question backwards from its padding, unless the questions are packed; and
packing waits for the lengths on the host, which a CUDA graph cannot. Here each question is read
backwards from its own last word, without waiting.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from macnet.models.layers import can_use_triton, compute_dtype


class BiLSTM(nn.Module):
    """Read each question forwards and backwards; gates are in the order i, f, g, o.

    On CUDA, Triton kernels compute it in bfloat16 and float16; all else is torch's own LSTM.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        # The first index is the direction: 0 reads forwards, 1 backwards.
        self.weight_x = nn.Parameter(torch.empty(2, 4 * units, inputs))
        self.weight_h = nn.Parameter(torch.empty(2, 4 * units, units))
        self.bias = nn.Parameter(torch.zeros(2, 4 * units))
        # Initialised as TensorFlow's BasicLSTMCell, which the authors use. It has one kernel,
        # [x, h] → 4u, so both parts of it get the Glorot bound of the whole.
        bound = math.sqrt(6 / (inputs + units + 4 * units))
        nn.init.uniform_(self.weight_x, -bound, bound)
        nn.init.uniform_(self.weight_h, -bound, bound)
        # It adds 1 to the forget gate, so that a new cell remembers; here the bias starts there.
        nn.init.ones_(self.bias[:, units : 2 * units])

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        # x: (B, S, e)   lengths: (B) int64, each from 1 to S, on x's device
        # -> states (B, S, 2u): [forwards, backwards] at each word, zero at padding
        # -> last (B, 2u): [forwards at the last word, backwards at the first word]
        weights = self.weight_x, self.weight_h, self.bias
        dtype = compute_dtype(x)
        tiles = self.weight_h.shape[-1] % 16 == 0  # tensor cores multiply in tiles of 16
        if tiles and can_use_triton(x.device, dtype):
            from macnet.models.kernels.lstm import bilstm

            return bilstm(x, lengths, *weights, dtype)
        return torch_bilstm(x, lengths, *weights)


def torch_bilstm(
    x: Tensor, lengths: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """The states and last states of `BiLSTM` by torch's own LSTM, once per direction."""
    # x: (B, S, e)   lengths: (B)   weight_x: (2, 4u, e)   weight_h: (2, 4u, u)   bias: (2, 4u)
    position = torch.arange(x.shape[1], device=x.device)
    is_pad = position >= lengths[:, None]  # (B, S)
    # Each question's words in reverse, its padding still behind them; twice is no change.
    turned = torch.where(is_pad, position, lengths[:, None] - 1 - position)[..., None]  # (B, S, 1)

    x = x.masked_fill(is_pad[..., None], 0)  # a gradient of 0 times NaN would be NaN
    forwards = run_direction(x, weight_x[0], weight_h[0], bias[0])
    backwards = run_direction(x.take_along_dim(turned, dim=1), weight_x[1], weight_h[1], bias[1])
    backwards = backwards.take_along_dim(turned, dim=1)

    states = torch.cat([forwards, backwards], dim=-1).masked_fill(is_pad[..., None], 0)
    final = forwards.take_along_dim(lengths[:, None, None] - 1, dim=1).squeeze(1)  # (B, u)
    return states, torch.cat([final, backwards[:, 0]], dim=-1)


def run_direction(x: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor) -> Tensor:
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
