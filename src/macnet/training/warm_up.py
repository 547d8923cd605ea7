"""A first training step on made-up data, taken by a thread while those of the world are generated.

It loads the libraries of CUDA and compiles the kernels of the network, which takes as long as
hundreds of steps. Then the real first step is as fast as all others.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch
from torch import Tensor

from macnet import distributed
from macnet.data.batches import Batch, BatchSource
from macnet.data.block_encoder import world_texts
from macnet.data.question_arrays import TYPES
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.devices import with_device_index
from macnet.training.plan import TrainingPlan
from macnet.training.step import Learner


class RepeatedBatch(BatchSource):
    """One batch, again and again."""

    position, steps = 0, None

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def sample(self) -> tuple[Tensor, ...]:
        """The batch."""
        return self._batch

    def close(self) -> None:
        """Nothing works ahead."""


@contextmanager
def warm_up(plan: TrainingPlan, size: tuple[int, int], device: torch.device) -> Iterator[None]:
    """A context in which the step is taken, on images of this width and height.

    It uses torch's random numbers: seed them afterwards. Nothing is done where nothing would be
    gained, nor where a made-up batch will not do: for programs, and for several processes.
    """
    first = plan.stages[0]
    is_alone = device.type == "cuda" and distributed.size() == 1
    if not is_alone or first.uses_programs or first.learns_policy:
        yield
        return
    device = with_device_index(device)  # the thread may have another current GPU
    thread = threading.Thread(target=_take_step, args=(plan, size, device), name="warm-up")
    thread.start()
    try:
        yield
    finally:
        thread.join()
        gc.collect()  # Adam's first use imports torch's compiler, whose frames hold the network
        torch.cuda.empty_cache()  # what lies there was for a stream that nobody uses again


def _take_step(plan: TrainingPlan, size: tuple[int, int], device: torch.device) -> None:
    # Whatever is wrong here, such as too little memory, is so with the real data, and said then.
    with suppress(Exception), torch.cuda.device(device):
        stage, (width, height) = plan.stages[0], size
        recipe = stage.recipe(plan.recipe)
        start = plan.start
        vocabulary = Vocabulary.build(world_texts()) if start is None else start.vocabulary
        words = max(len(vocabulary.encode(text)) for text in world_texts())
        answers = len(vocabulary.answers)
        spec = DataSpec(len(vocabulary), answers, len(TYPES), True, 3, height, width)
        network = plan.system.build(plan.system.resolve(plan.model, spec), spec).to(device)
        batch = _dummy_batch(recipe.images, recipe.questions, spec, words, device)
        objective = partial(stage.objective, plan.system)
        Learner(network, objective, recipe, RepeatedBatch(batch), device).step(0, recipe.lr)
        network.eval()
        low = recipe.precision == "bfloat16"
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, enabled=low):
            plan.system.forward(network, batch)
        torch.cuda.synchronize()


def _dummy_batch(
    images: int, questions: int, spec: DataSpec, words: int, device: torch.device
) -> Batch:
    """Gray images, and questions that repeat one word."""
    count = images * questions
    ones = torch.ones(count, dtype=torch.int64, device=device)
    return Batch(
        torch.full((images, spec.height, spec.width, 3), 128, dtype=torch.uint8, device=device),
        ones[:, None].repeat(1, words),
        words * ones,
        0 * ones,
        0 * ones,
        0 * ones[:, None],
        torch.arange(count, device=device),
    )
