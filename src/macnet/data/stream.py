"""The generated world as a source of batches: each image once, without an end, and no disk.

    if __name__ == "__main__":  # workers are spawned, and import this file again
        world, vocabulary = World(seed=1, width=128, height=128), Vocabulary.build(language())
        with EndlessBatches(
            world, vocabulary, images=64, device="cuda", workers=15, compile=True
        ) as batches:
            for batch in batches:
                ...

Workers place objects, ask questions and look up their words; a thread draws the pictures, on a
CUDA stream of its own, while the caller learns from earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.families import (
    CATALOGUE,
    GIVEN,
    NOUN_PHRASES,
    PLURAL_NOUN_PHRASES,
    RELATION_PHRASES,
    Family,
    Step,
)
from macnet.clevr.program import to_prefix
from macnet.clevr.questions import BLOCK, Question
from macnet.clevr.world import COMPANY, Block, Stream, World
from macnet.data.ahead import Ahead, settled
from macnet.data.batches import Batch, batch_of
from macnet.data.questions import UNKNOWN, Row, collect, program_ids, side_by_side
from macnet.data.vocab import ANSWERS, TOKENISINGS, Vocabulary
from macnet.errors import InputError

# --- what the world can say ------------------------------------------------------------------


def language() -> list[str]:
    """Texts that hold every word of the world's questions, and of each phrase the longest form."""
    phrases = [*NOUN_PHRASES, *PLURAL_NOUN_PHRASES, *RELATION_PHRASES]
    return [*chain.from_iterable(phrases), *chain.from_iterable(map(_longest_texts, CATALOGUE))]


def _longest_texts(family: Family) -> Iterator[str]:
    fillings = {}
    for step in family.steps:
        for slot in step.slots:
            if slot in "RST":
                fillings[slot] = max(chain.from_iterable(RELATION_PHRASES), key=_words)
            else:
                allowed = _allowed(step)
                for name, phrases in (slot, NOUN_PHRASES), (f"{slot}s", PLURAL_NOUN_PHRASES):
                    fillings[name] = max((phrases[d][0] for d in allowed), key=_words)
    for phrase in chain.from_iterable(family.texts):
        yield phrase.pattern % tuple(fillings[slot] for slot in phrase.slots)
        yield phrase.without_other % tuple(fillings[slot] for slot in phrase.slots)


def _words(text: str) -> int:
    return len(text.split())


def _allowed(step: Step) -> list[int]:
    """The descriptions that a step may choose."""
    return [d for d, given in enumerate(GIVEN) if not given & step.empty]


def _longest_program() -> int:
    """In functions, of all families."""

    def longest(step: Step) -> int:
        if not step.slots:
            return 1
        filters = max(GIVEN[d].bit_count() for d in _allowed(step))
        says = filters if set(step.slots) - set("RST") else 0
        return step.relates + says + bool(step.concludes)

    return max(sum(map(longest, family.steps)) for family in CATALOGUE)


# --- questions as numbers --------------------------------------------------------------------


def row_of(question: Question, vocabulary: Vocabulary) -> Row:
    """A question as numbers, which image it is about left open."""
    return Row(
        vocabulary.encode(question.text),
        vocabulary.answers.index(question.answer),
        program_ids(to_prefix(question.program)),
        image=UNKNOWN,
        family=question.family,
    )


