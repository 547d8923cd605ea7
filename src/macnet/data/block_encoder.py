"""The questions of a block of a generated world as one table of numbers.

It is made by workers, which need no torch for it: to import that would take them seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self, TypeVar

import numpy as np

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
from macnet.clevr.questions import Question, TemplateInstance
from macnet.clevr.references import referenced_set
from macnet.clevr.world import World
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

Asked = TypeVar("Asked", Question, TemplateInstance)
Row = TypeVar("Row", bytes, TokenizedQuestion)

# --- texts -----------------------------------------------------------------------------------


def world_texts(families: Sequence[QuestionFamily] = QUESTION_FAMILIES) -> list[str]:
    """Texts with every word of questions of these families, and the longest form of each phrase."""
    texts = chain.from_iterable(family.texts for family in families)
    slots = {slot for text in texts for pattern in text for slot in pattern.slots}
    phrases = chain(
        *(NOUN_PHRASES if slots & {*"ABCD"} else ()),
        *(PLURAL_NOUN_PHRASES if slots & {f"{slot}s" for slot in "ABCD"} else ()),
        *(RELATION_PHRASES if slots & {*"RST"} else ()),
    )
    return [*phrases, *chain.from_iterable(map(_longest_texts, families))]


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


def check_vocabulary(
    vocabulary: Vocabulary, families: Sequence[QuestionFamily] = QUESTION_FAMILIES
) -> None:
    """Check that a vocabulary has all words of questions of these families, and all answers."""
    texts = _tokenized_texts(vocabulary, families)
    unknown = sorted({*chain.from_iterable(texts)} - {*vocabulary.words})
    if unknown:
        raise InputError(
            f"the vocabulary lacks {len(unknown)} words of the generated world, first "
            f"{unknown[0]!r}; build it from `world_texts()`, extend it by them, or choose families "
            "whose words it has"
        )
    if missing := sorted(set(ANSWERS) - set(vocabulary.answers)):
        raise InputError(
            f"the vocabulary lacks {len(missing)} of the generated world's answers, first "
            f"{missing[0]!r}; take one that has all"
        )


def _tokenized_texts(vocabulary: Vocabulary, families: Sequence[QuestionFamily]) -> list[list[str]]:
    return list(map(TOKENIZERS[vocabulary.tokenizer], world_texts(families)))


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
    as long as the longest possible question of any family. An image with too few questions repeats
    its first one, or if it has none that of another, without the answer: such a filler is ignored.
    """

    vocabulary: Vocabulary
    questions_per_image: int
    words: int
    """Number of words in the longest question."""
    steps: int
    """Number of functions in the longest program."""

    @classmethod
    def for_world(cls, world: World, vocabulary: Vocabulary) -> Self:
        """An encoder for a world; a vocabulary that lacks words of its questions is refused."""
        check_vocabulary(vocabulary, world.question_families)
        words = max(map(len, _tokenized_texts(vocabulary, QUESTION_FAMILIES)))
        return cls(vocabulary, world.questions_per_image, words, _longest_program())

    def __call__(self, questions_by_image: list[list[TemplateInstance]]) -> np.ndarray:
        """The questions of each image, not written out, as a table of `to_table`."""
        encoder = question_encoder(self.vocabulary, self.words, self.steps)
        return encoder.table(self._fill_up(encoder.row, without_answer, questions_by_image))

    def with_families(
        self, questions_by_image: list[list[TemplateInstance]]
    ) -> tuple[np.ndarray, list[list[int]]]:
        """The same table without fillers, and the families of the questions by image."""
        encoder = question_encoder(self.vocabulary, self.words, self.steps)
        table = encoder.table(map(encoder.row, chain.from_iterable(questions_by_image)))
        return table, [[question.family for question in few] for few in questions_by_image]

    def with_references(
        self, questions_by_image: list[list[TemplateInstance]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The table, and (Q,) int16: the set of objects each question refers to; 0 for fillers."""
        sets: list[int] = []
        for few in questions_by_image:
            sets += (referenced_set(question.program, question.scene) for question in few)
            sets += [0] * (self.questions_per_image - len(few))
        return self(questions_by_image), np.array(sets, np.int16)

    def encode_texts(self, questions_by_image: list[list[Question]]) -> np.ndarray:
        """The same table from questions that are written out, which takes much longer."""

        def row(question: Question) -> TokenizedQuestion:
            return tokenize_question(question, self.vocabulary)

        def unanswered(row: TokenizedQuestion) -> TokenizedQuestion:
            return row._replace(answer=UNKNOWN)

        rows = self._fill_up(row, unanswered, questions_by_image)
        return to_table(collect(rows), self.words, self.steps)

    def _fill_up(
        self,
        encode: Callable[[Asked], Row],
        unanswered: Callable[[Row], Row],
        questions_by_image: list[list[Asked]],
    ) -> list[Row]:
        """The rows of each image, and as many fillers as it lacks questions."""
        by_image = [[encode(question) for question in few] for few in questions_by_image]
        some = next(chain.from_iterable(by_image), None)
        if some is None:
            raise InputError(
                "no question of the chosen families fits any scene of a block; choose others, or "
                "more objects"
            )
        rows = []
        for of_image in by_image:  # in an easier world, an image may have no question at all
            filler = unanswered(of_image[0] if of_image else some)
            rows += of_image + [filler] * (self.questions_per_image - len(of_image))
        return rows
