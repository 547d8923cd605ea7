"""Ctrl-C, heard when it suits."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """The first Ctrl-C, or polite kill, asks for an end; the second does not wait for it."""

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
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
