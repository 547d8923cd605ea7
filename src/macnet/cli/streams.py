"""Where commands print: any terminal or file, whatever signs it can show; and Ctrl-C."""

from __future__ import annotations

import codecs
import os
import signal
import sys
import time
from types import FrameType
from typing import TextIO

from macnet.errors import InputError
from macnet.training.interrupts import PATIENCE, Interrupts

LOOK_ALIKES = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "×": "x", "→": ">", "█": "#", "…": "~", "±": "~", "·": "."}
    | dict.fromkeys("─━═", "-")
    | dict.fromkeys("│┃║", "|")
    | dict.fromkeys("‘’", "'")
    | dict.fromkeys("“”", '"')
)
"""Each as wide as what it stands for, so that tables stay tables."""

SHOW_CURSOR = "\x1b[?25h"  # which a progress bar has hidden


def prepare_streams() -> None:
    """Signs that stdout or stderr cannot show become others that look alike, or else a "?"."""
    if sys.stderr is None:  # what goes there is for no one, and must not go to stdout
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
    """Whether it takes no more; what it has not taken yet is then forgotten."""
    try:
        stream.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or Python's end would fail
        return True
    return False


class CtrlC:
    """For a process: the first is a KeyboardInterrupt, and what follows it is not disturbed.

    Only one that comes much later, where the end takes long, ends everything at once.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        signal.signal(signal.SIGINT, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None and now - Interrupts.heard > PATIENCE:
            self._first = now
            raise KeyboardInterrupt
        if self._first is not None and now - self._first > PATIENCE:
            if os.isatty(2):
                os.write(2, SHOW_CURSOR.encode())
            os._exit(128 + number)

    def close(self) -> None:
        """From here on there is nothing to say, nor to save: let the first end the process."""
        if self._first is None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
