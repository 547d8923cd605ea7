"""Predicted answers to all questions of a dataset.

    with Predictor(dataset, device="cuda", precision="bfloat16") as predictor:
        answers, programs = predictor(system, network)  # any number of times

Its constructor moves the images to the device, once; each call is one pass over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from macnet import distributed
from macnet.data.batches import Batch, Batches
from macnet.data.dataset import Dataset
from macnet.data.vocab import PROGRAM_TOKENS
from macnet.devices import with_device_index
from macnet.errors import not_finite_error
from macnet.models.system import System
from macnet.progress import progress

MAX_QUESTIONS = 10  # about an image in a batch: as many as CLEVR has
BATCH_IMAGES, BATCH_IMAGES_CPU = 128, 16  # enough to keep the device busy, few enough to fit
STEPS_AHEAD = 8  # batches that are launched before the GPU is waited for; each takes memory


class Predictions(NamedTuple):
    """Predictions for the Q questions of a dataset."""

    answers: np.ndarray
    """(Q,) int16: the answer to each question, UNKNOWN if it is not chosen."""
    programs: np.ndarray | None
    """(Q,) bool: whether the true program was written; None if none is written, or known."""


class Predictor:
    """Predicts the answers to the chosen questions of a dataset; each process does its share."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        device: torch.device | str = "cpu",
        precision: Literal["float32", "bfloat16"] = "float32",
        images: int | None = None,
        resident: bool | None = None,
    ) -> None:
        """`images`: the most in a batch of each process; `resident` is that of `Batches`."""
        dataset.check_not_empty()
        self._device, self._low = with_device_index(device), precision == "bfloat16"
        self._count, self._questions = len(dataset), len(dataset.questions)
        # Programs of another format are none that a network could write.
        self._has_programs = dataset.format.program_tokens == PROGRAM_TOKENS
        most = images or (BATCH_IMAGES_CPU if self._device.type == "cpu" else BATCH_IMAGES)
        images, group = _batch_shape(dataset, most * distributed.size())
        # Unshuffled, all epochs are alike: the steps of one hold every question once wherever they
        # start, so an interrupted pass does no harm to the next.
        self._batches = Batches(
            dataset,
            images=-(-images // distributed.size()),
            questions=group,
            seed=None,
            device=self._device,
            shard=(distributed.rank(), distributed.size()),
            resident=resident,
        )

    def __call__(
        self, system: System, network: nn.Module, *, show: bool = True, name: object = "the network"
    ) -> Predictions:
        """Answer each question of the dataset that is chosen.

        Raises NotFiniteError, which names the network by `name`, if logits are not finite.
        """
        bar: AbstractContextManager[Callable[[int], None]] = nullcontext(lambda count: None)
        if show:
            bar = progress("answering", "questions", self._count)
        with (
            _eval_mode(network),
            torch.inference_mode(),
            torch.autocast(self._device.type, torch.bfloat16, enabled=self._low),
            bar as advance,
        ):
            found, total = map(distributed.all_reduce_sum, self._predict(system, network, advance))
            if not total.isfinite():
                raise not_finite_error(name)
        # Of a question, twice the answer plus one, and one more if the true program was written.
        both = (found - 2).cpu().numpy()
        programs = (both >= 0) & (both % 2 == 1) if system.programs and self._has_programs else None
        return Predictions((both // 2).astype(np.int16), programs)

    def _predict(
        self, system: System, network: nn.Module, advance: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """(Q,) int32, which NCCL can add: 0 where this process has no answer.

        Else twice the answer plus two, and one more if the program that was written is true. And
        the sum of all logits, in float64, where no float32 overflows: finite if they are.
        """
        # The last element is where index −1 leads: there the answers to fillers go.
        found = torch.zeros(self._questions + 1, dtype=torch.int32, device=self._device)
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        steps = self._batches.steps
        passed = torch.cuda.Event() if self._device.type == "cuda" else None
        for step in range(steps):
            batch = next(self._batches)
            logits, is_true = self._forward(system, network, batch)
            total += logits.sum(dtype=torch.float64)
            found[batch.question_index] = 2 * logits.argmax(dim=1).to(torch.int32) + 2 + is_true
            # Nothing above waits for the GPU. Now and then it is waited for, and only for batches
            # launched a while ago: so it never idles, and the progress shown is nearly true.
            if passed is not None and step % STEPS_AHEAD == 0:
                passed.synchronize()
                passed.record(torch.cuda.current_stream(self._device))
            if passed is not None and step == steps - 1:
                torch.cuda.synchronize(self._device)
            advance(self._count * (step + 1) // steps - self._count * step // steps)
        return found[:-1], total

    def _forward(
        self, system: System, network: nn.Module, batch: Batch
    ) -> tuple[Tensor, Tensor | int]:
        """Logits (B, answers), and (B,) whether the true program was written, if any is."""
        if system.programs is None or not self._has_programs:
            return system.forward(network, batch), 0
        logits, is_true = system.programs.forward(network, batch)
        return logits, is_true.to(torch.int32)

    def close(self) -> None:
        """Free the memory of the images."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _batch_shape(dataset: Dataset, most: int) -> tuple[int, int]:
    """Images in a batch, and questions about each: as many as images usually have.

    There are no more batches than with the most images, but with the fewest fillers.
    """
    _, counts = np.unique(dataset.image_rows[dataset.selected], return_counts=True)
    group = min(int(np.bincount(counts).argmax()), MAX_QUESTIONS)
    groups = int((-(-counts // group)).sum())
    steps = -(-groups // most)
    return -(-groups // steps), group


@contextmanager
def _eval_mode(network: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards each module is in its previous mode, for they may differ."""
    training = [module for module in network.modules() if module.training]
    network.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
