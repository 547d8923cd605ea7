"""The command that shows what a network attends to."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from macnet.explain.reply import Explanation

SUFFIXES = ".png", ".gif", ".html"


def explain(
    image: Image = None,
    question: Question = None,
    /,
    *,
    new_scene: Annotated[NewScene, *PLAIN],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.png|.gif|.html")],
    program: Annotated[
        str | None, tyro.conf.arg(metavar="FUNCTIONS", help_behavior_hint="")
    ] = None,
    model: Somewhere = None,
    device: Device = "cpu",
) -> None:
    """Show what a trained network attends to on the way to its answer.

    For each step the words it reads and where it looks in the image, what it keeps of its memory
    and recalls of earlier steps if it can; at the end the answer. Of a network that writes programs
    it shows the program, module by module. A PNG shows all steps at once, a GIF is an animation of
    them, an HTML page is interactive and works offline.

    Args:
        image: An image of any kind and size; if not given, a scene is generated.
        question: The question about it, in quotes.
        out: The file to write; its name decides which of the three.
        program: The true program, to be shown too, such as "count filter_color[red] scene".
        model: Folder of a run, or its best.safetensors; the shipped network if not given.
        device: Where the network runs.
    """
    subject, asked = parse_arguments(image, question, new_scene)
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out is {out}; its name must end in .png, .gif or .html")
    if out.is_dir():
        raise InputError(f"--out is {out}, which is a folder; name a file")
    source = Path(subject) if isinstance(subject, str) else subject.path
    if out.resolve() == source.resolve():
        raise InputError(f"--out is {out}, which is the image itself; name another file")
    out.parent.mkdir(parents=True, exist_ok=True)

    with fast_startup():
        from macnet.devices import choose_device
        from macnet.explain.figure import write_gif, write_png
        from macnet.explain.model import load
        from macnet.explain.page import write_page

        network = load(model, device=choose_device(device))
        explanation = answer_about(partial(network.explain, program=program), subject, asked)
    print_notes(explanation.reply)
    write = dict(zip(SUFFIXES, (write_png, write_gif, write_page), strict=True))
    write[out.suffix.lower()](explanation, out)
    print(explanation.reply.answer)
    print(f"{out}: {_summary(explanation)}")


def _summary(explanation: Explanation) -> str:
    """What is in the file."""
    from macnet.explain.program import verdict

    count = len(explanation.panels)
    if not explanation.modules:
        return f"its attention in {count} step{'s' * (count > 1)}"
    told = f"its program of {count} module{'s' * (count > 1)}"
    found = verdict(explanation)
    return f"{told}, which {found}" if found else told
