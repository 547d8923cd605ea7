"""A trained network to talk to.

    model = open_model()  # which is `macnet.load`
    model.ask("scene.png", "What color is the cube?").answer
    model.explain("scene.png", "What color is the cube?").looks

A word that the network has never read is named in the reply, with what was read in its place
(`data.reading` has the rule). Marks that it has never read, such as commas, are left out unnamed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from reprlib import repr as shown  # which no word can make longer than a line
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from macnet.data.reading import EMPTY, Unknown, read, typed_words
from macnet.data.vocab import MAX_WORDS, SPECIALS, UNK, Vocabulary
from macnet.errors import InputError, is_about_memory, not_finite
from macnet.explain.picture import Picture, open_picture, squeeze
from macnet.explain.reply import Centres, Explanation, Look, Reply
from macnet.models.encoders import PixelTrunk
from macnet.models.mac import MACNetwork, Step
from macnet.models.registry import look_and_read
from macnet.training.checkpoint import Trained, open_trained
from macnet.workers import one_thread

MOST_NAMED = 5
SHIPPED = Path(__file__).parents[1] / "weights" / "mac.safetensors"


def open_model(run: str | PathLike[str] | None = None, device: torch.device | str = "cpu") -> Model:
    """The network that comes with the package; or that of a run, by its folder or a file of it."""
    return Model(open_trained(shipped() if run is None else Path(run)), device)


def shipped() -> Path:
    if not SHIPPED.exists():
        raise InputError(
            f"{SHIPPED}: the network that comes with macnet is missing; install macnet again, or "
            "name a run of your own"
        )
    return SHIPPED


class Model:
    """A network that learned from pictures, and the words it knows."""

    def __init__(self, trained: Trained, device: torch.device | str = "cpu") -> None:
        if trained.system.answer is not look_and_read:
            raise InputError(
                f"{trained.path}: it is of the system {trained.system.name}, which neither looks "
                "nor reads; ask another"
            )
        if not trained.fit.pixels:
            raise InputError(
                f"{trained.path}: it learned from features, and cannot see pictures; ask one that "
                "learned from pixels"
            )
        self.trained = trained
        try:
            self.device = torch.device(device)
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError) as error:  # torch has all of them for it
            if is_about_memory(error):
                raise
            raise InputError(f"device is {device!r}, which is not here; choose cpu") from None
        self.network = trained.network().to(self.device)

    def ask(self, image: Picture, question: str) -> Reply:
        """What the network answers; a picture is a path, an image of Pillow's, or an array."""
        asked = understand(question, self.trained.vocabulary)
        with self._thinking():
            logits = self.network(self._seen(open_picture(image)), self._read(asked))
        return self._reply(asked, logits)

    def explain(self, image: Picture, question: str) -> Explanation:
        """The same answer, and what the network attended to on the way to it."""
        network = self.network
        if not isinstance(network, MACNetwork):
            raise InputError(
                f"{self.trained.path}: it is of the system {self.trained.system.name}, which "
                "attends to nothing; only a MAC can be watched while it thinks"
            )
        asked, picture = understand(question, self.trained.vocabulary), open_picture(image)
        with self._thinking():
            logits, steps = network.trace(self._seen(picture), self._read(asked))
        size = self.trained.fit.height, self.trained.fit.width
        places = PixelTrunk.centres(*size)
        grid = len(places[0]), len(places[1])
        # The middle of a pixel is half a pixel further than its number.
        middles = ((np.array(at) + 0.5) / length for at, length in zip(places, size, strict=True))
        return Explanation(
            reply=self._reply(asked, logits),
            words=asked.words,
            picture=np.asarray(picture),
            centres=Centres(*middles),
            looks=tuple(_look(step, grid) for step in steps),
        )

    @contextmanager
    def _thinking(self) -> Iterator[None]:
        """On a CPU with a single thread: a question is too little work to share out.

        Several that wait for each other at every small product lose more than they win, and on a
        busy machine ten times as much. Whatever else this process does keeps its threads.
        """
        alone = one_thread() if self.device.type == "cpu" else nullcontext()
        with alone, torch.inference_mode():
            yield

    def _seen(self, picture: Image.Image) -> Tensor:
        pixels = squeeze(picture, self.trained.fit.width, self.trained.fit.height)
        return torch.tensor(pixels[None], device=self.device)

    def _read(self, asked: Asked) -> Tensor:
        ids = self.trained.vocabulary.ids
        return torch.tensor([[ids.get(word, UNK) for word in asked.words]], device=self.device)

    def _reply(self, asked: Asked, logits: Tensor) -> Reply:
        if not logits.isfinite().all():
            raise not_finite(self.trained.path)
        shares = zip(
            self.trained.vocabulary.answers, logits[0].double().softmax(-1).tolist(), strict=True
        )
        ranked = dict(sorted(shares, key=lambda found: -found[1]))
        return Reply(asked.question, ranked, asked.unknown)


def _look(step: Step, grid: tuple[int, int]) -> Look:
    """Of the only question that was asked."""

    def first(attention: Tensor | None) -> np.ndarray | None:
        return None if attention is None else attention[0].cpu().numpy()

    return Look(
        words=first(step.words),
        places=step.knowledge[0].view(grid).cpu().numpy(),
        recalled=first(step.self_attention),
        # The reference has a gate to each number of the memory.
        kept=None if step.gate is None else step.gate[0].mean().item(),
    )


# --- questions -------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A question as it was understood."""

    question: str
    words: tuple[str, ...]
    """As `data.reading` reads them."""
    unknown: tuple[Unknown, ...]


def understand(question: str, vocabulary: Vocabulary) -> Asked:
    typed = typed_words(question, vocabulary)
    if not {*typed} - EMPTY:
        raise InputError('the question is empty; ask something such as "What color is the cube?"')
    if len(typed) > MAX_WORDS:
        raise InputError(f"the question has {len(typed):,} words; {MAX_WORDS} is the most")
    words, unknown = read(typed, vocabulary)
    if not {*words} - EMPTY - {SPECIALS[UNK]}:
        strange = ", ".join(shown(lacking.word) for lacking in unknown[:MOST_NAMED])
        raise InputError(
            f"the network has read no word of this question ({strange}); it knows those of CLEVR's "
            'questions, such as "What color is the cube?"'
        )
    return Asked(question, words, unknown)
