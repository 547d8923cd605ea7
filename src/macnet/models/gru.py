"""A GRU over the words of questions of different lengths, of which only the last state counts.

Gates are torch's, in the order r, z, n:

    r = σ(W_r x + V_r h)     z = σ(W_z x + V_z h)     n = tanh(W_n x + r ⊙ (V_n h))
    h ← (1 − z) ⊙ n + z ⊙ h

with a bias on each product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from macnet.models.layers import can_use_triton, compute_dtype, has_large_shared_memory
from macnet.models.lstm import run_layer


def gru_last_state(
    x: Tensor, lengths: Tensor, weight_x: Tensor, weight_h: Tensor, bias_x: Tensor, bias_h: Tensor
) -> Tensor:
    """The state at the last word of each question: (B, S, e) → (B, u)."""
    # lengths: (B) from 1 to S   weight_x: (3u, e)   weight_h: (3u, u)   biases: (3u)
    dtype = compute_dtype(x)
    weights = weight_x, weight_h, bias_x, bias_h
    tiles = weight_h.shape[-1] % 256 == 0  # what a program of the kernels computes
    if tiles and can_use_triton(x.device, dtype) and has_large_shared_memory(x.device):
        from macnet.models.kernels.gru import gru

        return gru(x, lengths, *weights, dtype)
    # Autocast would have cuDNN take float16, in which small gradients vanish.
    with torch.autocast(x.device.type, enabled=False):
        return torch_gru(x.to(weight_x.dtype), lengths, *weights).to(dtype)


def torch_gru(
    x: Tensor, lengths: Tensor, weight_x: Tensor, weight_h: Tensor, bias_x: Tensor, bias_h: Tensor
) -> Tensor:
    """The same by torch's own GRU."""
    start = x.new_zeros(1, x.shape[0], weight_h.shape[-1])
    states, _ = run_layer(torch.gru, x, start, [weight_x, weight_h, bias_x, bias_h])
    # Padding comes after the last word, and so changes nothing before it.
    return states.take_along_dim(lengths[:, None, None] - 1, dim=1).squeeze(1)
