"""Ways to end a training before its time."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from macnet.training.loop import Loop
from macnet.training.plan import TrainingPlan
from macnet.training.step import Learner
from processes import warm
from tiny_training import assert_equal, trainer


class StoppedAfter:
    """Ctrl-C is pressed when so many steps were made."""

    def __init__(self, steps: int) -> None:
        self._left, self._patch = steps, pytest.MonkeyPatch()

    def __enter__(self) -> None:
        def step(learner: Learner, *numbers: Any, real: Callable[..., None] = Learner.step) -> None:
            real(learner, *numbers)
            self._left -= 1
            if self._left == 0:
                signal.raise_signal(signal.SIGINT)

        self._patch.setattr(Learner, "step", step)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files may not grow beyond this: as on a full disk, a write is cut short, the next fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


class FailureError(Exception):
    """What may happen anywhere."""


def fail_at(which: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Before a file is made safe, before it takes its place, and after: at one such moment.

    Gives how many there were.
    """
    passed = 0

    def moment() -> None:
        nonlocal passed
        passed += 1
        if passed == which:
            raise FailureError

    def fsync(handle: int, real: Callable[[int], None] = os.fsync) -> None:
        moment()
        real(handle)

    def replace(part: Path, path: Path, real: Callable[..., Any] = Path.replace) -> None:
        moment()
        real(part, path)
        moment()

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    return lambda: passed


def assert_no_failure_matters(made: TrainingPlan, folder: Path) -> int:
    """Wherever a run fails, it goes on to what it would have become. Gives at how many moments."""
    with pytest.MonkeyPatch.context() as patch:
        moments = fail_at(0, patch)
        trainer(folder / "unbroken", made, save_every=0).train()
    for which in range(1, moments() + 1):
        with pytest.MonkeyPatch.context() as patch:
            fail_at(which, patch)
            with pytest.raises(FailureError):
                trainer(folder / str(which), made, save_every=0).train()
        trainer(folder / str(which), made).train(resume=True)
        assert_equal(folder / str(which), folder / "unbroken")
    return moments()


# --- in a process of its own -----------------------------------------------------------------


def learn(folder: Path, made: TrainingPlan, **options: Any) -> None:
    """Train, or go on; whatever ends it is told in a file beside the folder."""
    torch.set_num_threads(1)
    try:
        trainer(folder, made, **options).train(resume=True)
        folder.with_suffix(".end").write_text("done")
    except BaseException as error:
        folder.with_suffix(".end").write_text(f"{type(error).__name__}: {error}")
        raise


def die_in_a_save(which: int, folder: Path, made: TrainingPlan) -> None:
    """Kill oneself when so many files were about to take their place."""
    left = iter(range(which))

    def replace(part: Path, path: Path, real: Callable[..., Path] = Path.replace) -> Path:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(part, path)

    Path.replace = replace  # type: ignore[method-assign, assignment]
    learn(folder, made, save_every=0)


def save_for_ever(folder: Path, made: TrainingPlan) -> None:
    """Once asked to."""

    def save(loop: Loop) -> None:
        folder.with_suffix(".saving").touch()
        time.sleep(60)

    Loop.save = save  # type: ignore[method-assign, assignment]
    learn(folder, made, save_every=3600)


def process(work: Callable[..., None], *arguments: Any, **options: Any) -> BaseProcess:
    """One that is under way."""
    started = warm().Process(target=work, args=arguments, kwargs=options)
    started.start()
    return started
