"""Questions as text, as the files of a dataset give them, and how they become arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from macnet.data.question_arrays import (
    OUT_OF_VOCABULARY,
    UNKNOWN,
    QuestionArrays,
    TokenizedQuestion,
    collect,
)
from macnet.data.unknown_words import encode_known
from macnet.data.vocab import MAX_WORDS, UNK, OOVCounter, Vocabulary
from macnet.errors import InputError


class QuestionText(NamedTuple):
    """A question as text, with the labels that its file gives."""

    text: str
    image: int
    """Id of the image in its split."""
    answer: str | None = None
    type: str | None = None
    program: bytes = b""
    """Ids of the format's program tokens, in prefix form."""
    family: int = UNKNOWN


@dataclass(frozen=True)
class QuestionTexts:
    """The questions of a split."""

    questions: Iterable[QuestionText]
    """At least one; it can be iterated over once."""
    origin: str
    """The dataset they belong to, for reports: CLEVR, CoGenT, generated, …"""
    image_names: Sequence[str] | None = None
    """File names of the images by id, where the format does not derive them from the id."""

    def labels(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The answers and the question types that occur: the most frequent first, then by text."""
        pairs = [(question.answer, question.type) for question in self.questions]
        answers, types = zip(*pairs, strict=True)
        return _by_frequency(answers), _by_frequency(types)

    def encode(
        self, path: Path, vocabulary: Vocabulary, types: Sequence[str], *, training: bool
    ) -> tuple[QuestionArrays, dict[str, Any]]:
        """Arrays of the questions of a file, and metadata: words, origin, image_names.

        An unknown word is <UNK> in questions for training; in others it is treated as
        `data.unknown_words` says.
        """
        oov, rows = OOVCounter(), list[TokenizedQuestion]()
        answer_ids: dict[str | None, int] = {a: i for i, a in enumerate(vocabulary.answers)}
        type_ids: dict[str | None, int] = {name: i for i, name in enumerate(types)}
        answer_ids[None] = UNKNOWN
        for number, (text, image, answer, type_, program, family) in enumerate(self.questions):
            tokens = vocabulary.encode(text, oov)
            if len(tokens) > MAX_WORDS:
                raise InputError(
                    f"{path}: question {number} has {len(tokens):,} words; {MAX_WORDS} is the most"
                )
            if UNK in tokens and not training:
                tokens = encode_known(text, vocabulary)
            answer_id = answer_ids.get(answer, OUT_OF_VOCABULARY)
            type_id = type_ids.get(type_, UNKNOWN)
            rows.append(TokenizedQuestion(tokens, answer_id, program, image, family, type_id))
        metadata: dict[str, Any] = {"words": str(oov), "origin": self.origin}
        if self.image_names is not None:
            metadata["image_names"] = list(self.image_names)
        return collect(rows), metadata


def _by_frequency(labels: Iterable[str | None]) -> tuple[str, ...]:
    counts = Counter(label for label in labels if label is not None)
    return tuple(sorted(counts, key=lambda label: (-counts[label], label)))
