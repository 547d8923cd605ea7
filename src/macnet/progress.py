"""Progress of long work: a bar in a terminal, a line every ten seconds elsewhere.

    with progress("training", "questions", 17_500_000) as advance:
        advance(640, "loss 0.512")
        advance.say("val 87.12%")

All of it goes to stderr. Under `torchrun`, only rank 0 prints.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

SECONDS_BETWEEN_LINES = 10.0
BAR_WIDTH = 24


class Advance:
    """Reports progress: called with the number of units just done, and a note if it changed."""

    def __init__(self, what: str, unit: str, total: int, done: int, within: bool = False) -> None:
        """`within` another progress, the end prints no line."""
        self._what, self._unit, self._total, self._within = what, unit, total, within
        self._now = self._done = done
        self._note = ""
        self._start = self._last_line = time.monotonic()

    def __call__(self, count: int, note: str | None = None) -> None:
        self.to(self._now + count, note)

    def to(self, now: int, note: str | None = None) -> None:
        """Report the number of units done in all."""
        self._now = now
        self._note = self._note if note is None else note
        self._show()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        # Not through a console, which would break the line at some guessed width.
        if is_first_process():
            print(line, file=sys.stderr, flush=True)

    def _show(self) -> None:
        finished = self._now == self._total and not self._within
        if finished or time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            note = f", {self._note}" if self._note else ""
            self.say(f"{self._what} {self._counted()}, {self._pace()}{note}")

    def _counted(self) -> str:
        return f"{self._now:,}/{self._total:,}"

    def _pace(self) -> str:
        if self._now == self._done:
            return "starting"
        rate = (self._now - self._done) / max(time.monotonic() - self._start, 1e-9)
        left = _clock(round((self._total - self._now) / rate))
        return f"{rate:,.{0 if rate >= 1000 else 1}f} {self._unit}/s, {left} left"


class _Bar(Advance):
    """A bar in a terminal; lines scroll above all bars."""

    def __init__(self, what: str, unit: str, total: int, done: int, display: Progress) -> None:
        super().__init__(what, unit, total, done)
        self._display = display
        self.task = display.add_task(escape(what), total=total, counted="", pace="")
        self._show()

    def say(self, line: str) -> None:
        self._display.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        counted, pace = self._counted(), self._pace()
        if self._note:
            width = len(f"{self._what} {counted} {pace}, {self._note}") + 1 + BAR_WIDTH
            pace += (", " if width <= self._display.console.width else "\n") + self._note
        self._display.update(self.task, completed=self._now, counted=counted, pace=escape(pace))


_display: Progress | None = None  # nested bars share the display of the terminal
_speaking = False  # whether an outer progress prints lines, where there is no terminal


@contextmanager
def progress(what: str, unit: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Yields the function to call with the number of units just done.

    `done` counts the units of an earlier run, which do not count for the speed of this one.
    """
    global _display, _speaking
    console = Console(stderr=True)
    if not is_first_process() or not console.is_terminal:
        within, _speaking = _speaking, True
        try:
            yield Advance(what, unit, total, done, within)
        finally:
            _speaking = within
    elif _display is not None:
        bar = _Bar(what, unit, total, done, _display)
        try:
            yield bar
        finally:
            _display.remove_task(bar.task)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.fields[counted]}"),
            TextColumn("{task.fields[pace]}"),
        )
        with Progress(*columns, console=console) as _display:
            try:
                yield _Bar(what, unit, total, done, _display)
            finally:
                _display = None


def is_first_process() -> bool:
    """Whether this process prints: under torchrun rank 0, also where there is no process group."""
    return os.environ.get("RANK", "0") == "0"


def _clock(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
