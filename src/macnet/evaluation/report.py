"""What was measured, for people: tables in a terminal, a line while a network learns, a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from macnet.clevr.families import CATALOGUE
from macnet.disk import whole_file
from macnet.evaluation.accuracy import COLUMNS, Results, Share
from macnet.evaluation.paper import Published

SHORT = dict(zip(COLUMNS, ("Count", "Exist", "Numbers", "Query", "Compare"), strict=True))
MOST = 10  # rows of a table whose rest is in the JSON
WIDE = 1000  # columns, where there is no terminal: nothing is broken or left out there

NOTES: Mapping[str, str] = {
    "generated": "A generated world: these numbers do not compare with any on CLEVR.",
    "unknown": "The file does not tell whether this is CLEVR, so no number of the paper is beside.",
}
"""By origin of the questions."""
MEASURED = ("CLEVR", "CLEVR-Humans")  # what the paper's tables are about
NO_NUMBER = "The paper's tables have no number for this network on this share of the training data."


def in_one_line(results: Results, split: str) -> str:
    """`val 87.12% | Count 75.1 Exist 90.2 Numbers 85.0 Query 91.3 Compare 88.8`"""
    columns = " ".join(
        f"{SHORT[name]} {100 * share.value:.1f}"
        for name, share in results.columns.items()
        if share.count
    )
    return f"{split} {_percent(results.overall)}%" + (f" | {columns}" if columns else "")


def show(
    results: Results,
    *,
    row: str,
    what: str,
    paper: Published | None = None,
    errors: bool = True,
    console: Console | None = None,
) -> None:
    """Print how a system, by its name in the paper's table 1, did on what it was asked.

    `paper` is what stands beside, where the paper measured the same: on CLEVR, on CLEVR-Humans.
    `errors` tells also where it was wrong: by length and family, and what it answered instead.
    """
    console = console or terminal()
    console.print(Text(f"{row} on {what}", style="bold"), soft_wrap=True)
    theirs = _beside(results, paper)
    console.print(_by_column(results, theirs))
    if results.origin in MEASURED:
        note = f"In the paper: {paper.source}." if paper and theirs else NO_NUMBER
        console.print(Text(note + "\n"), soft_wrap=True)
    if results.origin in NOTES:
        console.print(Text(NOTES[results.origin] + "\n"), soft_wrap=True)
    if not errors:
        return
    beside = [table for table in (_by_length(results), _errors(results)) if table.row_count]
    if beside:
        console.print(Columns(beside, padding=(0, 3)))
    if results.off_by_one.count:
        console.print(_by_distance(results))
        console.print(Text(_counting(results.off_by_one) + "\n"), soft_wrap=True)
    if results.families:
        console.print(_weakest_families(results))


def terminal() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


def write_predictions(path: Path, predictions: np.ndarray, answers: Sequence[str]) -> None:
    """One answer a line, in the order of the questions; an empty line where none was asked for."""
    words = (*answers, "")  # the last is what UNKNOWN, −1, leads to
    with whole_file(path) as file:
        file.write("".join(f"{words[i]}\n" for i in predictions.tolist()).encode())


# --- tables ----------------------------------------------------------------------------------


def _beside(results: Results, paper: Published | None) -> dict[str, tuple[float, ...]]:
    """The paper's numbers by our rows: one on CLEVR, two on CLEVR-Humans."""
    if paper and results.origin == "CLEVR":
        theirs = zip(COLUMNS, paper.columns, strict=False)  # an ablation's are not known
        return {"Overall": (paper.overall,), **{name: (value,) for name, value in theirs}}
    if paper and paper.humans and results.origin == "CLEVR-Humans":
        return {"Overall": paper.humans}
    return {}


def _by_column(results: Results, beside: Mapping[str, tuple[float, ...]]) -> Table:
    table = start_table("", "", "accuracy", "95% interval", "questions")
    if len(beside.get("Overall", ())) == 1:
        table.add_column("in the paper", justify="right")
    elif beside:
        table.add_column("in the paper,\nbefore tuning", justify="right")
        table.add_column("\nand after", justify="right")
    for name, share in {"Overall": results.overall, **results.columns}.items():
        if share.count:
            low, high = share.interval
            table.add_row(
                Text(name, style="bold" if name == "Overall" else ""),
                _percent(share),
                f"{100 * low:.2f} – {100 * high:.2f}",
                f"{share.count:,}",
                *(f"{value:.1f}" for value in beside.get(name, ())),
            )
    return table


def _by_length(results: Results) -> Table:
    table = start_table("By length of the program", "steps", "accuracy", "questions")
    for length, share in results.lengths.items():
        table.add_row(f"{length:5}", _percent(share), f"{share.count:,}")
    return table


def _errors(results: Results) -> Table:
    table = start_table("Most frequent errors", "answered", "times")
    for right, given, times in results.confusions()[:MOST]:
        table.add_row(Text(f"{given} for {right}"), f"{times:,}")
    return table


def _counting(off_by_one: Share) -> str:
    right, count = off_by_one.right, off_by_one.count
    return f"Of {count:,} wrong counts, {right:,} are off by one ({_percent(off_by_one)}%)."


def _by_distance(results: Results) -> Table:
    """Too low and too high apart: what is hidden makes a count too low."""
    errors = results.count_errors
    table = start_table("How far wrong counts are off", "off by", "too low", "too high", "times")
    for far, name in ((1, "1"), (2, "2"), (3, "3 or more")):
        times = [(off, n) for off, n in errors.items() if off and min(abs(off), 3) == far]
        low, high = (sum(n for off, n in times if (off < 0) is below) for below in (True, False))
        if times:
            table.add_row(name, f"{low:,}", f"{high:,}", f"{low + high:,}")
    if None in errors:
        table.add_row("no number", "", "", f"{errors[None]:,}")
    return table


def _weakest_families(results: Results) -> Table:
    weakest = sorted(results.families.items(), key=lambda item: (item[1].value, item[0]))[:MOST]
    title = f"The weakest of {len(results.families)} families"
    table = start_table(title, "family", "accuracy", "questions")
    table.add_column("which asks, for example")
    for number, share in weakest:
        table.add_row(f"{number:6}", _percent(share), f"{share.count:,}", _asked(number))
    return table


def _asked(family: int) -> Text:
    """The shortest text of a family, its slots left open."""
    phrases = [phrase for text in CATALOGUE[family].texts for phrase in text]
    shortest = min(phrases, key=lambda phrase: len(phrase.pattern))
    return Text(shortest.pattern % tuple(f"<{slot[0]}>{slot[1:]}" for slot in shortest.slots))


def start_table(title: str, first: str, *numbers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _percent(share: Share) -> str:
    return f"{100 * share.value:.2f}"
