"""The learning curve of a run, drawn from its log.

Above, accuracy against time and epochs: on the validation data, overall and by question type, and
in training. Below, the loss and the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from macnet.files import atomic_file
from macnet.training.log import read_log

# The palette of Okabe and Ito, which the color-blind can tell apart; of the question types.
COLOURS = ("#D55E00", "#0072B2", "#CC79A7", "#009E73", "#E69F00")
INK, QUIET, FAINT = "#222222", "#777777", "#D0D0D0"
UNITS = (("hours", 3600, 2 * 3600), ("minutes", 60, 5 * 60), ("seconds", 1, 0))
"""Units of time: name, seconds, and the shortest run, in seconds, that is shown in it."""
LEFT, RIGHT = 0.1, 0.775  # of the figure; to the right of the panels, curves are named
LINE_HEIGHT = 11.5  # points
NARROW = 0.2  # of a panel's width: the names of shorter stages stand upright
EPOCHS_SHOWN = 8
MOST_LOSSES_NAMED = 5


class LogPoint(NamedTuple):
    """A line of the log."""

    time: float
    """The time, in the unit of the axis."""
    epoch: float
    """The number of epochs in the stage."""
    values: Mapping[str, float | None]
    """The value of each curve, by name."""


class StageCurves(NamedTuple):
    """The curves of one stage of training."""

    name: str
    """The name of the stage."""
    start: float
    """The time at which it began."""
    points: list[LogPoint]
    """Its lines of the log."""

    @property
    def end(self) -> float:
        """The time at which it ended."""
        return self.points[-1].time

    def curve(self, name: str) -> tuple[list[float], list[float]]:
        """The times and values of a curve, where it has finite values."""
        found = [(point.time, point.values.get(name)) for point in self.points]
        finite = [(time, v) for time, v in found if v is not None and math.isfinite(v)]
        return [time for time, _ in finite], [value for _, value in finite]


def draw_curve(log: Path, out: Path, title: str) -> None:
    """Draw the log of a run as a PNG."""
    lines = [line for line in read_log(log) if line["kind"] != "end"]
    with rc_context({"font.size": 9, "axes.linewidth": 0.6, "axes.edgecolor": QUIET}):
        figure = _draw(lines, title)
        with atomic_file(out) as file:
            figure.savefig(file, format="png", dpi=200)


def _draw(lines: Sequence[Mapping[str, Any]], title: str) -> Figure:
    figure = Figure(figsize=(7.5, 4.8))
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    figure.subplots_adjust(left=LEFT, right=RIGHT, bottom=0.095, top=0.84, hspace=0.09)

    duration = max((line["seconds"] for line in lines), default=0) or 1
    unit, length = next((name, length) for name, length, least in UNITS if duration >= least)
    stages = _stages(lines, length)
    for axes in (above, below):
        axes.set_xlim(0, duration / length)
        axes.spines[["right", "top"]].set_visible(False)
        axes.tick_params(width=0.6, color=QUIET, labelcolor=INK)
        for stage in stages[1:]:
            axes.axvline(stage.start, color=QUIET, linewidth=0.6)
    _draw_accuracy(above, stages)
    _draw_epochs(above, stages)
    _draw_loss(below, stages)
    _draw_rate(below, stages)
    below.set_xlabel(unit, color=INK)

    figure.text(LEFT, 0.95, title, size=11, weight="bold", color=INK, parse_math=False)
    best = [line for line in lines if line["kind"] == "validation" and line["best"]]
    if best:
        accuracy, when = best[-1]["accuracy"]["overall"], best[-1]["seconds"] / length
        words = f"best {100 * accuracy:.2f}% after {when:.3g} {unit}"
        figure.text(0.985, 0.95, words, color=QUIET, ha="right")
    figure.align_ylabels([above, below])
    return figure


def _stages(lines: Sequence[Mapping[str, Any]], unit: float) -> list[StageCurves]:
    stages: list[StageCurves] = []
    for name, group in groupby(lines, key=lambda line: str(line["stage"])):
        points = []
        for line in group:
            values = line["accuracy"]
            if line["kind"] == "train":
                loss = max(line["loss"] or 0, 0) or None  # others have no logarithm
                values = {"training": values, "loss": loss, "lr": line["lr"]}
            points.append(LogPoint(line["seconds"] / unit, line["epoch"], values))
        stages.append(StageCurves(name, stages[-1].end if stages else 0.0, points))
    return stages


# --- the upper panel -------------------------------------------------------------------------


def _draw_accuracy(axes: Axes, stages: Sequence[StageCurves]) -> None:
    names = dict.fromkeys(
        name for stage in stages for point in stage.points for name in point.values
    )
    columns = [name for name in names if name not in ("training", "loss", "lr", "overall")]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(columns)}
    ends: dict[str, float] = {}
    lowest: dict[str, float] = {}
    for name in ("training", *columns, "overall"):
        colour = {"training": FAINT, "overall": INK}.get(name) or colours[name]
        for stage in stages:
            times, values = stage.curve(name)
            axes.plot(times, values, color=colour, linewidth=2 if name == "overall" else 0.9)
            if len(values) == 1:  # which is no line yet
                axes.plot(times, values, "o", color=colour, markersize=3, clip_on=False)
            if values:
                lowest[name] = min(lowest.get(name, 1), *values)
                ends[name] = values[-1]
    training = lowest.pop("training", 0)  # begins lower than one needs to see
    low = min(0.9, min(lowest.values(), default=training))
    axes.set_ylim(math.floor(10 * low) / 10, 1)
    axes.set_ylabel("accuracy", color=INK)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    _name_curves(axes, ends, {**colours, "training": QUIET, "overall": INK})
    if len(stages) > 1:
        _name_stages(axes, stages)


def _name_curves(axes: Axes, ends: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """Label curves beside the panel, each at the height of its end, or as near as there is room."""
    names = sorted(ends, key=lambda name: ends[name])
    low, high = axes.get_ylim()
    height = axes.get_window_extent().height * 72 / axes.figure.dpi  # in points
    line = (high - low) * LINE_HEIGHT / height
    heights = spread_labels([ends[name] for name in names], line, low, high)
    aside = axes.get_yaxis_transform()
    for name, y in zip(names, heights, strict=True):
        look: dict[str, Any] = {"color": colours[name], "transform": aside, "clip_on": False}
        axes.plot([1.005, 1.025], [ends[name], y], linewidth=0.6, **look)
        weight = "bold" if name == "overall" else "normal"
        words = f"{name} {100 * ends[name]:.1f}"
        axes.text(1.032, y, words, va="center_baseline", size=8.5, weight=weight, **look)


def spread_labels(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Rising heights of labels, a gap apart, nearest to those wanted by least squares."""
    # Less the gaps below, they must only not fall: where they would, neighbours share their mean.
    blocks: list[list[float]] = []
    for i, height in enumerate(wanted):
        blocks.append([height - i * gap])
        while len(blocks) > 1 and np.mean(blocks[-2]) >= np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    means = [float(np.mean(block)) for block in blocks for _ in block]
    highest = high - (len(wanted) - 1) * gap
    return [min(max(mean, low), highest) + i * gap for i, mean in enumerate(means)]


