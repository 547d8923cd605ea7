"""Attention guided by programs: a loss that pulls steps to the objects that a question is about.

"What size is the ball left of the cyan thing?" refers to the cyan thing and to the ball. That some
step attends to each of them, and no step to anything else, is asked of a network beside the right
answer; which step attends to which object is left to it. With A_io the attention of step i to the
cells that show object o, A_i that to the cells of all R referenced objects together, and u_i the
change of the memory that the gate lets through, 1 where there is no gate, the loss of a question is

    −1/R Σ_o log max_i (u_i A_io)  −  1/p Σ_i u_i log A_i

and 0 where it refers to no object. A step that changes nothing may attend to whatever it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from macnet.clevr.scene import MAX_OBJECTS
from macnet.data.batches import Batch, GuidedBatch
from macnet.models.cells import object_cells
from macnet.models.mac import StepTrace
from macnet.models.objectives import LossSums, answer_sums

if TYPE_CHECKING:
    from macnet.models.system import System

FLOOR = 1e-6
"""Added to attention before its logarithm, so that no loss is above 14, and no gradient of a logit
above 1. Clamped attention would have none below the clamp, and never come back."""


def guided_answer_loss(system: System, network: Any, batch: Batch, *, weight: float) -> LossSums:
    """Cross-entropy of the correct answers, with the gradient of the guide's loss added to it.

    The value is that of the answers alone, so that it is compared with that of other runs.
    """
    assert system.trace is not None
    assert isinstance(batch, GuidedBatch)
    logits, steps = system.trace(network, batch.images, batch.questions)
    sums = answer_sums(logits, batch)
    with torch.autocast(logits.device.type, enabled=False):  # it would take logarithms of 8 bits
        guide = weight * guide_loss(steps, batch.objects, batch.references)
    return sums._replace(total=sums.total + (guide - guide.detach()))


def guide_loss(steps: Sequence[StepTrace], objects: Tensor, references: Tensor) -> Tensor:
    """The loss of B questions about N images, summed; nothing of it waits for the device.

    `objects` (N, H, W) and `references` (B,) are those of a `GuidedBatch`.
    """
    attention = torch.stack([step.knowledge for step in steps], 1)  # (B, p, L)
    attention = attention.to(torch.promote_types(attention.dtype, torch.float32))
    attention = attention.unflatten(0, (len(objects), -1))  # (N, G, p, L)
    always = attention.new_ones(len(references))  # without a gate
    changes = [always if (u := step.change) is None else u.to(attention) for step in steps]
    change = torch.stack(changes, 1).view(attention.shape[:3])  # (N, G, p)

    shows = object_cells(objects)  # (N, 10, L)
    bits = torch.arange(MAX_OBJECTS, device=references.device)
    refers = (references[:, None] >> bits & 1).bool().view(*change.shape[:2], -1)  # (N, G, 10)
    refers = refers & shows.any(2)[:, None]  # what no cell shows cannot be attended to
    shows = shows.to(attention)
    on_each = torch.einsum("ngpl,nol->ngpo", attention, shows)
    referenced = torch.einsum("ngo,nol->ngl", refers.to(attention), shows) > 0  # (N, G, L)
    on_all = torch.einsum("ngpl,ngl->ngp", attention, referenced.to(attention))

    missed = -_log((change[..., None] * on_each).amax(2))  # (N, G, 10)
    missed = (missed * refers).sum(2) / refers.sum(2).clamp(min=1)
    strayed = (change * -_log(on_all)).mean(2) * refers.any(2)
    return (missed + strayed).sum()


def _log(share: Tensor) -> Tensor:
    return (share + FLOOR).log()
