"""The step before the first: it happens beside other work, and leaves nothing but compiled code."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import torch

from macnet.data.batches import Batch
from macnet.training import warm_up as module
from macnet.training.plan import make_plan
from macnet.training.warm_up import RepeatedBatch, warm_up

SIZE = (32, 24)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_without_a_gpu_nothing_is_done() -> None:
    with warm_up(make_plan("small", recipe="fast"), SIZE, torch.device("cpu")):
        assert "warm-up" not in threads()


def test_the_same_batch_comes_again() -> None:
    batch = Batch(*(torch.full((2,), k) for k in range(len(Batch._fields))))
    with RepeatedBatch(batch) as source:
        assert all(map(torch.equal, next(source), batch))
        assert all(map(torch.equal, source.gather(source.sample()), batch))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("preset", ["small", "paper", "lstm", "film-pixels"])
def test_the_step_is_one_of_training(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "suppress", lambda *_: nullcontext())  # an error is a failure here
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    plan = make_plan(preset, recipe="fast", recipe_changes={"images": 4, "questions": 2})
    with warm_up(plan, SIZE, torch.device("cuda")):
        assert "warm-up" in threads()
    assert not failed
    assert "warm-up" not in threads()
