"""Ctrl-C, heard when it suits."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import Any, ClassVar, Self

PATIENCE = 1.0  # seconds after a Ctrl-C: whoever presses it again by then only presses it hard


class Interrupts:
    """The first Ctrl-C, or polite kill, asks for an end; one much later does not wait for it."""

    heard: ClassVar = -math.inf
    """When one last asked: what comes soon after it is for nobody else either."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may listen
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._before[kind] = signal.signal(kind, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, Interrupts.heard = True, time.monotonic()
        elif time.monotonic() - Interrupts.heard > PATIENCE:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
