"""LSTMs over the words of questions of different lengths, in one direction or in both.

`nn.LSTM` reads a padded question backwards from its padding, unless the questions are packed; and
packing waits for the lengths on the host, which a CUDA graph cannot. Here each question is read
backwards from its own last word, without waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from macnet.models.layers import can_use_triton, compute_dtype

SATURATION = 1e4
"""An input at which a sigmoid is exactly 0 or 1, with a gradient of 0, in every precision."""


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
        initialize_lstm(self.weight_x, self.weight_h, self.bias)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        # x: (B, S, e)   lengths: (B) int64, each from 1 to S, on x's device
        # -> states (B, S, 2u): [forwards, backwards] at each word, zero at padding
        # -> last (B, 2u): [forwards at the last word, backwards at the first word]
        return run_lstm(x, lengths, self.weight_x, self.weight_h, self.bias)


def initialize_lstm(weight_x: Tensor, weight_h: Tensor, bias: Tensor) -> None:
    """Initialise (…, 4u, e), (…, 4u, u) and zeros (…, 4u) as TensorFlow's BasicLSTMCell.

    The authors of MAC and of N2NMN use it.
    """
    inputs, units = weight_x.shape[-1], weight_h.shape[-1]
    # It has one kernel, [x, h] → 4u, so both parts of it get the Glorot bound of the whole.
    bound = math.sqrt(6 / (inputs + units + 4 * units))
    nn.init.uniform_(weight_x, -bound, bound)
    nn.init.uniform_(weight_h, -bound, bound)
    # It adds 1 to the forget gate, so that a new cell remembers; here the bias starts there.
    nn.init.ones_(bias[..., units : 2 * units])


def run_lstm(
    x: Tensor, lengths: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """The states (B, S, D·u) and last states (B, D·u) of an LSTM of D directions, 1 or 2."""
    # x: (B, S, e)   lengths: (B)   weight_x: (D, 4u, e)   weight_h: (D, 4u, u)   bias: (D, 4u)
    states, last, _ = _run(x, lengths, weight_x, weight_h, bias, None, keeps_cells=False)
    return states, last


def run_lstm_with_cells(
    x: Tensor,
    lengths: Tensor,
    weight_x: Tensor,
    weight_h: Tensor,
    bias: Tensor,
    *,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and the last cells (B, D·u).

    In one direction it may start from a state and a cell (B, u); otherwise they are zero. Cells are
    not rounded to the precision of products: under autocast, as for weights of float32, they are
    float32.
    """
    return _run(x, lengths, weight_x, weight_h, bias, start, keeps_cells=True)


def _run(
    x: Tensor,
    lengths: Tensor,
    weight_x: Tensor,
    weight_h: Tensor,
    bias: Tensor,
    start: tuple[Tensor, Tensor] | None,
    *,
    keeps_cells: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = compute_dtype(x)
    tiles = weight_h.shape[-1] % 16 == 0  # tensor cores multiply in tiles of 16
    if tiles and can_use_triton(x.device, dtype):
        from macnet.models.kernels.lstm import lstm

        return lstm(x, lengths, weight_x, weight_h, bias, dtype, start)
    # Autocast would have cuDNN take float16, in which small gradients vanish.
    with torch.autocast(x.device.type, enabled=False):
        x, weights = x.to(weight_x.dtype), (weight_x, weight_h, bias)
        states, last, cells = torch_lstm(x, lengths, *weights, start=start, keeps_cells=keeps_cells)
    return states.to(dtype), last.to(dtype), cells


def torch_lstm(
    x: Tensor,
    lengths: Tensor,
    weight_x: Tensor,
    weight_h: Tensor,
    bias: Tensor,
    *,
    start: tuple[Tensor, Tensor] | None = None,
    keeps_cells: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by torch's own LSTM, once per direction.

    Unless `keeps_cells`, the cells are those after the padding, which are of no use.
    """
    position = torch.arange(x.shape[1], device=x.device)
    is_pad = (position >= lengths[:, None])[..., None]  # (B, S, 1)
    x = x.masked_fill(is_pad, 0)  # a gradient of 0 times NaN would be NaN
    if keeps_cells:
        # torch gives only the cell after all S words. One more input, which says that a word is
        # padding, closes the gate i and opens f so far that the cell stays exactly as it was.
        x = torch.cat([x, is_pad.to(x)], -1)
        keep = torch.zeros_like(weight_x[..., :1])  # (D, 4u, 1)
        i, f, _, _ = keep.chunk(4, dim=1)
        i.fill_(-SATURATION)
        f.fill_(SATURATION)
        weight_x = torch.cat([weight_x, keep], -1)
    states, cells = run_direction(x, weight_x[0], weight_h[0], bias[0], start=start)
    last = states.take_along_dim(lengths[:, None, None] - 1, dim=1).squeeze(1)  # (B, u)
    if len(weight_x) == 2:
        turned = reversed_positions(lengths, x.shape[1])[..., None]
        x = x.take_along_dim(turned, dim=1)
        backwards, backward_cells = run_direction(x, weight_x[1], weight_h[1], bias[1])
        backwards = backwards.take_along_dim(turned, dim=1)
        states, last = torch.cat([states, backwards], -1), torch.cat([last, backwards[:, 0]], -1)
        cells = torch.cat([cells, backward_cells], -1)
    return states.masked_fill(is_pad, 0), last, cells


def reversed_positions(lengths: Tensor, steps: int) -> Tensor:
    """Each question's positions in reverse, its padding still behind them; twice is no change."""
    position = torch.arange(steps, device=lengths.device)
    return torch.where(position < lengths[:, None], lengths[:, None] - 1 - position, position)


def run_direction(
    x: Tensor,
    weight_x: Tensor,
    weight_h: Tensor,
    bias: Tensor,
    *,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """One direction's states (B, S, u), word after word, and its last cells (B, u).

    It starts from a state and cell (B, u), or from zero.
    """
    zero = x.new_zeros(x.shape[0], weight_h.shape[-1])
    h, c = start or (zero, zero)
    # torch has two biases, which are only ever added.
    weights = [weight_x, weight_h, bias, torch.zeros_like(bias)]
    before = h[None].to(x), c[None].to(x)
    states, _, cells = run_layer(torch.lstm, x, before, weights)
    return states, cells[0]


def run_layer(
    layer: Callable[..., tuple[Tensor, ...]], x: Tensor, start: Any, weights: list[Tensor]
) -> tuple[Tensor, ...]:
    """What one direction of `torch.lstm` or `torch.gru` gives; the first are states (B, S, u)."""
    if x.is_cuda:  # cuDNN wants them in one piece of memory, and warns at each call otherwise
        pieces = torch.cat([w.flatten() for w in weights]).split([w.numel() for w in weights])
        weights = [piece.view_as(w) for piece, w in zip(pieces, weights, strict=True)]
    return layer(
        x,
        start,
        weights,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=torch.is_grad_enabled(),
        bidirectional=False,
        batch_first=True,
    )
