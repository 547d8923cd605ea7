"""Standard output and error in any encoding, and Ctrl-C."""

from __future__ import annotations

import codecs
import os
import signal
import sys
import time
from types import FrameType
from typing import TextIO

from macnet.errors import InputError
from macnet.signals import PATIENCE, Interrupts

LOOK_ALIKES = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "×": "x", "→": ">", "█": "#", "…": "~", "±": "~", "·": "."}
    | dict.fromkeys("─━═", "-")
    | dict.fromkeys("│┃║", "|")
    | dict.fromkeys("‘’", "'")
    | dict.fromkeys("“”", '"')
)
"""Each is as wide as what it replaces, so that tables stay aligned."""

SHOW_CURSOR = "\x1b[?25h"  # which a progress bar hides


def prepare_streams() -> None:
    """Characters that stdout or stderr cannot encode become others that look alike, or "?"."""
    if sys.stderr is None:  # a print to it must not go to stdout
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if sys.stdout is None:
        raise InputError("standard output is closed; send it somewhere, such as to /dev/null")
    codecs.register_error("look-alike", _look_alikes)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="look-alike")


def _look_alikes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end].translate(LOOK_ALIKES)
    return "".join(sign if sign.isascii() else "?" for sign in signs), error.end


def is_failing(stream: TextIO) -> bool:
    """Whether the stream cannot be written to; what is still in its buffer is then dropped."""
    try:
        stream.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or Python would fail at exit
        return True
    return False


class CtrlC:
    """Handles Ctrl-C: the first raises KeyboardInterrupt, and its handling is not disturbed.

    Only one that comes much later, if that takes long, ends the process at once.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None and now - Interrupts.last_time > PATIENCE:
            self._first = now
            raise KeyboardInterrupt
        if self._first is not None and now - self._first > PATIENCE:
            if os.isatty(2):
                os.write(2, SHOW_CURSOR.encode())
            os._exit(128 + number)

    def close(self) -> None:
        """At the end, when nothing is left to save: the first Ctrl-C ends the process."""
        if self._first is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
