"""A worker for `torchrun`: the second of them kills itself once, in the middle of its training."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from macnet.distributed import process_group, rank
from macnet.training import trainer as trainer_module
from macnet.training.plan import TrainingPlan
from macnet.training.step import Learner
from tiny_training import trainer


def train(folder: Path, made: TrainingPlan) -> None:
    """Train, or go on; beside the folder there is a file then that says that one was killed."""

    def doomed(
        learner: Learner, number: int, rate: float, step: Callable[..., None] = Learner.step
    ) -> None:
        if number == 7 and rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            folder.with_suffix(".killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        step(learner, number, rate)

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, process_group("cpu"):
        patch.setattr(Learner, "step", doomed)
        patch.setattr(trainer_module, "draw_curve", lambda *_: None)  # which takes its time
        trainer(folder, made, save_every=0).train(resume=True)
