"""Measurement of a network's attention in the generated world, where all objects are known.

if __name__ == "__main__":  # workers are spawned, and import this file again
    print(measure_attention("runs/pixels", world_images=100))
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from macnet import devices
from macnet.checkpoint import RunLike, TrainedNetwork, load_trained
from macnet.clevr.scene import MAX_OBJECTS, MIN_OBJECTS
from macnet.clevr.world import World, check_families, check_num_objects
from macnet.data.sources import GeneratedDataset
from macnet.distributed import is_rank_zero, process_group
from macnet.evaluation.accuracy import Proportion, to_json
from macnet.evaluation.report import new_table, terminal, to_text
from macnet.explain.agreement import (
    NETWORK,
    SOURCES,
    UNTRAINED,
    Agreement,
    Pointing,
    StepSummary,
)
from macnet.explain.comparison import measure
from macnet.explain.masking import PAINTED_OUT, Masking, MaskingTest
from macnet.explain.pointing import collect_attention, trained_and_untrained
from macnet.explain.reply import IDLE

OTHER_SOURCES = ("another\nquestion", "random\nweights")
"""Headings of the sources that the network's own attention is compared with."""
WITH_MARGIN = "– or beside"


@dataclass(frozen=True)
class AttentionReport:
    """The agreement of a network's attention with the programs of questions."""

    network: TrainedNetwork
    world: World
    split: str
    agreement: Agreement
    """Agreement of all of the attention."""
    as_shown: Agreement | None
    """The same of attention as `macnet explain` shows it: beyond resting maps, and each step
    counted for what it changed; None if nothing is taken off and there is no gate."""
    has_gate: bool
    """Whether the network has a memory gate, so that steps may be idle."""
    masking: Masking
    """Answers without the objects that steps point at, and without others."""
    device: str
    seconds: float

    def to_record(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            **self.network.to_record(),
            "data": {"questions": self._name, "world": self.world.to_record()},
            "device": self.device,
            "seconds": self.seconds,
            "attention": self.agreement.to_record(),
            "as_shown": to_json(self.as_shown),
            "masking": self.masking.to_record(),
        }

    def show(self, console: Console | None = None) -> None:
        """Print the report as tables, by default to standard output."""
        row = self.network.system.label
        console = console or terminal()
        show(self.agreement, row=row, what=self._name, console=console)
        if self.as_shown is not None:
            show_as_shown(self.as_shown, has_gate=self.has_gate, console=console)
        show_masking(self.masking, console)

    def __str__(self) -> str:
        return to_text(self.show)

    @property
    def _name(self) -> str:
        return f"{self.split} of the generated {self.world}"


