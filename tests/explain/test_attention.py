"""The report of attention: all of it is shown, in lines that fit."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from macnet.explain.agreement import (
    NETWORK,
    Agreement,
)
from macnet.explain.attention import show, show_as_shown
from macnet.explain.comparison import measure
from made_up_attention import (
    STEPS,
    agreement,
    at_random,
    gated,
    made_up,
    pointing_in_order,
    watched,
)


def shown(found: Agreement, width: int, as_shown: Agreement | None = None) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None)
    show(found, row="MAC", what="[val]", console=console)
    if as_shown is not None:
        show_as_shown(as_shown, has_gate=True, console=console)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_all_is_shown(width: int) -> None:
    truth = made_up()
    lines = shown(agreement(truth, pointing_in_order(truth)), width)
    assert lines[0] == (
        "What MAC attends to on [val]: 200 questions about 40 images, 100.0% answered correctly"
    )
    referenced = str((truth.unique_objects | truth.counted_objects).sum())
    (row, _) = (line.split() for line in lines if line.startswith(" referenced "))
    assert (row[1], row[-1], row[-2]) == ("100.0", referenced, f"{100 * (1 - 0.8**STEPS):.1f}")
    assert "…" not in "".join(lines)
    assert not any(re.match(" (Query|Numbers|if wrong)", line) for line in lines)
    steps = [line.split() for line in lines if re.match(r" +\d ", line)]
    assert steps == [[str(i + 1), "100.0", "0.0", "0.0", "100.0", "0.00"] for i in range(STEPS)]
    assert any("Steps point at both in 100.0% (" in line for line in lines)
    assert any("it is the leading one in 100.0% (" in line for line in lines)
    travel = "the image travels 1.25 bits (with random weights 1.25) and to words 2.50 bits (with "
    assert f"{travel}random weights 2.50)" in lines[-1]


@pytest.mark.parametrize("width", [80, 120])
def test_both_readings_of_a_network_with_a_gate_are_shown(width: int) -> None:
    truth = made_up(200)
    own, random = gated(truth), gated(truth, 1)
    plain = measure(truth, own, random)
    weighted = measure(truth, own.weighted(), random.weighted())
    lines = shown(plain, width, weighted)
    assert lines[: len(shown(plain, width))] == shown(plain, width)
    added = lines[len(shown(plain, width)) :]
    assert added[1].startswith("As macnet explain shows it: attention beyond the resting map of ")
    assert "(idle if less than 10%)" in added[1]
    assert "…" not in "".join(lines)
    assert all(len(line) <= width for line in added if "─" in line or re.match(r" +\d ", line))
    steps = [line.split() for line in added if re.match(r" +\d ", line)]
    assert [len(row) for row in steps] == [9] * STEPS
    assert steps[2] == ["3", "–", "–", "–", "–", "25.0", "100.0", "0.0", "–"]
    (every,) = (line.split() for line in added if line.startswith(" all "))
    of_all = weighted.all_steps[NETWORK]
    assert every[5:] == ["25.0", f"{100 * of_all.idle:.1f}", f"{100 * of_all.change:.1f}"]


def test_one_that_reads_no_words_is_shown() -> None:
    truth = made_up()
    own = watched(truth, at_random(truth), np.full((len(truth.images), STEPS), np.nan))
    lines = shown(measure(truth, own, own), 100)
    assert [len(line.split()) for line in lines if re.match(r" +\d ", line)] == [5] * STEPS
    assert not any(word in line for line in lines for word in ("read", "backwards"))


def test_a_file_gets_lines_that_nothing_has_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    truth = made_up()
    found = agreement(truth, at_random(truth))
    show(found, row="MAC", what="[val]")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == shown(found, 1000)


def test_a_world_without_hops_tells_no_order() -> None:
    truth = made_up()
    truth = replace(truth, hops=truth.hops[:0])
    found = agreement(truth, at_random(truth))
    assert found.both_pointed_at[NETWORK].total == 0
    assert not any("leading" in line for line in shown(found, 80))
