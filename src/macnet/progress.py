"""How far a long command has come: a bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(what: str, unit: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Gives the function to call with the number of units just made.

    `done` counts what an earlier run made; it says nothing about the speed of this one.
    """
    console = Console(stderr=True)
    start = last_line = time.monotonic()
    now = done

    def pace() -> str:
        rate = (now - done) / max(time.monotonic() - start, 1e-9)
        if now == done:
            return "starting"
        minutes, seconds = divmod(round((total - now) / rate), 60)
        return f"{rate:,.1f} {unit}/s, {minutes}:{seconds:02d} left"

    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=total, completed=done, pace=pace())

            def advance(count: int) -> None:
                nonlocal now
                now += count
                bar.update(task, completed=now, pace=pace())

            yield advance
        return

    def report(count: int) -> None:
        nonlocal now, last_line
        now += count
        if now == total or time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            # Not through the console, which would break the line at some guessed width.
            print(f"{what} {now}/{total}, {pace()}", file=console.file, flush=True)

    yield report
