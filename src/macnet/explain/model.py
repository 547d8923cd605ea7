"""A trained network that answers questions about images.

    model = macnet.load()
    model.ask("scene.png", "What color is the cube?").answer
    model.explain("scene.png", "What color is the cube?").steps

A word that is not in the vocabulary is named in the reply, with the word it was read as
(`data.unknown_words` has the rule). Unknown punctuation, such as commas, is left out.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from reprlib import repr as shown  # which no word can make longer than a line
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from macnet.checkpoint import RunLike, TrainedNetwork, load_trained
from macnet.data.unknown_words import NO_WORDS, UnknownWord, replace_unknown, split_words
from macnet.data.vocab import MAX_WORDS, SPECIALS, UNK, Vocabulary
from macnet.errors import InputError, is_out_of_memory, not_finite_error
from macnet.explain.image import ImageLike, open_image, resize
from macnet.explain.program import ProgramLike, parse_program
from macnet.explain.reply import Explanation, GridCenters, Module, Reply, StepAttention
from macnet.explain.resting import other_questions, resting_maps
from macnet.models.encoders import PixelEncoder
from macnet.models.mac import StepTrace
from macnet.models.system import ModuleTrace
from macnet.workers import one_thread

MAX_NAMED = 5  # unknown words in an error message


def load(run: RunLike = None, *, device: torch.device | str = "cpu") -> Model:
    """Load the network of a run: by its folder, a file of weights or a `Run`.

    Without a run, it is the network that is shipped with macnet.
    """
    return Model(load_trained(run), device)


class Model:
    """A network that was trained on images, with its vocabulary, on a device."""

    def __init__(self, trained: TrainedNetwork, device: torch.device | str = "cpu") -> None:
        if trained.system.needs_question_types:
            raise InputError(
                f"{trained.path}: it is of the system {trained.system.name}, which takes neither "
                "images nor questions; ask another"
            )
        if not trained.data_spec.pixels:
            raise InputError(
                f"{trained.path}: it was trained on features, and cannot take images; ask one that "
                "was trained on images"
            )
        self.trained = trained
        try:
            self.device = torch.device(device)
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError, TypeError) as error:  # torch raises any of them
            if is_out_of_memory(error):
                raise
            raise InputError(f"`device` is {device!r}, which is not available; use cpu") from None
        with self._single_threaded():
            self.network = trained.network().to(self.device)

    def ask(self, image: ImageLike, question: str) -> Reply:
        """The answer of the network; an image is a path, a Pillow image, or an array."""
        parsed = parse_question(question, self.trained.vocabulary)
        with self._single_threaded(), torch.inference_mode():
            logits = self.network(self._to_pixels(open_image(image)), self._to_tokens(parsed))
        return self._reply(parsed, logits)

    def explain(
        self, image: ImageLike, question: str, program: ProgramLike | None = None
    ) -> Explanation:
        """The same answer, and what each reasoning step attended to, or each module put out.

        `program` is the question's true program where it is known, to be shown beside the one that
        a network wrote: in CLEVR's prefix form, such as "count filter_color[red] scene", as a list
        of such tokens, or as the nodes of the released JSON.
        """
        self.trained.check_explainable()
        writing = self.trained.system.programs
        true_modules = None
        if program is not None:
            if writing is None:
                raise InputError(
                    f"`program` is given, but {self.trained.path} is of the system "
                    f"{self.trained.system.name}, which writes no programs; leave it out"
                )
            true_modules = tuple(writing.modules(parse_program(program)))
        parsed, rgb = parse_question(question, self.trained.vocabulary), open_image(image)
        size = self.trained.data_spec.height, self.trained.data_spec.width
        pixels = PixelEncoder.cell_centers(*size)
        grid = len(pixels[0]), len(pixels[1])
        steps: tuple[StepAttention, ...] = ()
        modules: tuple[Module, ...] = ()
        with self._single_threaded(), torch.inference_mode():
            asked = self._to_pixels(rgb), self._to_tokens(parsed)
            if writing is None:
                trace = self.trained.tracer(self.network)
                logits, traced = trace(*asked)
                resting: list[Tensor | None] = [None] * len(traced)
                if (others := self._other_questions) is not None:
                    _, resting_traced = trace(asked[0], others)
                    resting = [*resting_maps(resting_traced, 1)[0]]
                steps = tuple(
                    _to_attention(step, rest, grid)
                    for step, rest in zip(traced, resting, strict=True)
                )
            else:
                logits, executed = writing.trace(self.network, *asked)
                modules = tuple(_to_module(module, grid) for module in executed)
        # The center of a pixel is half a pixel further than its index.
        centers = ((np.array(at) + 0.5) / length for at, length in zip(pixels, size, strict=True))
        return Explanation(
            reply=self._reply(parsed, logits),
            words=parsed.words,
            image=np.asarray(rgb),
            centers=GridCenters(*centers),
            steps=steps,
            modules=modules,
            true_modules=true_modules,
            map_title=writing.map_title if writing else None,
        )

    @cached_property
    def _other_questions(self) -> Tensor | None:
        """Questions for resting maps, on the device; None if the vocabulary has too few words."""
        others = other_questions(self.trained.vocabulary)
        return None if others is None else others.to(self.device)

    def _single_threaded(self) -> AbstractContextManager[None]:
        """On a CPU with a single thread: one question is too little work to be split.

        Threads that wait for each other at every small product lose more than they win, and on a
        busy machine ten times as much. Whatever else this process does keeps its threads.
        """
        return one_thread() if self.device.type == "cpu" else nullcontext()

    def _to_pixels(self, rgb: Image.Image) -> Tensor:
        pixels = resize(rgb, self.trained.data_spec.width, self.trained.data_spec.height)
        return torch.tensor(pixels[None], device=self.device)

    def _to_tokens(self, parsed: ParsedQuestion) -> Tensor:
        ids = self.trained.vocabulary.ids
        return torch.tensor([[ids.get(word, UNK) for word in parsed.words]], device=self.device)

    def _reply(self, parsed: ParsedQuestion, logits: Tensor) -> Reply:
        if not logits.isfinite().all():
            raise not_finite_error(self.trained.path)
        probabilities = zip(
            self.trained.vocabulary.answers, logits[0].double().softmax(-1).tolist(), strict=True
        )
        ranked = dict(sorted(probabilities, key=lambda pair: -pair[1]))
        return Reply(parsed.question, ranked, parsed.unknown)


def _to_attention(step: StepTrace, resting: Tensor | None, grid: tuple[int, int]) -> StepAttention:
    """Of the only question in the batch."""
    change = step.change

    def first(attention: Tensor | None) -> np.ndarray | None:
        return None if attention is None else attention[0].cpu().numpy()

    return StepAttention(
        words=first(step.words),
        image=step.knowledge[0].view(grid).cpu().numpy(),
        self_attention=first(step.self_attention),
        resting=None if resting is None else resting.view(grid).cpu().numpy(),
        change=None if change is None else change[0].item(),
    )


def _to_module(module: ModuleTrace, grid: tuple[int, int]) -> Module:
    return Module(
        name=module.name,
        inputs=module.inputs,
        words=None if module.words is None else module.words.cpu().numpy(),
        image=None if module.map is None else module.map.view(grid).cpu().numpy(),
    )


# --- questions -------------------------------------------------------------------------------


class ParsedQuestion(NamedTuple):
    """A question as words of the vocabulary."""

    question: str
    """The question as it was typed."""
    words: tuple[str, ...]
    """The words that the network reads."""
    unknown: tuple[UnknownWord, ...]
    """Words that are not in the vocabulary."""


def parse_question(question: str, vocabulary: Vocabulary) -> ParsedQuestion:
    """Split a question into words of the vocabulary; refused if none is left."""
    typed = split_words(question, vocabulary)
    if not {*typed} - NO_WORDS:
        raise InputError("the question is empty; ask one in the words that the network knows")
    if len(typed) > MAX_WORDS:
        raise InputError(f"the question has {len(typed):,} words; {MAX_WORDS} is the most")
    words, unknown = replace_unknown(typed, vocabulary)
    if not {*words} - NO_WORDS - {SPECIALS[UNK]}:
        strange = ", ".join(shown(lacking.word) for lacking in unknown[:MAX_NAMED])
        raise InputError(
            f"no word of the question is in the network's vocabulary ({strange}); ask with words "
            f"such as {', '.join(map(shown, _some_words(vocabulary)))}"
        )
    return ParsedQuestion(question, words, unknown)


def _some_words(vocabulary: Vocabulary) -> list[str]:
    """A few words, evenly spread over the vocabulary."""
    words = [word for word in vocabulary.words[len(SPECIALS) :] if word.isalpha()]
    return words[:: max(1, len(words) // MAX_NAMED)][:MAX_NAMED]
