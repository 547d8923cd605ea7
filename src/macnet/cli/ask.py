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
    check_not_given,
    check_positive,
)
from macnet.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from macnet.explain.image import ImageLike
    from macnet.explain.reply import Reply

Result = TypeVar("Result")  # a reply, or an explanation
SIZE = 480, 320  # of a generated image, as in CLEVR
SEEDS = 1_000_000  # to choose from; more would be long to type again
BAR_WIDTH = 40  # characters, for a probability of 1


@dataclass(frozen=True)
class NewScene:
    """Without IMAGE, a scene is generated and rendered."""

    seed: Number = None
    """The seed of the scene; a random one if not given."""
    save: File = None
    """The PNG file to save its image in; scene-SEED.png if not given."""


class SceneFile(NamedTuple):
    """The seed of a scene to generate, and the file for its image."""

    seed: int
    path: Path


Image = Annotated[str | None, tyro.conf.arg(metavar="[IMAGE]", help_behavior_hint="")]
Question = Annotated[str | None, tyro.conf.arg(metavar="QUESTION", help_behavior_hint="")]


def ask(
    image: Image = None,
    question: Question = None,
    /,
    *,
    new_scene: Annotated[NewScene, *PLAIN],
    model: Somewhere = None,
    top: int = 5,
    device: Device = "cpu",
) -> None:
    """Ask a trained network a question about an image.

    The first line is the answer alone; below are the most probable answers. Words that are not in
    the network's vocabulary are named, and read as the known words that were likely meant.

    Args:
        image: An image of any kind and size; if not given, a scene is generated.
        question: The question about it, in quotes.
        model: Folder of a run, or its best.safetensors; the shipped network if not given.
        top: The number of answers to show.
        device: Where the network runs; a GPU takes longer to start than a CPU to answer.
    """
    subject, asked = parse_arguments(image, question, new_scene)
    check_positive("--top", top)
    with fast_startup():
        from macnet.devices import choose_device
        from macnet.explain.model import load

        network = load(model, device=choose_device(device))
        reply = answer_about(network.ask, subject, asked)
    print_notes(reply)
    print(reply.answer, *_bars(reply, top), sep="\n")


@contextmanager
def fast_startup() -> Iterator[None]:
    """For a process that loads torch in order to use it for a tenth of a second.

    torch has many objects and no garbage, and to look for some takes Python half a second, most of
    it at exit.
    """
    atexit.register(gc.freeze)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- the image and the question --------------------------------------------------------------


def parse_arguments(
    first: str | None, second: str | None, scene: NewScene
) -> tuple[str | SceneFile, str]:
    """The image, or the scene to generate; and the question."""
    image, question = _image_and_question(first, second)
    if image is not None:
        check_not_given(scene, f"{image} is what to ask about")
        return image, question
    if scene.save is not None and scene.save.suffix.lower() != ".png":
        raise InputError(f"--save is {scene.save}; its name must end in .png")
    seed = random.randrange(SEEDS) if scene.seed is None else scene.seed
    return SceneFile(seed, scene.save or Path(f"scene-{seed}.png")), question


def _image_and_question(first: str | None, second: str | None) -> tuple[str | None, str]:
    """A single argument is the question."""
    if first is None:
        raise InputError('there is no question; ask one, such as "What color is the cube?"')
    if second is not None:
        return first, second
    if os.path.isfile(first):  # noqa: PTH113  a question may be too long for Path.is_file
        raise InputError(f"{first}: this is a file; put a question about it, in quotes, after it")
    if (guess_type(first)[0] or "").startswith("image/"):
        raise InputError(f"{first}: there is no such file, and no question about it")
    return None, first


def answer_about(
    answer: Callable[[ImageLike, str], Result], subject: str | SceneFile, question: str
) -> Result:
    """The answer about an image, or about a new scene, which is saved once it is answered."""
    if isinstance(subject, str):
        return answer(subject, question)
    from macnet.clevr.images import save_image

    seed, path = subject
    image = _render_scene(seed)
    result = answer(image, question)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_image(path, image)
    print(f"{path}: a new scene; --seed {seed} generates it again", file=sys.stderr)
    return result


def _render_scene(seed: int) -> np.ndarray:
    """(H, W, 3) uint8: the first scene of a world's validation split."""
    from macnet.clevr.render import render
    from macnet.clevr.world import World, generate_scenes
    from macnet.workers import one_thread

    # Never on a GPU, which renders a few pixels otherwise: a seed is to mean one image. On a busy
    # machine, threads that wait for each other make it slower.
    with one_thread():
        scenes = generate_scenes(World(seed, width=SIZE[0], height=SIZE[1]), "val", [0], "cpu")
        return render(scenes, *SIZE, "fast", "cpu").images[0].numpy()


# --- the answer ------------------------------------------------------------------------------


def print_notes(reply: Reply) -> None:
    """Print the notes on unknown words, on stderr."""
    for note in reply.notes:
        print(note, file=sys.stderr)


def _bars(reply: Reply, top: int) -> list[str]:
    most_probable = list(reply.probabilities.items())[:top]
    width = max(len(answer) for answer, _ in most_probable)
    return [
        f"  {answer:{width}} {share:6.1%} {'█' * round(BAR_WIDTH * share)}".rstrip()
        for answer, share in most_probable
    ]
