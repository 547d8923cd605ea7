"""The command that shows what a network attends to."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from macnet.cli.ask import (
    Image,
    NewScene,
    Question,
    answer_about,
    fast_startup,
    parse_arguments,
    print_notes,
)
from macnet.cli.options import PLAIN, Device, Somewhere
from macnet.errors import InputError

if TYPE_CHECKING:
    from macnet.explain.grouping import StepGroup
    from macnet.explain.reply import Explanation

SUFFIXES = ".png", ".svg", ".pdf", ".gif", ".html"
MAX_STEPS = 1000  # more than any network has, and few enough to be listed


def explain(
    image: Image = None,
    question: Question = None,
    /,
    *,
    new_scene: Annotated[NewScene, *PLAIN],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.png|.svg|.pdf|.gif|.html")],
    steps: Annotated[
        str | None, tyro.conf.arg(metavar="all|1,10-12", help_behavior_hint="")
    ] = None,
    keep_resting: Annotated[
        bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")
    ] = False,
    program: Annotated[
        str | None, tyro.conf.arg(metavar="FUNCTIONS", help_behavior_hint="")
    ] = None,
    model: Somewhere = None,
    device: Device = "cpu",
) -> None:
    """Show what a trained network attends to on the way to its answer.

    It shows the chain of reasoning that led to the answer: which words a step reads and where it
    looks in the image. Steps that are alike are shown as one, the six that tell most are large, and
    those that a memory gate skips are idle. Of a network that writes programs it shows the program,
    module by module. A PNG, SVG or PDF is a figure, a GIF an animation, an HTML page is interactive
    and works offline.

    Args:
        image: An image of any kind and size; if not given, a scene is generated.
        question: The question about it, in quotes.
        out: The file to write; its name decides which of these it is.
        steps: The steps to show large, each by itself; those that tell most if not given.
        keep_resting: Show all of a step's attention. If not given, its resting map is taken off,
            which is what it attends to on average for other questions about the image.
        program: The true program, to be shown too, such as "count filter_color[red] scene".
        model: Folder of a run, or its best.safetensors; the shipped network if not given.
        device: Where the network runs.
    """
    subject, asked = parse_arguments(image, question, new_scene)
    suffix = out.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"--out is {out}; its name must end in {', '.join(SUFFIXES)}")
    chosen = "--steps" if steps is not None else "--keep-resting" if keep_resting else None
    if chosen and suffix == ".html":
        raise InputError(f"{chosen} is given, but a page lets its reader choose; leave it out")
    numbers = None if steps is None else _parse_steps(steps)
    if out.is_dir():
        raise InputError(f"--out is {out}, which is a folder; name a file")
    source = Path(subject) if isinstance(subject, str) else subject.path
    if out.resolve() == source.resolve():
        raise InputError(f"--out is {out}, which is the image itself; name another file")
    out.parent.mkdir(parents=True, exist_ok=True)

    with fast_startup():
        from macnet.devices import choose_device
        from macnet.explain.animation import write_gif
        from macnet.explain.figure import write_figure
        from macnet.explain.model import load
        from macnet.explain.page import write_page

        network = load(model, device=choose_device(device))
        explanation = answer_about(partial(network.explain, program=program), subject, asked)
    print_notes(explanation.reply)
    if suffix == ".html":
        write_page(explanation, out)
    else:
        if chosen and explanation.modules:
            raise InputError(f"{chosen} is given, but the network writes programs; leave it out")
        shown = explanation if keep_resting else explanation.beyond_resting
        write = write_gif if suffix == ".gif" else write_figure
        write(shown, out, _choose(shown, numbers))
    print(explanation.reply.answer)
    print(f"{out}: {_summary(explanation)}")


def _parse_steps(text: str) -> list[int] | Literal["all"]:
    """Numbers of steps, such as those of "1,10-12"."""
    if text == "all":
        return "all"
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        bounds = [first, last] if dash else [first, first]
        if not all(bound.strip().isdecimal() and len(bound) < 9 for bound in bounds):
            raise InputError(f"--steps is {text:.60}; give all, or numbers such as 1,10-12")
        low, high = map(int, bounds)
        if not 1 <= low <= high:
            raise InputError(f"--steps has {part:.60}; steps are counted from 1, upwards")
        if high > MAX_STEPS:
            raise InputError(f"--steps has {high}; no network has so many steps")
        numbers += range(low, high + 1)
    return sorted(set(numbers))


def _choose(
    explanation: Explanation, numbers: list[int] | Literal["all"] | None
) -> list[StepGroup] | None:
    """The steps of these numbers, each by itself; None leaves the choice to the figure."""
    from macnet.explain.grouping import merge_steps

    if numbers is None:
        return None
    count = len(explanation.steps)
    if numbers == "all":
        numbers = [*range(1, count + 1)]
    if numbers[-1] > count:
        raise InputError(f"--steps has {numbers[-1]}; choose from 1 to {count}, for it has no more")
    return [merge_steps(explanation.steps, [number]) for number in numbers]


def _summary(explanation: Explanation) -> str:
    """What is in the file."""
    from macnet.explain.program import verdict

    count = len(explanation.panels)
    if not explanation.modules:
        return f"its attention in {count} step{'s' * (count > 1)}"
    told = f"its program of {count} module{'s' * (count > 1)}"
    found = verdict(explanation)
    return f"{told}, which {found}" if found else told
