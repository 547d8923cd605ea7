"""Soft attention of G queries over each of N sets of L elements, forwards and backwards.

Keys and values are the same elements, as in the control unit (words) and in the folded read unit
(the knowledge base). On a GPU both directions are one Triton kernel each; elsewhere plain products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from macnet.models.layers import can_use_triton

MAX_ELEMENTS = 1024  # what one block of the kernel holds


def attend(z: Tensor, elements: Tensor, is_pad: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries z (N·G, d), elements (N, L, d) → sums (N·G, d), weights (N·G, L)."""
    n, size, _ = elements.shape
    if _has_kernel(elements):
        from macnet.models.kernels.attention import attention

        return attention(z, elements, is_pad)
    logits = z.view(n, -1, z.shape[-1]) @ elements.transpose(1, 2)  # (N, G, L)
    if is_pad is not None:
        logits = logits.masked_fill(is_pad[:, None], -torch.inf)
    weights = logits.softmax(-1)
    return (weights @ elements).view_as(z), weights.view(-1, size)


def attend_backward(
    dsums: Tensor,
    weights: Tensor,
    elements: Tensor,
    is_pad: Tensor | None,
    dweights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of the sums (N·G, d) → of the queries (N·G, d) and of the logits (N·G, L).

    What a gradient of the weights (N·G, L) adds to them, if there is one, is computed apart, as the
    kernel knows of none: both gradients are linear in those of sums and weights.
    """
    n, size, d = elements.shape
    if _has_kernel(elements):
        from macnet.models.kernels.attention import attention

        dz, dlogits = attention(dsums, elements, is_pad, weights)
    else:
        of_sums = dsums.reshape(n, -1, d) @ elements.transpose(1, 2)  # (N, G, L)
        dlogits = _softmax_backward(of_sums.view(-1, size), weights)
        dz = (dlogits.view(n, -1, size) @ elements).view(-1, d)
    if dweights is not None:
        precise = torch.promote_types(weights.dtype, torch.float32)
        added = _softmax_backward(dweights.to(precise), weights.to(precise)).to(weights.dtype)
        dlogits = dlogits + added
        dz = dz + (added.view(n, -1, size) @ elements).view(-1, d)
    return dz, dlogits


def _softmax_backward(dweights: Tensor, weights: Tensor) -> Tensor:
    """The gradient of a softmax's logits."""
    return weights * (dweights - (weights * dweights).sum(-1, keepdim=True))


def _has_kernel(elements: Tensor) -> bool:
    return elements.shape[1] <= MAX_ELEMENTS and can_use_triton(elements.device, elements.dtype)
