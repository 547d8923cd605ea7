"""The command that asks."""

from __future__ import annotations

import atexit
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import tyro

from macnet.cli.options import (
    PLAIN,
    Device,
    File,
    Number,
    Somewhere,
    choose_device,
    refuse_below_one,
    refuse_given,
)
from macnet.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from macnet.explain.picture import Picture
    from macnet.explain.reply import Reply

Thought = TypeVar("Thought")  # a reply, or an explanation
SIZE = 480, 320  # of a fresh scene, as CLEVR has it
SEEDS = 1_000_000  # to choose from; more would be long to type again
BAR = 40  # signs, for an answer that is certain


@dataclass(frozen=True)
class Fresh:
    """Without IMAGE, a scene is drawn to ask about."""

    seed: Number = None
    """Of the scene: the same draws the same. If not given, any."""
    save: File = None
    """The file to draw it into, a PNG; scene-SEED.png if not given."""


class Drawing(NamedTuple):
    """A fresh scene, and the file that it is drawn into."""

    seed: int
    path: Path


Image = Annotated[str | None, tyro.conf.arg(metavar="[IMAGE]", help_behavior_hint="")]
Question = Annotated[str | None, tyro.conf.arg(metavar="QUESTION", help_behavior_hint="")]


def ask(
    image: Image = None,
    question: Question = None,
    /,
    *,
    fresh: Annotated[Fresh, *PLAIN],
    model: Somewhere = None,
    top: int = 5,
    device: Device = "cpu",
) -> None:
    """Ask a trained network about a picture.

    The answer stands alone on the first line; below, how likely the network finds which answers.
    Words it has never read are named, and read as those that were likely meant, if there are any.

    Args:
        image: A picture of any kind and size; if not given, a scene is drawn.
        question: What to ask about it, in quotes.
        model: Folder of a run, or its best.safetensors; the network that is shipped if not given.
        top: How many answers to show.
        device: Where the network runs; a GPU takes longer to wake up than a CPU to answer.
    """
    subject, asked = check(image, question, fresh)
    refuse_below_one("--top", top)
    with in_a_hurry():
        from macnet.explain.model import open_model

        network = open_model(model, choose_device(device))
        reply = think(network.ask, subject, asked)
    tell_unknown(reply)
    print(reply.answer, *_bars(reply, top), sep="\n")


@contextmanager
def in_a_hurry() -> Iterator[None]:
    """For a process that loads torch in order to use it for a tenth of a second.

    torch is a crowd of objects and no garbage, and to look for some takes Python half a second,
    most of it at the end. One thread is 0.05 s slower than two on a machine that is idle, and where
    others work too, two that wait for each other at every small product are a second slower.
    """
    atexit.register(gc.freeze)
    gc.disable()
    from macnet.workers import one_thread

    try:
        with one_thread():
            yield
    finally:
        gc.enable()


# --- what is asked, and about what -----------------------------------------------------------


def check(first: str | None, second: str | None, fresh: Fresh) -> tuple[str | Drawing, str]:
    """The image, or else what to draw; and the question."""
    image, question = _told_apart(first, second)
    if image is not None:
        refuse_given(fresh, f"{image} is what to ask about")
        return image, question
    if fresh.save is not None and fresh.save.suffix.lower() != ".png":
        raise InputError(f"--save is {fresh.save}; its name must end in .png")
    seed = random.randrange(SEEDS) if fresh.seed is None else fresh.seed
    return Drawing(seed, fresh.save or Path(f"scene-{seed}.png")), question


def _told_apart(first: str | None, second: str | None) -> tuple[str | None, str]:
    """What stands alone is a question."""
    if first is None:
        raise InputError('there is no question; ask one, such as "What color is the cube?"')
    if second is not None:
        return first, second
    if os.path.isfile(first):  # noqa: PTH113  a question may be too long for Path.is_file
        raise InputError(f"{first}: this is a file; put a question about it, in quotes, after it")
    if (guess_type(first)[0] or "").startswith("image/"):
        raise InputError(f"{first}: there is no such file, and no question about it")
    return None, first


def think(
    about: Callable[[Picture, str], Thought], subject: str | Drawing, question: str
) -> Thought:
    """About an image, or about a fresh scene, which is kept if there was something to say."""
    if isinstance(subject, str):
        return about(subject, question)
    scene = _draw(subject.seed)
    thought = about(scene, question)
    _save(subject, scene)
    return thought


def _draw(seed: int) -> np.ndarray:
    """(H, W, 3) uint8: the first scene of a world's validation split."""
    from macnet.clevr.render import render
    from macnet.clevr.world import World, make_scenes

    # Never on a GPU, which draws a few pixels otherwise: a seed is to mean one picture.
    scenes = make_scenes(World(seed, width=SIZE[0], height=SIZE[1]), "val", [0], "cpu")
    return render(scenes, *SIZE, "fast", "cpu").images[0].numpy()


def _save(drawing: Drawing, scene: np.ndarray) -> None:
    from macnet.clevr.pictures import save_picture

    seed, path = drawing
    path.parent.mkdir(parents=True, exist_ok=True)
    save_picture(path, scene)
    print(f"{path}: a fresh scene; --seed {seed} draws it again", file=sys.stderr)


# --- what is said ----------------------------------------------------------------------------


def tell_unknown(reply: Reply) -> None:
    for note in reply.notes:
        print(note, file=sys.stderr)


def _bars(reply: Reply, top: int) -> list[str]:
    likeliest = list(reply.probabilities.items())[:top]
    width = max(len(answer) for answer, _ in likeliest)
    return [
        f"  {answer:{width}} {share:6.1%} {'█' * round(BAR * share)}".rstrip()
        for answer, share in likeliest
    ]
