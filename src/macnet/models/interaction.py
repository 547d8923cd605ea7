"""The heart of the reference's read unit: from memory, control and element to a logit.

For each of G questions to each of N images with L elements, three d-vectors meet, pass two layers,
and become one number. Nothing else in the network is as large: N·G·L vectors at every step. On a
GPU the two products are cuBLAS's, and all that lies before, between and after them is one Triton
kernel each, forwards and backwards; elsewhere it is plain torch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from macnet.models.layers import takes_kernels


def interact(
    m: Tensor,
    c: Tensor | None,
    k: Tensor,
    direct: Tensor,
    hidden: Tensor,
    combine: Tensor,
    bias: Tensor,
    score: Tensor,
    rate: float,
) -> Tensor:
    """score · dropout(ELU(c ⊙ (combine · ELU(hidden · (m ⊙ k) + direct) + bias))): (N, G, L).

    Without a control c, as in one row of table 2, there is no outer ELU, and no kernel.
    """
    # m, c: (N, G, d)   k, direct: (N, L, d)   hidden, combine: (d, d)   bias, score: (d)
    fits = takes_kernels(k.device, k.dtype) and k.shape[-1] in (128, 256, 512, 1024)
    if fits and c is not None:
        from macnet.models.interaction_kernel import Interact

        with torch.cuda.device_of(k):
            logits: Tensor = Interact.apply(  # type: ignore[no-untyped-call]
                m, c, k, direct, hidden, combine, bias, score, rate
            )
        return logits
    x = F.elu(F.linear(m[:, :, None] * k[:, None], hidden) + direct[:, None])  # (N, G, L, d)
    x = F.linear(x, combine, bias)
    if c is not None:
        x = F.elu(c[:, :, None] * x)
    return F.dropout(x, rate) @ score