@dataclass(frozen=True)
class Encoder:
    """Makes of a block's questions one array: a row to each, and as many to each image.

    Every batch must have the same shape, or no step could be captured; so rows are as long as the
    longest question that there can be. An image with too few questions repeats its first one,
    without the answer: such a filler counts for nothing.
    """

    vocabulary: Vocabulary
    questions_per_image: int
    words: int
    steps: int

    @classmethod
    def of(cls, world: World, vocabulary: Vocabulary) -> Self:
        tokenise = TOKENISINGS[vocabulary.tokenising]
        texts = [tokenise(text) for text in language()]
        unknown = sorted(set(chain.from_iterable(texts)) - set(vocabulary.words))
        unknown += sorted(set(ANSWERS) - set(vocabulary.answers))
        if unknown:
            raise InputError(
                f"the vocabulary lacks {len(unknown)} words of the generated world, first "
                f"{unknown[0]!r}; build it from data.stream.language(), or grow it by that"
            )
        words = max(map(len, texts))
        return cls(vocabulary, world.questions_per_image, words, _longest_program())

    def __call__(self, asked: list[list[Question]]) -> np.ndarray:
        """What `side_by_side` makes of them."""
        rows = []
        for questions in asked:
            of_image = [row_of(question, self.vocabulary) for question in questions]
            filler = of_image[0]._replace(answer=UNKNOWN)
            rows += of_image + [filler] * (self.questions_per_image - len(of_image))
        return side_by_side(collect(rows), self.words, self.steps)

    def batch(self, block: Block) -> Batch:
        """A block as a batch of its own, on the device of its images."""
        device, first = block.images.device, block.number * len(block.questions)
        table = torch.from_numpy(block.questions).to(device)
        which = torch.arange(first, first + len(table), device=device)
        which.masked_fill_(table[:, -2] == UNKNOWN, UNKNOWN)  # without an answer: a filler
        return batch_of(block.images, table, self.words, which)


# --- batches ---------------------------------------------------------------------------------


class EndlessBatches:
    """A split of a world in batches of so many images and all their questions, without an end.

    It may be stopped anywhere: with the same settings and `position=batches.position`, another
    goes on exactly as this one would have, whatever the number of workers. Of n shards, data
    parallel, the k-th takes the k-th company of blocks of every n: none takes what another does.
    Questions are numbered (`which`) by their image, times the questions per image, and their place
    among those.

    The device is used by a thread ahead of the caller: whoever captures a CUDA graph must do so
    with `capture_error_mode="thread_local"`, or the capture fails.
    """

    def __init__(
        self,
        world: World,
        vocabulary: Vocabulary,
        *,
        images: int,
        split: str = "train",
        device: torch.device | str = "cpu",
        workers: int = 0,
        shard: tuple[int, int] = (0, 1),
        position: int = 0,
        compile: bool = False,
    ) -> None:
        if images < 1 or position < 0:
            raise ValueError(f"there is no batch {position} of {images} images")
        device = settled(device)
        self.position = position
        """Batches taken so far."""
        self.steps = None
        """In an epoch: there are no epochs."""
        encoder = Encoder.of(world, vocabulary)
        block, skipped = divmod(position * images, BLOCK)
        self._stream = Stream(
            world,
            split=split,
            position=block,
            shard=shard,
            device=device,
            workers=workers,
            encode=encoder,
            compile=compile,
        )
        # Enough batches lie ready that none is missed while the next company is drawn.
        depth = max(2, COMPANY[device.type] * BLOCK // images)
        cut = _cut(self._stream, encoder, images, skipped)
        self._source = Ahead(cut, device, depth=depth)

    def draw(self) -> Batch:
        """The next batch: nothing is left to be gathered."""
        batch = next(self._source)
        self.position += 1
        return batch

    def gather(self, drawn: tuple[Tensor, ...]) -> Batch:
        return Batch(*drawn)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self.draw()

    def close(self) -> None:
        """End the workers and the thread. Batches that are left by a `with` are closed."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        # In this order: without workers, the thread has nothing to wait for.
        self._stream.__exit__(*error)
        self._source.close()


def _cut(stream: Stream, encoder: Encoder, images: int, skipped: int) -> Iterator[Batch]:
    """Blocks in pieces of so many images, from one within the first block on."""

    many = encoder.questions_per_image

    def part(batch: Batch, start: int, stop: int | None = None) -> Batch:
        pictures, *columns = batch
        of_questions = slice(start * many, stop and stop * many)
        return Batch(pictures[start:stop], *(column[of_questions] for column in columns))

    left: Batch | None = None
    for block in stream:
        new = encoder.batch(block)
        if left is None:
            left = part(new, skipped)
        else:
            left = Batch(*(torch.cat(pair) for pair in zip(left, new, strict=True)))
        while len(left.images) >= images:
            yield part(left, 0, images)
            left = part(left, images)
