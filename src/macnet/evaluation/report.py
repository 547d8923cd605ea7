"""Results for people: tables in a terminal, a line during training, a file of predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from macnet.clevr.families import QUESTION_FAMILIES
from macnet.data.formats import CLEVR
from macnet.evaluation.accuracy import Results
from macnet.files import atomic_file
from macnet.paper import COLUMNS, PublishedAccuracy

MAX_ROWS = 10  # of tables whose remaining rows are only in the JSON
FILE_WIDTH = 1000  # columns where there is no terminal: nothing is broken or left out there

NOTES: Mapping[str, str] = {
    "generated": "A generated world: these numbers do not compare with any on CLEVR.",
    "unknown": "The file does not tell whether this is CLEVR, so no number of the paper is beside.",
}
"""By origin of the questions."""
PAPER_COLUMNS = ((), ("in the paper",), ("in the paper,\nbefore tuning", "\nand after"))
"""Headings by the number of accuracies that the paper has: one, or before and after tuning."""
PAPER_DATASETS = ("CLEVR", "CLEVR-Humans")
NO_NUMBER = "The paper's tables have no number for this network on this share of the training data."


def summary_line(results: Results, split: str) -> str:
    """One line for logs: `val 87.12% | Count 75.1, Exist 90.2, Compare Numbers 85.0`."""
    groups = ", ".join(
        f"{name} {group.percent(1)}" for name, group in results.groups.items() if group.total
    )
    written = f", programs {results.programs['Overall'].percent()}%" if results.programs else ""
    return f"{split} {results.overall.percent()}%{written}" + (f" | {groups}" if groups else "")


def show(
    results: Results,
    *,
    row: str,
    what: str,
    paper: PublishedAccuracy | None = None,
    note: str | None = None,
    errors: bool = True,
    console: Console | None = None,
) -> None:
    """Print the results of a system, named by its row in the paper's table 1, on a dataset.

    `paper` is printed beside them if the dataset is one of the paper's, and then `note` too.
    `errors` adds accuracy by program length and family, and the most frequent errors.
    """
    console = console or terminal()
    console.print(Text(f"{row} on {what}", style="bold"), soft_wrap=True)
    published = _published(results, paper)
    console.print(_by_group(results, published))
    if results.origin in PAPER_DATASETS:
        of_paper = f"In the paper: {paper.source}." if paper and published else NO_NUMBER
        console.print(Text(" ".join(filter(None, [of_paper, note])) + "\n"), soft_wrap=True)
    if results.origin in NOTES:
        console.print(Text(NOTES[results.origin] + "\n"), soft_wrap=True)
    if not errors:
        return
    tables = [table for table in (_by_length(results), _errors(results)) if table.row_count]
    if tables:
        console.print(Columns(tables, padding=(0, 3)))
    if (off := results.off_by_one).total:
        console.print(_by_difference(results))
        sentence = f"Of {off.total:,} wrong counts, {off.correct:,} are off by one"
        console.print(Text(f"{sentence} ({off.percent()}%).\n"), soft_wrap=True)
    if results.families:
        console.print(_weakest_families(results))


def terminal() -> Console:
    """The console of standard output; nothing is broken into lines if it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def to_text(show: Callable[[Console], None]) -> str:
    """What is printed to a console, as text."""
    console = Console(width=FILE_WIDTH, color_system=None)
    with console.capture() as captured:
        show(console)
    return captured.get().rstrip()


def write_predictions(
    path: str | PathLike[str], predictions: np.ndarray, answers: Sequence[str]
) -> None:
    """One answer a line, in the order of the questions; an empty line where none was predicted."""
    words = (*answers, "")  # the last is where UNKNOWN, −1, leads
    with atomic_file(Path(path)) as file:
        file.write("".join(f"{words[i]}\n" for i in predictions.tolist()).encode())


# --- tables ----------------------------------------------------------------------------------


def _published(results: Results, paper: PublishedAccuracy | None) -> dict[str, tuple[float, ...]]:
    """The paper's numbers by row of the table: one on CLEVR, two on CLEVR-Humans."""
    if paper and results.origin == "CLEVR":
        by_group = zip(COLUMNS, paper.columns, strict=False)  # an ablation's are not published
        return {"Overall": (paper.overall,), **{name: (value,) for name, value in by_group}}
    if paper and paper.humans and results.origin == "CLEVR-Humans":
        return {"Overall": paper.humans}
    return {}


def _by_group(results: Results, published: Mapping[str, tuple[float, ...]]) -> Table:
    paper = PAPER_COLUMNS[len(published.get("Overall", ()))]
    programs = ["programs"] if results.programs else []
    table = new_table("", "", "accuracy", "95% interval", "questions", *programs, *paper)
    for name, group in {"Overall": results.overall, **results.groups}.items():
        if group.total:
            table.add_row(
                Text(name, style="bold" if name == "Overall" else ""),
                group.percent(),
                group.percent_interval(),
                f"{group.total:,}",
                *(results.programs[name].percent() for _ in programs),
                *(f"{value:.1f}" for value in published.get(name, ())),
            )
    return table


def _by_length(results: Results) -> Table:
    table = new_table("By length of the program", "steps", "accuracy", "questions")
    for length, found in results.lengths.items():
        table.add_row(f"{length:5}", found.percent(), f"{found.total:,}")
    return table


def _errors(results: Results) -> Table:
    table = new_table("Most frequent errors", "answered", "times")
    for correct, predicted, times in results.confusions()[:MAX_ROWS]:
        table.add_row(Text(f"{predicted} for {correct}"), f"{times:,}")
    return table


def _by_difference(results: Results) -> Table:
    """Too low and too high apart: hidden objects make a count too low."""
    errors = results.count_errors
    table = new_table("How far wrong counts are off", "off by", "too low", "too high", "times")
    for far, name in ((1, "1"), (2, "2"), (3, "3 or more")):
        times = [(off, n) for off, n in errors.items() if off and min(abs(off), 3) == far]
        low, high = (sum(n for off, n in times if (off < 0) is below) for below in (True, False))
        if times:
            table.add_row(name, f"{low:,}", f"{high:,}", f"{low + high:,}")
    if None in errors:
        table.add_row("no number", "", "", f"{errors[None]:,}")
    return table


def _weakest_families(results: Results) -> Table:
    weakest = sorted(results.families.items(), key=lambda item: (item[1].value, item[0]))[:MAX_ROWS]
    title = f"The weakest of {len(results.families)} families"
    table = new_table(title, "family", "accuracy", "questions")
    table.add_column("for example")
    is_clevr = results.format.question_types == CLEVR.question_types
    for number, found in weakest:
        example = _family_example(number) if is_clevr else ""
        table.add_row(f"{number:6}", found.percent(), f"{found.total:,}", example)
    return table


def _family_example(family: int) -> Text:
    """The shortest text of a family of CLEVR's questions, its slots left open."""
    phrases = [phrase for text in QUESTION_FAMILIES[family].texts for phrase in text]
    shortest = min(phrases, key=lambda phrase: len(phrase.pattern))
    return Text(shortest.pattern % tuple(f"<{slot[0]}>{slot[1:]}" for slot in shortest.slots))


def new_table(title: str, first: str, *numbers: str) -> Table:
    """A table with a column of names, and columns of numbers."""
    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
