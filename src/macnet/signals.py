"""Ctrl-C and SIGTERM, acted on when it is safe."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import Any, ClassVar, Self

PATIENCE = 1.0  # seconds after a Ctrl-C in which further ones are ignored


class Interrupts:
    """The first Ctrl-C or SIGTERM asks for an end; one that comes much later ends at once."""

    last_time: ClassVar = -math.inf
    """Time of the last request: signals soon after it are ignored by all handlers."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # signal handlers are set in the main thread only
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._before[kind] = signal.signal(kind, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, Interrupts.last_time = True, time.monotonic()
        elif time.monotonic() - Interrupts.last_time > PATIENCE:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
