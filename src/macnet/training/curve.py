"""The learning curve of a run as a picture, drawn from its record.

Above, accuracy against time and epochs; below, the loss and the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, ScalarFormatter

from macnet.disk import whole_file
from macnet.training.record import read_record

Line = dict[str, Any]

# Okabe and Ito's colours, which people tell apart whatever their eyes.
COLOURS = ("#D55E00", "#0072B2", "#CC79A7", "#009E73", "#E69F00", "#56B4E9")
INK, QUIET, FAINT = "#222222", "#777777", "#cccccc"
UNITS = (("hours", 3600, 3 * 3600), ("minutes", 60, 5 * 60), ("seconds", 1, 0))
"""Of time: its name, its seconds, and from how many on it is used."""
LABEL_HEIGHT = 0.052  # of the upper panel: labels at the ends of curves lie so far apart
TICKS = 8  # of epochs, over all stages


class Stage(NamedTuple):
    name: str
    start: float
    end: float
    epochs: list[float]
    seconds: list[float]


def draw_curve(record: Path, out: Path, title: str) -> None:
    """Draw a run's record as a PNG."""
    with rc_context({"font.size": 9, "axes.linewidth": 0.6, "axes.edgecolor": QUIET}):
        figure = _draw([line for line in read_record(record) if line["kind"] != "end"], title)
        with whole_file(out) as file:
            figure.savefig(file, format="png", dpi=200)


def _draw(lines: Sequence[Line], title: str) -> Figure:
    figure = Figure(figsize=(7.5, 4.9))
    FigureCanvasAgg(figure)
    accuracy, loss = figure.subplots(
        2,
        sharex=True,
        height_ratios=(3, 1),
        gridspec_kw={"hspace": 0.09, "left": 0.08, "right": 0.79, "top": 0.84, "bottom": 0.1},
    )
    stages = _stages(lines)
    end = stages[-1].end if stages else 1.0
    unit, seconds, _ = next(unit for unit in UNITS if end >= unit[2])
    accuracy.set_xlim(0, end / seconds)
    trained = [line for line in lines if line["kind"] == "train"]
    validated = [line for line in lines if line["kind"] == "validation"]
    for axes in (accuracy, loss):
        axes.spines[["right", "top"]].set_visible(False)
        axes.tick_params(width=0.6, color=QUIET, labelcolor=INK)
        for stage in stages[1:]:
            axes.axvline(stage.start / seconds, color=QUIET, linewidth=0.6)
    _draw_accuracy(accuracy, trained, validated, seconds)
    _draw_epochs(accuracy, stages, seconds)
    _draw_loss(loss, trained, seconds)
    loss.set_xlabel(unit)
    if len(stages) > 1:
        _name_stages(accuracy, stages, seconds)
    left = 0.08
    figure.text(left, 0.95, title, fontsize=11, weight="bold", color=INK, parse_math=False)
    figure.text(left + 0.71, 0.95, _summary(validated, seconds, unit), color=QUIET, ha="right")
    return figure


def _draw_accuracy(
    axes: Axes, trained: Sequence[Line], validated: Sequence[Line], unit: float
) -> None:
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("accuracy")
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    names = list(dict.fromkeys(name for line in validated for name in line["accuracy"]))
    columns = [name for name in names if name != "overall"]
    curves = {
        name: _points(validated, lambda line, name=name: line["accuracy"].get(name), unit)
        for name in names
    }
    training = _points(trained, lambda line: line["accuracy"], unit)
    axes.plot(*training, color=FAINT, linewidth=0.8)
    ends = []
    if len(training[1]):
        ends.append(("training", float(training[1][-1]), QUIET))
    ...
