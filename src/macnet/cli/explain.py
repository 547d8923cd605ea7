"""The command that shows how a network comes to its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from macnet.cli.ask import Fresh, Image, Question, check, in_a_hurry, tell_unknown, think
from macnet.cli.options import PLAIN, Device, Somewhere, choose_device
from macnet.errors import InputError

KINDS = ".png", ".gif", ".html"


def explain(
    image: Image = None,
    question: Question = None,
    /,
    *,
    fresh: Annotated[Fresh, *PLAIN],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE.png|.gif|.html")],
    model: Somewhere = None,
    device: Device = "cpu",
) -> None:
    """Show what a trained network attends to on the way to its answer.

    For each step the words it read and the places it looked at, what it kept of its memory and
    recalled of earlier steps where it can; at the end the answer. A PNG shows all steps at once, a
    GIF one after another, an HTML page lets one go through them, and needs no network.

    Args:
        image: A picture of any kind and size; if not given, a scene is drawn.
        question: What to ask about it, in quotes.
        out: The file to write; its name says which of the three.
        model: Folder of a run, or its best.safetensors; the network that is shipped if not given.
        device: Where the network runs.
    """
    subject, asked = check(image, question, fresh)
    if out.suffix.lower() not in KINDS:
        raise InputError(f"--out is {out}; its name must end in .png, .gif or .html")
    if out.is_dir():
        raise InputError(f"--out is {out}, which is a folder; name a file")
    picture = Path(subject) if isinstance(subject, str) else subject.path
    if out.resolve() == picture.resolve():
        raise InputError(f"--out is {out}, which is the picture itself; name another file")
    out.parent.mkdir(parents=True, exist_ok=True)

    with in_a_hurry():
        from macnet.explain.figure import write_gif, write_png
        from macnet.explain.model import open_model
        from macnet.explain.page import write_page

        network = open_model(model, choose_device(device))
        explanation = think(network.explain, subject, asked)
    tell_unknown(explanation.reply)
    write = dict(zip(KINDS, (write_png, write_gif, write_page), strict=True))
    write[out.suffix.lower()](explanation, out)
    print(explanation.reply.answer)
    steps = len(explanation.looks)
    print(f"{out}: how it came to that, in {steps} step{'s' * (steps > 1)}")
