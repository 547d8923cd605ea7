"""For torchrun: trains, and in the second process kills itself once, in the middle."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from macnet.distributed import process_group, rank
from macnet.training.step import Learner
from test_distributed import plans
from tiny_training import trainer


def doomed(learner: Learner, number: int, rate: float) -> None:
    if number == 7 and rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    step(learner, number, rate)


step = Learner.step

if __name__ == "__main__":
    torch.set_num_threads(1)
    Learner.step = doomed  # type: ignore[method-assign, assignment]
    with process_group("cpu"):
        trainer(Path(sys.argv[1]), plans()["dropout"], save_every=0).train(resume=True)
