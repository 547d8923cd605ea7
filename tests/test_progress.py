"""How far one has come, in a terminal and out of it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from rich.console import Console

import macnet.progress
from macnet.progress import progress


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("macnet.progress.time", clock)
    monkeypatch.delenv("RANK", raising=False)
    return clock


class Screen(io.StringIO):
    """What stands in a terminal in the end, without colours: only what bars need is understood."""

    def lines(self) -> list[str]:
        lines, row = [""], 0
        for control, text, new in re.findall(
            r"\x1b\[([?\d;]*[A-Za-z])|([^\x1b\r\n]+)|(\n)", self.getvalue()
        ):
            if new:
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif control == "2K":
                lines[row] = ""
            elif control == "1A":
                row -= 1
            else:
                lines[row] += text
        return [line.rstrip() for line in lines if line]


@pytest.fixture
def screen(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    screen = Screen()

    def terminal(**_: Any) -> Console:
        return Console(file=screen, force_terminal=True, width=140, no_color=True)

    monkeypatch.setattr("macnet.progress.Console", terminal)
    yield screen
    assert macnet.progress._display is None


def test_lines_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("training", "questions", 17_500_000, done=500_000) as advance:
        for step in range(100):
            clock.now += 0.5
            advance(1000, f"loss {step}" if step % 10 == 0 else None)
    # 2,000 a second since the start; lines come more than ten seconds apart.
    assert capsys.readouterr().err.splitlines() == [
        "training 521,000/17,500,000, 2,000 questions/s, 2:21:30 left, loss 20",
        "training 542,000/17,500,000, 2,000 questions/s, 2:21:19 left, loss 40",
        "training 563,000/17,500,000, 2,000 questions/s, 2:21:08 left, loss 60",
        "training 584,000/17,500,000, 2,000 questions/s, 2:20:58 left, loss 80",
    ]


def test_the_end_is_told_at_once(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("packing", "images", 30) as advance:
        clock.now += 4
        advance(20)
        assert capsys.readouterr().err == ""
        advance.to(30)
    captured = capsys.readouterr()
    assert captured.err == "packing 30/30, 7.5 images/s, 0:00 left\n"
    assert captured.out == ""


def test_the_end_of_what_is_within_another_is_not(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("training", "questions", 30) as advance:
        for seconds in (4, 11):
            with progress("answering", "questions", 7) as inner:
                clock.now += seconds
                inner(3)
                inner(4)
        advance(30)
    assert capsys.readouterr().err.splitlines() == [
        "answering 3/7, 0.3 questions/s, 0:15 left",  # it takes long; one wants to know
        "training 30/30, 2.0 questions/s, 0:00 left",
    ]


def test_what_is_said_is_a_line_as_it_is(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    line = "val 87.12% [bold] " + "x" * 300
    with progress("training", "questions", 100) as advance:
        advance.say(line)
    assert capsys.readouterr().err == line + "\n"


def test_only_the_first_of_several_speaks(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    with progress("training", "questions", 10) as advance:
        advance(10, "loss 1")
        advance.say("val 50%")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("RANK", "0")
    with progress("training", "questions", 10) as advance:
        advance.say("val 50%")
    assert capsys.readouterr().err == "val 50%\n"


def test_in_a_terminal(clock: Clock, screen: Screen) -> None:
    with progress("training", "questions", 20_000) as advance:
        clock.now += 100
        advance(10_000, "loss [0.5]")
        advance.say("val 87% [bold]")
        advance(0)
    said, bar = screen.lines()
    assert said == "val 87% [bold]"
    assert bar.startswith("training ━━━━━━━━━━━━")
    assert bar.endswith(" 10,000/20,000 100.0 questions/s, 1:40 left, loss [0.5]")


def test_a_note_that_does_not_fit_goes_below(clock: Clock, screen: Screen) -> None:
    with progress("training", "questions", 20_000) as advance:
        clock.now += 100
        advance(10_000, "loss 0.5, " + "x" * 60)
    bar, note = screen.lines()
    assert bar.endswith("10,000/20,000 100.0 questions/s, 1:40 left")
    assert note.strip() == "loss 0.5, " + "x" * 60


def test_a_bar_within_a_bar_leaves_with_its_block(clock: Clock, screen: Screen) -> None:
    with progress("training", "questions", 100) as advance:
        advance(50)
        with suppress(KeyError), progress("validating", "images", 7) as inner:
            inner(3)
            inner.say("so far")
            assert [line.split()[0] for line in screen.lines()] == ["so", "training", "validating"]
            raise KeyError
        advance(50)
    assert [line.split()[0] for line in screen.lines()] == ["so", "training"]
    assert "validating" in screen.getvalue()
