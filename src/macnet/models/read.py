"""The read unit (Section 2.2.2): what a step retrieves from the knowledge base."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from macnet.models import units
from macnet.models.config import MACConfig
from macnet.models.encoders import KnowledgeBase
from macnet.models.kernels.deferred_grad import DeferredGradAttention, DeferredGradLinear
from macnet.models.layers import Linear, score_layer
from macnet.models.reference import ReferenceRead


class ReadUnit(nn.Module):
    """Retrieve r_i from the knowledge base, guided by control and memory (eqs. r1–r3.3).

    The equations are linear in k up to the softmax. So with w the weights of r3.1 and u = w ⊙ c_i,
    the logit of an element is uᵀW_r2 [I, k], that is, with [a, b] = uᵀW_r2, an inner product v·k:

        v = W_kᵀ((W_m m_{i-1} + b_m) ⊙ a) + b

    plus what is the same for all elements, which a softmax does not see. The biases of r1's second
    factor, of r2 and of r3.1 are in that part only, and therefore left out. A step costs O(d² + Ld)
    a question instead of O(Ld²), and keeps nothing of size L×d for the backward pass.
    """

    def __init__(self, config: MACConfig) -> None:
        super().__init__()
        d = config.d
        self.memory = Linear(d, d)
        self.knowledge = Linear(d, d, bias=False)
        self.direct = config.direct_knowledge
        self.combine = Linear(2 * d if self.direct else d, d, bias=False)
        self.score = score_layer(d)  # the paper has d×d, but a softmax takes one number an element

    def literal(self, m_prev: Tensor, c: Tensor, knowledge: KnowledgeBase) -> tuple[Tensor, Tensor]:
        k, is_pad = knowledge  # (B, L, d), (B, L); m_prev, c: (B, d)
        interaction = self.memory(m_prev)[:, None] * self.knowledge(k)  # (r1) (B, L, d)
        if self.direct:
            interaction = torch.cat([interaction, k], -1)
        combined = self.combine(interaction)  # (r2) (B, L, d)
        ra = self.score(c[:, None] * combined).squeeze(-1)  # (r3.1) (B, L)
        if is_pad is not None:
            ra = ra.masked_fill(is_pad, -torch.inf)
        rv = ra.softmax(-1)  # (r3.2) (B, L)
        return torch.einsum("bl,bld->bd", rv, k), rv  # (r3.3) (B, d)

    def prepare(self, knowledge: KnowledgeBase, c: Tensor) -> units.ReadStep:
        # c: (steps, B, d)
        weight = self.score.weight[0][:, None] * self.combine.weight  # diag(w) W_r2
        of_interaction, *of_element = weight.split(c.shape[-1], 1)
        a = (c @ of_interaction).unbind()  # p × (B, d)
        b = (c @ of_element[0]).unbind() if self.direct else [None] * len(a)
        memory = DeferredGradLinear(self.memory.weight, self.memory.bias)
        to_elements = DeferredGradLinear(self.knowledge.weight.t())
        attend = DeferredGradAttention(knowledge.elements, knowledge.is_pad)
        return lambda i, m_prev: attend(to_elements(memory(m_prev) * a[i], b[i]))


READS: dict[str, type[units.Read]] = {"paper": ReadUnit, "reference": ReferenceRead}
