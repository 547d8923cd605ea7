"""The attention logits of the reference's read unit, from memory, control and elements.

For each of G questions to each of N images with L elements, two layers turn three d-vectors into
one number. Nothing else in the network is as large: N·G·L vectors at every step. On a GPU the two
products are cuBLAS's, and all that lies before, between and after them is one Triton kernel each,
forwards and backwards; elsewhere it is plain torch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from macnet.models.layers import can_use_triton


def interaction_logits(
    m: Tensor, c: Tensor | None, k: Tensor, direct: Tensor, *weights: Tensor, rate: float
) -> Tensor:
    """score · dropout(ELU(c ⊙ (combine · ELU(hidden · (m ⊙ k) + direct) + bias))): (N, G, L).

    Without a control c, as in one row of table 2, there is no outer ELU, and no kernel.
    """
    # m, c: (N, G, d)   k, direct: (N, L, d)
    hidden, combine, bias, score = weights  # (d, d), (d, d), (d), (d)
    fits = can_use_triton(k.device, k.dtype) and k.shape[-1] in (128, 256, 512, 1024)
    if fits and c is not None:
        from macnet.models.kernels.interaction import InteractionLogits

        with torch.cuda.device_of(k):
            logits: Tensor = InteractionLogits.apply(  # type: ignore[no-untyped-call]
                m, c, k, direct, hidden, combine, bias, score, rate
            )
        return logits
    x = F.elu(F.linear(m[:, :, None] * k[:, None], hidden) + direct[:, None])  # (N, G, L, d)
    x = F.linear(x, combine, bias)
    if c is not None:
        x = F.elu(c[:, :, None] * x)
    return F.dropout(x, rate) @ score
