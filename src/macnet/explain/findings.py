"""What was found about a network's attention, for people: tables in a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from macnet.evaluation.accuracy import Share
from macnet.evaluation.report import SHORT, start_table, terminal
from macnet.explain.agreement import ANOTHER, OWN, RANDOM, SOURCES, Agreement, Pointed

OTHERS = ("another\nquestion", "random\nweights")
"""The columns of the sources that the network's own attention is compared with."""
NEAR = "– or beside"


def show(found: Agreement, *, row: str, what: str, console: Console | None = None) -> None:
    """Print where a system, by its name in the paper's table 1, looked while it was asked."""
    console = console or terminal()
    right = found.right
    about = f"{right.count:,} questions about {found.images:,} images"
    title = f"What {row} attends to on {what}: {about}, {_percent(right.value)}% answered rightly"
    console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(_pointing(found))
    console.print(_attention(found.objects))
    console.print(_by_step(found))
    for sentence in _order(found):
        console.print(Text(sentence), soft_wrap=True)


def _pointing(found: Agreement) -> Table:
    columns = "pointed\nat", "95%\ninterval", *OTHERS, "random\nplaces", "random\nobjects"
    table = _table("Objects that some step points at, %", "", *columns, "objects")
    *visited, (_, rest) = found.objects.items()
    for group in (
        {**dict(visited), NEAR: found.beside["visited"]},
        {SHORT[name]: pointed for name, pointed in found.kinds.items()},
        {f"if {how}": pointed for how, pointed in found.answered.items()},
        {"not visited": rest, NEAR: found.beside["not visited"]},
    ):
        for name, pointed in group.items():
            own = pointed.shares[OWN]
            if own.count:
                table.add_row(
                    name,
                    _percent(own.value),
                    _interval(own),
                    *(_percent(pointed.shares[source].value) for source in (ANOTHER, RANDOM)),
                    _percent(pointed.at_random_places),
                    _percent(pointed.at_random_objects),
                    f"{own.count:,}",
                )
        table.add_section()
    return table


def _attention(whose: Mapping[str, Pointed]) -> Table:
    title = "Attention of the step that gives an object most, %"
    table = _table(title, "", "attention", *OTHERS, "if even")
    for name, pointed in whose.items():
        values = (*(pointed.attention[source] for source in SOURCES), pointed.area)
        table.add_row(name, *map(_percent, values))
    return table


def _by_step(found: Agreement) -> Table:
    heads = "visited\nobjects", "other\nobjects", "ground", "favourite\nis visited"
    table = _table(
        "Where steps point, %, and where they read", "step", *heads, "reads at\n(0 to 1)"
    )
    own = found.steps[OWN]
    reading = [f"{place:.2f}" for place in found.positions[OWN]] or ["–"] * len(own)
    steps = zip(own, found.favoured[OWN], reading, strict=True)
    for number, (aim, favoured, place) in enumerate(steps, start=1):
        table.add_row(f"{number:4}", *map(_percent, (*aim, favoured)), place)
    table.add_section()
    for source, name in zip(SOURCES, ("all", *OTHERS), strict=True):
        aims = found.steps[source]
        columns = *zip(*aims, strict=True), found.favoured[source]
        means = (math.fsum(values) / len(aims) for values in columns)
        table.add_row(name.replace("\n", " "), *map(_percent, means))
    table.add_row("at random", *map(_percent, (*found.at_random, found.visited)))
    return table


def _order(found: Agreement) -> list[str]:
    own, most, backwards = found.order[OWN], found.order_of_most[OWN], found.backwards[OWN]
    sentences = [
        f"{found.links:,} objects lead a program to another one. Where steps point at both, at one "
        f"of them first ({own.count:,} times), it is the leading one in {_told(own)}; for another "
        f"question in {_told(found.order[ANOTHER])}, with random weights in "
        f"{_told(found.order[RANDOM])}, by chance in 50%. The step that attends most to "
        f"the leading one comes first in {_told(most)}; with random weights in "
        f"{_percent(found.order_of_most[RANDOM].value)}%."
    ]
    if backwards.count:
        sentences.append(
            f"Of {backwards.count:,} questions, {_told(backwards)} are read from the end "
            f"backwards, all in all; with random weights "
            f"{_percent(found.backwards[RANDOM].value)}%."
        )
    return sentences


def _table(title: str, first: str, *numbers: str) -> Table:
    table = start_table(title, first, *numbers)
    table.collapse_padding, table.pad_edge = True, False  # to fit into 80 columns
    return table


def _told(share: Share) -> str:
    if not share.count:
        return "–"
    return f"{_percent(share.value)}% ({_interval(share)})"


def _interval(share: Share) -> str:
    low, high = share.interval
    return f"{100 * low:.1f} – {100 * high:.1f}"


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f}"
