"""A generated world as an endless source of batches: each image comes once, and no disk is used.

    if __name__ == "__main__":  # workers are spawned, and import this file again
        world, vocabulary = World(seed=1, width=128, height=128), Vocabulary.build(world_texts())
        with EndlessBatches(
            world, vocabulary, images=64, device="cuda", workers=15, compile=True
        ) as batches:
            for batch in batches:
                ...

Workers sample scenes, generate questions and encode them; a thread renders the images, on a CUDA
stream of its own, while a network is trained on earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
import torch

from macnet.clevr.families import (
    ATTRIBUTE_BITS,
    NOUN_PHRASES,
    PLURAL_NOUN_PHRASES,
    QUESTION_FAMILIES,
    RELATION_PHRASES,
    QuestionFamily,
    TemplateNode,
)
from macnet.clevr.program import to_prefix
from macnet.clevr.questions import IMAGES_PER_BLOCK, Question, TemplateInstance
from macnet.clevr.world import BLOCKS_PER_RENDER, Block, Stream, World
from macnet.data.batches import Batch, BatchSource, batch_of
from macnet.data.prefetch import Prefetcher, with_device_index
from macnet.data.question_arrays import (
    TYPES,
    UNKNOWN,
    TokenizedQuestion,
    collect,
    program_ids,
    to_table,
)
from macnet.data.question_encoder import question_encoder, without_answer
from macnet.data.vocab import ANSWERS, TOKENIZERS, Vocabulary
from macnet.errors import InputError

# --- texts -----------------------------------------------------------------------------------


def world_texts() -> list[str]:
    """Texts that contain every word of generated questions, and the longest form of each phrase."""
    phrases = chain(*NOUN_PHRASES, *PLURAL_NOUN_PHRASES, *RELATION_PHRASES)
    return [*phrases, *chain.from_iterable(map(_longest_texts, QUESTION_FAMILIES))]


def _longest_texts(family: QuestionFamily) -> Iterator[str]:
    fillings = {}
    for step in family.nodes:
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


def _allowed(step: TemplateNode) -> list[int]:
    """The descriptions that a template node may take."""
    return [d for d, given in enumerate(ATTRIBUTE_BITS) if not given & step.forbidden]


def _longest_program() -> int:
    """The number of functions in the longest program of all families."""

    def longest(step: TemplateNode) -> int:
        if not step.slots:
            return 1
        filters = max(ATTRIBUTE_BITS[d].bit_count() for d in _allowed(step))
        says = filters if set(step.slots) - set("RST") else 0
        return step.has_relation + says + bool(step.final_function)

    return max(sum(map(longest, family.nodes)) for family in QUESTION_FAMILIES)


# --- questions as numbers --------------------------------------------------------------------


def tokenize_question(question: Question, vocabulary: Vocabulary) -> TokenizedQuestion:
    """A generated question as numbers, of which image is not known here."""
    return TokenizedQuestion(
        vocabulary.encode(question.text),
        vocabulary.answers.index(question.answer),
        program_ids(to_prefix(question.program)),
        UNKNOWN,
        question.family,
        TYPES.index(question.program[-1]["function"]),
    )


@dataclass(frozen=True)
class BlockEncoder:
    """Encodes a block's questions as one table, with the same number of rows for each image.

    Every batch must have the same shape, or no step could be captured in a CUDA graph; so rows are
    as long as the longest possible question. An image with too few questions repeats its first one
    without the answer: such a filler is ignored.
    """

    vocabulary: Vocabulary
    questions_per_image: int
    words: int
    """Number of words in the longest question."""
    steps: int
    """Number of functions in the longest program."""

    @classmethod
    def for_world(cls, world: World, vocabulary: Vocabulary) -> Self:
        """An encoder for a world; a vocabulary that lacks words of it is refused."""
        tokenize = TOKENIZERS[vocabulary.tokenizer]
        texts = [tokenize(text) for text in world_texts()]
        unknown = sorted(set(chain.from_iterable(texts)) - set(vocabulary.words))
        unknown += sorted(set(ANSWERS) - set(vocabulary.answers))
        if unknown:
            raise InputError(
                f"the vocabulary lacks {len(unknown)} words of the generated world, first "
                f"{unknown[0]!r}; build it from `world_texts()`, or extend it by them"
            )
        words = max(map(len, texts))
        return cls(vocabulary, world.questions_per_image, words, _longest_program())

    def __call__(self, questions_by_image: list[list[TemplateInstance]]) -> np.ndarray:
        """The questions of each image, not written out, as a table of `to_table`."""
        encoder = question_encoder(self.vocabulary, self.words, self.steps)
        rows = []
        for questions in questions_by_image:
            of_image = [encoder.row(question) for question in questions]
            filler = without_answer(of_image[0])
            rows += of_image + [filler] * (self.questions_per_image - len(of_image))
        return encoder.table(rows)

    def without_fillers(self, questions_by_image: list[list[TemplateInstance]]) -> np.ndarray:
        """The same table, but an image with too few questions has no more rows."""
        encoder = question_encoder(self.vocabulary, self.words, self.steps)
        return encoder.table(map(encoder.row, chain.from_iterable(questions_by_image)))

    def encode_texts(self, questions_by_image: list[list[Question]]) -> np.ndarray:
        """The same table from questions that are written out, which takes much longer."""
        rows = []
        for questions in questions_by_image:
            of_image = [tokenize_question(question, self.vocabulary) for question in questions]
            filler = of_image[0]._replace(answer=UNKNOWN)
            rows += of_image + [filler] * (self.questions_per_image - len(of_image))
        return to_table(collect(rows), self.words, self.steps)

    def batch(self, block: Block) -> Batch:
        """A block as one batch, on the device of its images."""
        device, first = block.images.device, block.number * len(block.questions)
        table = torch.from_numpy(block.questions).to(device)
        question_index = torch.arange(first, first + len(table), device=device)
        question_index.masked_fill_(table[:, -2] == UNKNOWN, UNKNOWN)  # without an answer: a filler
        return batch_of(block.images, table, self.words, question_index)


# --- batches ---------------------------------------------------------------------------------


class EndlessBatches(BatchSource):
    """A split of a world in endless batches of `images` images with all their questions.

    It can be resumed anywhere: with the same settings and `position=batches.position`, another
    continues exactly as this one would have, whatever the number of workers. Of n data-parallel
    shards, the k-th takes the k-th group of blocks of every n, so that none takes what another
    does. A question's `question_index` is its image's index times the questions per image, plus its
    place among those.

    A thread uses the device ahead of the caller: a CUDA graph must be captured with
    `capture_error_mode="thread_local"`, or the capture fails.
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
        device = with_device_index(device)
        self.position = position
        """Number of batches sampled so far."""
        self.steps = None
        """There are no epochs."""
        encoder = BlockEncoder.for_world(world, vocabulary)
        block, skipped = divmod(position * images, IMAGES_PER_BLOCK)
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
        # Enough batches are ready that none is missing while the next group of blocks is rendered.
        depth = max(2, BLOCKS_PER_RENDER[device.type] * IMAGES_PER_BLOCK // images)
        cut = _cut(self._stream, encoder, images, skipped)
        self._source = Prefetcher(cut, device, depth=depth)

    def sample(self) -> Batch:
        """The next batch: nothing is left to be gathered."""
        batch = next(self._source)
        self.position += 1
        return batch

    def close(self) -> None:
        """End the workers and the thread."""
        # In this order: without workers, the thread has nothing to wait for.
        self._stream.close()
        self._source.close()


def _cut(stream: Stream, encoder: BlockEncoder, images: int, skipped: int) -> Iterator[Batch]:
    """Blocks as batches of so many images, without the first `skipped` images."""

    many = encoder.questions_per_image

    def part(batch: Batch, start: int, stop: int | None = None) -> Batch:
        pixels, *columns = batch
        questions = slice(start * many, stop and stop * many)
        return Batch(pixels[start:stop], *(column[questions] for column in columns))

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
