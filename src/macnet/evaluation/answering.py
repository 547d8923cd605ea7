"""What a network answers to every question of a set.

    answering = Answering(dataset, device="cuda", precision="bfloat16")
    predictions = answering(system, network)  # as often as one likes

To open it brings the images to the device, which is done once; to ask costs a pass over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from macnet import parallel
from macnet.data.ahead import settled
from macnet.data.batches import Batches
from macnet.data.dataset import Dataset
from macnet.errors import not_finite
from macnet.models.registry import System
from macnet.progress import progress

MOST = 10  # questions asked about an image at once: as many as CLEVR has
AT_ONCE, AT_ONCE_ON_CPU = 128, 16  # images: enough to keep it busy, few enough to hold
LEAD = 50  # batches that are asked before one looks how far the GPU is


class Answering:
    """Asks networks the questions of a set that count; data parallel, each process its share."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        device: torch.device | str = "cpu",
        precision: Literal["float32", "bfloat16"] = "float32",
        images: int | None = None,
        resident: bool | None = None,
    ) -> None:
        """`images`: at most so many at once, in each process; `resident` is that of `Batches`."""
        dataset.refuse_empty()
        self._device, self._low = settled(device), precision == "bfloat16"
        self._asked, self._questions = len(dataset), len(dataset.questions)
        most = images or (AT_ONCE_ON_CPU if self._device.type == "cpu" else AT_ONCE)
        together, group = _shape(dataset, most * parallel.size())
        # Unshuffled, all epochs are alike: so many steps hold every question once wherever they
        # begin, and a pass that was interrupted does no harm to the next.
        self._batches = Batches(
            dataset,
            images=-(-together // parallel.size()),
            questions=group,
            seed=None,
            device=self._device,
            shard=(parallel.rank(), parallel.size()),
            resident=resident,
        )

    def __call__(
        self,
        system: System,
        network: nn.Module,
        *,
        show: bool = True,
        name: object = "the network",
    ) -> np.ndarray:
        """(Q,) int16: the answer to each question of the set, UNKNOWN where it does not count.

        Where logits are not finite there are no answers: a network of that name is refused.
        """
        with (
            _evaluating(network),
            torch.inference_mode(),
            torch.autocast(self._device.type, torch.bfloat16, enabled=self._low),
            self._progress(show) as advance,
        ):
            found, total = map(parallel.sum_over_all, self._ask(system, network, advance))
            if not total.isfinite():
                raise not_finite(name)
            return (found - 1).cpu().numpy().astype(np.int16)

    def _ask(
        self, system: System, network: nn.Module, advance: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """(Q,) int32, which NCCL can add: the answers plus one; nought where it did not ask.

        And the sum of all logits, in float64, where no float32 overflows: finite if they are.
        """
        # The one place more is the last, where number −1 leads: there the fillers' answers go.
        found = torch.zeros(self._questions + 1, dtype=torch.int32, device=self._device)
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        steps = self._batches.steps
        passed = torch.cuda.Event() if self._device.type == "cuda" else None
        for step in range(steps):
            batch = next(self._batches)
            logits = system.answer(network, batch)
            total += logits.sum(dtype=torch.float64)
            found[batch.which] = logits.argmax(dim=1).to(torch.int32) + 1
            # Nothing above waits for the GPU. It is waited for now and then, and only for what it
            # was asked a while ago: so it never runs dry, and what is shown is nearly true.
            if passed is not None and step % LEAD == 0:
                passed.synchronize()
                passed.record(torch.cuda.current_stream(self._device))
            if passed is not None and step == steps - 1:
                torch.cuda.synchronize(self._device)
            advance(self._asked * (step + 1) // steps - self._asked * step // steps)
        return found[:-1], total

    def _progress(self, show: bool) -> AbstractContextManager[Callable[[int], None]]:
        if show:
            return progress("answering", "questions", self._asked)
        return nullcontext(lambda count: None)

    def close(self) -> None:
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shape(dataset: Dataset, most: int) -> tuple[int, int]:
    """Images in a step, and questions about each: as many as images usually have.

    In no more steps than the most images would take, but with the fewest holes.
    """
    _, counts = np.unique(dataset.rows[dataset.chosen], return_counts=True)
    group = min(int(np.bincount(counts).argmax()), MOST)
    groups = int((-(-counts // group)).sum())
    steps = -(-groups // most)
    return -(-groups // steps), group


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards each part is in the mode it was in, for they may differ."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
