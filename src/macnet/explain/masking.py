"""Right for the right reason: does an answer depend on the objects that the network points at?

    test = MaskingTest(trace)
    collect_attention([trace], …, on_batch=test.add)
    print(test.result().accuracy)

One question about each image is asked three times: as it is, without the objects that some active
step points at, and without as many others. Objects are painted over in the color of the ground, up
to the bounding box around them, so that no silhouette is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from macnet.clevr.scene import MAX_OBJECTS
from macnet.evaluation.accuracy import Proportion, to_json
from macnet.explain.pointing import TracedBatch
from macnet.explain.tracing import Tracer

PAINTED_OUT = NOTHING, POINTED_AT, OTHERS = "nothing", "objects pointed at", "as many others"
SEED = 0  # of the choice of other objects
MARGIN = 1  # pixels around an object, which its edge has tinged: they would tell its color


@dataclass(frozen=True)
class Masking:
    """The answers to the same questions with and without some objects, by `PAINTED_OUT`."""

    accuracy: Mapping[str, Proportion]
    """The proportion of answers that are the correct ones of the whole image."""
    area: Mapping[str, float]
    """The mean share of pixels that are painted over; NaN if there are no questions."""

    def to_record(self) -> dict[str, Any]:
        """The numbers for JSON."""
        return dict(to_json(vars(self)))


class MaskingTest:
    """Asks a network again without some objects, batch after batch of what it was asked before.

    Of each image it takes the first question in which an active step points at an object, and at
    least as many objects that can be seen are not pointed at.
    """

    def __init__(self, trace: Tracer) -> None:
        self._trace, self._questions = trace, 0
        self._correct = dict.fromkeys(PAINTED_OUT, 0)
        self._area = dict.fromkeys(PAINTED_OUT, 0.0)

    @torch.inference_mode()
    def add(self, batch: TracedBatch) -> None:
        """Ask about the images of a batch, all at once."""
        cells, record = batch.cells.cpu().numpy(), batch.readings.shown_or_plain
        pointed_at = record.hits(cells, batch.images).max(1)  # (Q, 10)
        others = cells.max(2)[batch.images] & ~pointed_at
        counts: np.ndarray = pointed_at.sum(1)
        fitting = np.flatnonzero((counts > 0) & (others.sum(1) >= counts))
        images, first = np.unique(batch.images[fitting], return_index=True)
        chosen = fitting[first]
        some = np.zeros((len(chosen), MAX_OBJECTS), bool)
        for row, image, q in zip(some, images, chosen, strict=True):
            rng = np.random.default_rng([SEED, batch.first_image + image])
            row[rng.choice(np.flatnonzero(others[q]), counts[q], replace=False)] = True
        self._questions += len(chosen)
        self._correct[NOTHING] += int((record.answers == batch.answers)[chosen].sum())
        if not len(chosen):
            return
        device = batch.questions.device
        at, asked = (torch.from_numpy(index).to(device) for index in (images, chosen))
        pixels, objects = batch.block.images[at], batch.block.objects[at]
        for name, unwanted in ((POINTED_AT, pointed_at[chosen]), (OTHERS, some)):
            without, painted = paint_out(pixels, objects, torch.from_numpy(unwanted).to(device))
            logits, _ = self._trace(without, batch.questions[asked])
            correct = logits.argmax(1).cpu().numpy() == batch.answers[chosen]
            self._correct[name] += int(correct.sum())
            self._area[name] += painted.float().mean((1, 2)).sum().item()

    def result(self) -> Masking:
        """The answers to all questions so far."""
        n = self._questions
        return Masking(
            accuracy={name: Proportion(correct, n) for name, correct in self._correct.items()},
            area={name: area / n if n else np.nan for name, area in self._area.items()},
        )


def paint_out(images: Tensor, objects: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Images (N, H, W, 3) without some objects, and which pixels (N, H, W) were painted over.

    `objects` (N, H, W) has the object at each pixel, -1 for the ground; `chosen` is (N, 10). In the
    bounding box of a chosen object, `MARGIN` included, its pixels and those of the ground take on
    the mean color of all the ground. Other objects remain.
    """
    ground = objects == -1
    color = (images * ground[..., None]).sum((1, 2)) / ground.sum((1, 2)).clamp(min=1)[:, None]
    shown = objects[:, None] == torch.arange(MAX_OBJECTS, device=objects.device)[:, None, None]
    box = _span(shown.any(3))[..., None] & _span(shown.any(2))[..., None, :]  # (N, 10, H, W)
    painted = (box & (shown | ground[:, None]) & chosen[..., None, None]).any(1)
    mean = color.round().to(images.dtype)[:, None, None]
    return torch.where(painted[..., None], mean, images), painted


def _span(on: Tensor) -> Tensor:
    """(N, 10, n) bool: from the first place that is on to the last, and `MARGIN` on both sides."""
    on = max_pool1d(on.float(), 2 * MARGIN + 1, stride=1, padding=MARGIN) > 0
    return (on.cumsum(-1) > 0) & (on.flip(-1).cumsum(-1).flip(-1) > 0)