def _name_stages(axes: Axes, stages: Sequence[StageCurves]) -> None:
    """Label stages at their ends, where curves are high."""
    for stage in stages:
        narrow = stage.end - stage.start < NARROW * stages[-1].end
        axes.annotate(
            stage.name,
            (stage.end, 0),
            xytext=(-3, 5),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="right",
            va="bottom",
            rotation=90 if narrow else 0,
            color=QUIET,
            size=8.5,
            parse_math=False,
        )


def _draw_epochs(axes: Axes, stages: Sequence[StageCurves]) -> None:
    """An axis of epochs above. Each stage counts its own, and not all take the same time."""
    ticks: dict[float, str] = {}
    for stage in stages:
        share = (stage.end - stage.start) / (stages[-1].end or 1)
        epochs = [0.0, *(point.epoch for point in stage.points)]
        times = [stage.start, *(point.time for point in stage.points)]
        nice = MaxNLocator(max(1, round(EPOCHS_SHOWN * share)), steps=[1, 2, 5, 10])
        shown = [e for e in nice.tick_values(0, epochs[-1]) if 0 <= e <= epochs[-1]]
        for epoch in shown[1:] if ticks else shown:
            ticks[float(np.interp(epoch, epochs, times))] = f"{epoch:g}"
    top = axes.secondary_xaxis("top")
    top.set_xticks(list(ticks), list(ticks.values()))
    top.tick_params(width=0.6, color=QUIET, labelcolor=INK)
    top.set_xlabel("epochs", color=INK)


# --- the lower panel -------------------------------------------------------------------------


def _draw_loss(axes: Axes, stages: Sequence[StageCurves]) -> None:
    axes.set_ylabel("loss", color=INK)
    axes.set_yscale("log")
    axes.yaxis.set_minor_locator(NullLocator())
    losses: list[float] = []
    for stage in stages:
        times, values = stage.curve("loss")
        axes.plot(times, values, color=INK, linewidth=0.9)
        losses += values
    # From one round number to another, all of them named if they are few.
    numbers = [float(f"{n}e{power}") for power in range(-300, 300) for n in (1, 2, 5)]
    low = max(n for n in numbers if n < min(losses, default=1))
    high = min(n for n in numbers if n > max(losses, default=1))
    ticks = [n for n in numbers if low <= n <= high]
    if len(ticks) > MOST_LOSSES_NAMED:
        powers = [n for n in ticks if f"{n:e}".startswith("1.0")]
        ticks = powers[:: math.ceil(len(powers) / MOST_LOSSES_NAMED)]
    axes.set_ylim(low, high)
    axes.set_yticks(ticks, [f"{n:g}" for n in ticks])


def _draw_rate(axes: Axes, stages: Sequence[StageCurves]) -> None:
    curves = [stage.curve("lr") for stage in stages]
    highest = max((rate for _, values in curves for rate in values), default=0) or 1
    right = axes.twinx()
    for times, values in curves:
        right.plot(times, values, color=QUIET, linewidth=0.9, linestyle=(0, (4, 2)))
    right.spines[["left", "top"]].set_visible(False)
    right.set_ylim(0, 1.15 * highest)
    right.set_yticks([0, highest], ["0", f"{highest:.2g}"])
    right.tick_params(width=0.6, color=QUIET, labelcolor=QUIET)
    right.set_ylabel("learning rate", color=QUIET)