def measure_attention(
    run: RunLike = None,
    *,
    split: str = "val",
    world_images: int = 500,
    world_seed: int = 1,
    world_num_objects: tuple[int, int] = (MIN_OBJECTS, MAX_OBJECTS),
    world_families: tuple[str, ...] = (),
    device: str = "auto",
    workers: int | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> AttentionReport:
    """Measure whether a network attends to the objects that questions ask about.

    Args:
        run: The run, by its folder, a file of weights or a `Run`; None is the shipped network.
        split: The split of the generated world.
        world_images: The number of generated images.
        world_seed: The seed of the generated world.
        world_num_objects: The smallest and the largest number of objects in a generated scene.
        world_families: Generate questions of these groups of families only, such as zero_hop and
            one_hop. Only words of these must be in the network's vocabulary.
        device: auto, cpu, cuda or cuda:N.
        workers: The number of processes that generate the world; by default one per core.
        log: Called with a line that says what is measured, before the work begins.
    """
    source = GeneratedDataset(
        world_seed,
        split,
        world_images,
        check_num_objects(world_num_objects, "world_num_objects"),
        check_families(world_families, "world_families"),
    )
    device, workers = devices.choose_device(device), devices.choose_share_of_workers(workers)
    with process_group(device) as own:  # it takes so little that it is not shared out
        trained = load_trained(run)
        spec = trained.data_spec
        tracers = trained_and_untrained(trained, own)
        world = source.world((spec.width, spec.height))
        if is_rank_zero():
            log(f"the attention of {trained.path} is measured on {source}, on {device}")
        start, masking = time.monotonic(), MaskingTest(tracers[0])
        truth, readings = collect_attention(
            tracers,
            trained.vocabulary,
            world,
            images=world_images,
            split=split,
            device=own,
            workers=workers,
            name=trained.path,
            on_batch=masking.add,
        )
        plain, as_shown = zip(*readings, strict=True)
        return AttentionReport(
            network=trained,
            world=world,
            split=split,
            agreement=measure(truth, *plain),
            as_shown=None if None in as_shown else measure(truth, *as_shown),
            has_gate=plain[0].has_gate,
            masking=masking.result(),
            device=device,
            seconds=time.monotonic() - start,
        )


# --- tables ----------------------------------------------------------------------------------


def show(found: Agreement, *, row: str, what: str, console: Console | None = None) -> None:
    """Print what a system, named by its row in the paper's table 1, attends to."""
    console = console or terminal()
    asked = f"{found.answers.total:,} questions about {found.images:,} images"
    accuracy = f"{found.answers.percent(1)}% answered correctly"
    title = f"What {row} attends to on {what}: {asked}, {accuracy}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    _show_reading(found, console)


def show_as_shown(found: Agreement, *, has_gate: bool, console: Console | None = None) -> None:
    """Print the reading of attention as `macnet explain` shows it."""
    console = console or terminal()
    title = "\nAs macnet explain shows it: attention beyond the resting map of each step"
    if has_gate:
        title += f", which counts for how far it moves the memory (idle if less than {IDLE:.0%})"
    console.print(Text(title, style="bold"), soft_wrap=True)
    _show_reading(found, console, with_shares=True, with_changes=has_gate)


def show_masking(found: Masking, console: Console | None = None) -> None:
    """Print how a network answers without some objects, if there were questions to ask."""
    console = console or terminal()
    whole, without, control = (found.accuracy[name] for name in PAINTED_OUT)
    if not whole.total:
        return
    title = "\nAnswers without some objects, %"
    table = _table(title, "painted out", "accuracy", "95%\ninterval", "pixels")
    for name, share in found.accuracy.items():
        area = _percent(found.area[name])
        table.add_row(name, share.percent(1), share.percent_interval(1), area)
    console.print(table)
    sentence = (
        f"Of {whole.total:,} questions, each about another image, {_with_interval(whole)} are "
        f"answered correctly; {_with_interval(without)} if the objects that steps point at "
        f"are painted out, {_with_interval(control)} if as many others are."
    )
    console.print(Text(sentence), soft_wrap=True)


def _show_reading(
    found: Agreement, console: Console, *, with_shares: bool = False, with_changes: bool = False
) -> None:
    console.print(_pointing(found))
    console.print(_attention(found.objects))
    console.print(_by_step(found, with_shares, with_changes))
    for sentence in (*_order(found), _travel(found)):
        console.print(Text(sentence), soft_wrap=True)


def _pointing(found: Agreement) -> Table:
    columns = "pointed\nat", "95%\ninterval", *OTHER_SOURCES, "random\ncells", "random\nobjects"
    table = _table("Objects that some step points at, %", "", *columns, "objects")
    *referenced, (_, rest) = found.objects.items()
    for rows in (
        {**dict(referenced), WITH_MARGIN: found.with_margin["referenced"]},
        found.groups,
        {f"if {how}": pointing for how, pointing in found.by_answer.items()},
        {"not referenced": rest, WITH_MARGIN: found.with_margin["not referenced"]},
    ):
        for name, pointing in rows.items():
            own = pointing.hits[NETWORK]
            if own.total:
                table.add_row(
                    name,
                    own.percent(1),
                    own.percent_interval(1),
                    *(pointing.hits[source].percent(1) for source in SOURCES[1:]),
                    _percent(pointing.random_cells),
                    _percent(pointing.random_objects),
                    f"{own.total:,}",
                )
        table.add_section()
    return table


def _attention(objects: Mapping[str, Pointing]) -> Table:
    title = "Attention of the step that gives an object most, %"
    table = _table(title, "", "attention", *OTHER_SOURCES, "if even")
    for name, pointing in objects.items():
        values = (*(pointing.attention[source] for source in SOURCES), pointing.area)
        table.add_row(name, *map(_percent, values))
    return table


def _by_step(found: Agreement, with_shares: bool, with_changes: bool) -> Table:
    heads = ["refer-\nenced\nobjects", "other\nobjects", "ground", "top one\nrefer-\nenced"]
    heads += ["share"] * with_shares + ["idle", "change"] * with_changes
    positions = found.positions[NETWORK]
    title = "Where steps point, %"
    if positions:
        title += ", and where they read"
        heads.append("reads at\n(0 to 1)")
    table = _table(title, "step", *heads)

    def numbers(step: StepSummary) -> list[str]:
        shown = [*step.targets, step.top_object_referenced, *[step.share] * with_shares]
        return [*map(_percent, shown + [step.idle, step.change] * with_changes)]

    columns = (
        *(found.steps, found.top_object_referenced, found.share),
        *(found.idle, found.resting, found.change),
    )
    steps = map(StepSummary, *(column[NETWORK] for column in columns))
    for number, step in enumerate(steps, start=1):
        position = map(_fraction, positions[number - 1 : number])  # there may be none
        table.add_row(f"{number:4}", *numbers(step), *position)
    table.add_section()
    for source, name in zip(SOURCES, ("all", *OTHER_SOURCES), strict=True):
        table.add_row(name.replace("\n", " "), *numbers(found.all_steps[source]))
    table.add_row("at random", *map(_percent, (*found.random_cell, found.random_object)))
    return table


def _order(found: Agreement) -> list[str]:
    order, by_attention, backwards = found.order, found.order_by_attention, found.reads_backwards
    sentences = []
    if found.hops:
        own, other, untrained = (_with_interval(order[source]) for source in SOURCES)
        both, *of_others = (_with_interval(found.both_pointed_at[source]) for source in SOURCES)
        sentences.append(
            f"{found.hops:,} times, an object leads a program to another one. Steps point at both "
            f"in {both}; for another question in {of_others[0]}, with random weights in "
            f"{of_others[1]}. Where they do, at one of them first ({order[NETWORK].total:,} "
            f"times), it is the leading one in {own}; for another question in {other}, with random "
            f"weights in {untrained}, by chance in 50%. The step that attends most to the leading "
            f"one comes first in {_with_interval(by_attention[NETWORK])}; with random weights in "
            f"{_with_interval(by_attention[UNTRAINED])}."
        )
    if backwards[NETWORK].total:
        sentences.append(
            f"Of {backwards[NETWORK].total:,} questions, {_with_interval(backwards[NETWORK])} are "
            "read from the end backwards, all in all; with random weights "
            f"{_with_interval(backwards[UNTRAINED])}."
        )
    return sentences


def _travel(found: Agreement) -> str:
    def told(travel: Mapping[str, float]) -> str:
        return f"{travel[NETWORK]:.2f} bits (with random weights {travel[UNTRAINED]:.2f})"

    words = f" and to words {told(found.word_travel)}" if found.positions[NETWORK] else ""
    return (
        "In the course of a question, by Jensen-Shannon divergence from step to step, attention to "
        f"the image travels {told(found.image_travel)}{words}."
    )


def _table(title: str, first: str, *numbers: str) -> Table:
    table = new_table(title, first, *numbers)
    table.collapse_padding, table.pad_edge = True, False  # to fit into 80 columns
    return table


def _with_interval(found: Proportion) -> str:
    return f"{found.percent(1)}% ({found.percent_interval(1)})" if found.total else "–"


def _fraction(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f}"
