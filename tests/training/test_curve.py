"""The learning curve shows what the log holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from macnet.errors import InputError
from macnet.training.curve import COLOURS, INK, QUIET, _draw, draw_curve, spread_labels

COLUMNS = ("Count", "Exist", "Compare Numbers", "Query Attribute", "Compare Attribute")


def run(epochs: int, seconds: float, stage: str = "answers", start: float = 0) -> list[Any]:
    """The lines of a stage: ten steps an epoch, and a validation after each."""
    lines: list[Any] = []
    for step in range(1, 10 * epochs + 1):
        place = {"stage": stage, "step": step, "epoch": step / 10, "questions": 64 * step}
        place["seconds"] = start + seconds * step / 10
        grown = 1 - 0.5 * 0.98**step
        measured = {"loss": 2 * 0.95**step, "accuracy": grown, "lr": 1e-4}
        lines.append({"kind": "train", **place, **measured})
        if step % 10 == 0:
            accuracy = {name: grown - 0.02 * i for i, name in enumerate(("overall", *COLUMNS))}
            lines.append({"kind": "validation", **place, "accuracy": accuracy, "best": step == 20})
    return lines


def curve(figure: Figure, panel: int, colour: str) -> list[np.ndarray]:
    """The longest line of a colour: times and values."""
    lines = [line for line in figure.axes[panel].lines if line.get_color() == colour]
    longest = max(lines, key=lambda line: len(line.get_xdata()))  # type: ignore[arg-type]
    return [np.asarray(longest.get_xdata()), np.asarray(longest.get_ydata())]


def words(figure: Figure) -> set[str]:
    texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    return {text.get_text() for text in texts}


def test_the_curves_are_those_of_the_log() -> None:
    lines = run(epochs=20, seconds=100)  # 33 minutes
    figure = _draw(lines, "mac")
    validated = [line for line in lines if line["kind"] == "validation"]
    minutes = [line["seconds"] / 60 for line in validated]
    for name, colour in {"overall": INK, **dict(zip(COLUMNS, COLOURS, strict=True))}.items():
        times, values = curve(figure, 0, colour)
        np.testing.assert_allclose(times, minutes)
        np.testing.assert_array_equal(values, [line["accuracy"][name] for line in validated])
        assert f"{name} {100 * values[-1]:.1f}" in words(figure)
    times, losses = curve(figure, 1, INK)
    np.testing.assert_array_equal(losses, [x["loss"] for x in lines if x["kind"] == "train"])
    assert figure.axes[1].get_xlabel() == "minutes"
    assert {"mac", "best 66.62% after 3.33 minutes"} <= words(figure)


def test_epochs_stand_where_they_ended() -> None:
    lines = run(epochs=4, seconds=10) + run(epochs=2, seconds=60, stage="second", start=40)
    figure = _draw(lines, "mac")
    (top,) = figure.axes[0].child_axes
    found = dict(zip(top.get_xticks(), (t.get_text() for t in top.get_xticklabels()), strict=True))
    assert found == {0: "0", 20: "2", 40: "4", 70: "0.5", 100: "1", 130: "1.5", 160: "2"}
    assert {"answers", "second"} <= words(figure)
    times, _ = curve(figure, 1, QUIET)
    assert list(times) == [40, 40], "where one stage ends and the next begins"


def test_stages_are_not_named_where_there_is_one() -> None:
    assert "answers" not in words(_draw(run(epochs=2, seconds=10), "mac"))


ONE = run(epochs=1, seconds=3)
LOGS: dict[str, list[Any]] = {
    "nothing": [],
    "only an end": [{**ONE[0], "kind": "end", "reason": "early stopping"}],
    "one step": ONE[:1],
    "no validation": ONE[:-1],
    "one validation": ONE,
    "only a validation": ONE[-1:],
    "no numbers": [line | {"loss": None, "lr": None} for line in ONE],
    "losses of zero": [line | {"loss": 0.0, "lr": 0.0} for line in ONE],
    "losses below zero": [line | {"loss": -1.5} for line in ONE],
    "losses far apart": [line | {"loss": 1e30 ** (i - 1)} for i, line in enumerate(ONE[:3])],
    "the same loss": [line | {"loss": 1.0} for line in ONE],
    "no time": [line | {"seconds": 0.0} for line in ONE],
    "nothing right": [ONE[0] | {"accuracy": 0.0}, ONE[-1] | {"accuracy": {"overall": 0.0}}],
    "all right": [ONE[0] | {"accuracy": 1.0}, ONE[-1] | {"accuracy": {"overall": 1.0}}],
    "days": run(epochs=3, seconds=100_000),
}


@pytest.mark.parametrize("case", LOGS)
def test_any_log_can_be_drawn(case: str, tmp_path: Path) -> None:
    record, out = tmp_path / "log.jsonl", tmp_path / "curve.png"
    record.write_text("".join(json.dumps(line) + "\n" for line in LOGS[case]))
    draw_curve(record, out, "all $ is _well_")
    with Image.open(out) as picture:
        assert picture.size == (1500, 960)
        colours = picture.convert("RGB").getcolors(1 << 20)
    assert colours is not None
    assert len(colours) > 10, "something is drawn"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curve.png", "log.jsonl"]


def test_a_damaged_record_leaves_the_old_picture(tmp_path: Path) -> None:
    record, out = tmp_path / "log.jsonl", tmp_path / "curve.png"
    record.write_text("{}\n")
    out.write_bytes(b"old")
    with pytest.raises(InputError, match="line 1 is damaged"):
        draw_curve(record, out, "mac")
    assert out.read_bytes() == b"old"


def test_no_state_is_shared_with_other_figures() -> None:
    script = "import sys, macnet.training.curve; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


heights = st.lists(st.floats(0, 1), min_size=1, max_size=7)


@given(wanted=heights, gap=st.floats(0.01, 0.15), other=heights)
def test_names_lie_apart_and_as_near_as_can_be(
    wanted: list[float], gap: float, other: list[float]
) -> None:
    wanted.sort()
    found = spread_labels(wanted, gap, 0, 1)
    assert min(found) >= 0
    assert max(found) <= 1 + 1e-9
    assert np.all(np.diff(found) >= gap - 1e-9)
    # No other heights that would do lie nearer; these are made from any numbers.
    room = 1 - (len(wanted) - 1) * gap
    base = sorted((other * len(wanted))[: len(wanted)])
    others = room * np.array(base) + gap * np.arange(len(wanted))
    assert np.sum((found - np.array(wanted)) ** 2) <= np.sum((others - wanted) ** 2) + 1e-9
