"""Vocabularies: tokenizers, words and answers with their ids, and the files they are kept in.

Word ids are those of the public repositories. 0 to 3 are special tokens; a vocabulary built from
texts numbers its words from 4 on by code point, so that "10" precedes "2"; words that are added
later follow, and no id ever changes. An answer's id here is the public one less 4, because a
network has no use for special tokens among answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from reprlib import repr as shown  # which no file can make longer than a sentence
from typing import Any, Self

from macnet.clevr.program import QUESTION_TYPE_OF, VALUE_INPUTS, possible_answers, to_token
from macnet.errors import InputError
from macnet.files import read_json, write_json

SPECIALS = ("<NULL>", "<START>", "<END>", "<UNK>")
PAD, START, END, UNK = range(4)

MAX_WORDS = 255
"""Most words in a question. CLEVR has 46; without a limit, one broken line could fill memory."""
MAX_ANSWERS = (1 << 15) - 1
"""Most answers in a vocabulary: their ids are stored as int16."""

ANSWERS = tuple(sorted({answer for last in QUESTION_TYPE_OF for answer in possible_answers(last)}))
"""CLEVR's 28 answers by id."""

PROGRAM_TOKENS = SPECIALS + tuple(
    sorted(
        to_token(function, values) for function in VALUE_INPUTS for values in VALUE_INPUTS[function]
    )
)
"""The tokens of CLEVR's programs by id: a function, with its value where it takes one."""


# --- tokenizers ------------------------------------------------------------------------------


def _clevr_iep(text: str) -> list[str]:
    """Case is kept; `;` and `,` are words; `?` and `.` are dropped; wrapped in <START> … <END>.

    Words end at each single space, so that two in a row have an empty word between them. That is
    why the published vocabulary has one.
    """
    text = text.replace(";", " ;").replace(",", " ,").replace("?", "").replace(".", "")
    return [SPECIALS[START], *text.split(" "), SPECIALS[END]]


def _mac(text: str) -> list[str]:
    r"""Lower-case; `. , ; :` are words wherever they stand; `? ! \ / ( )` are dropped."""
    text = text.lower()
    for mark in ".,;:":
        text = text.replace(mark, f" {mark} ")
    for mark in "?!\\/()":
        text = text.replace(mark, "")
    return text.split()


# What lies between two words, without the spaces around it, is a word too.
_WORD_OR_BETWEEN = re.compile(r"\w+|[^\w\s](?:\W*[^\w\s])?")


def _n2nmn(text: str) -> list[str]:
    r"""Lower-case; split at each `\W+`, which is kept as a word if it is more than white space."""
    return _WORD_OR_BETWEEN.findall(text.lower())


TOKENIZERS: Mapping[str, Callable[[str], list[str]]] = {
    "mac": _mac,
    "clevr-iep": _clevr_iep,
    "n2nmn": _n2nmn,
}
"""The tokenizers of public code: of the MAC authors, of clevr-iep (and film, TbD, CLOSURE), and of
N2NMN."""


# --- the vocabulary --------------------------------------------------------------------------


@dataclass
class OOVCounter:
    """Counts the words of encoded texts that a vocabulary lacks; as a string, it is a summary."""

    texts: int = 0
    """Number of texts encoded."""
    lacking: int = 0
    """Number of texts with at least one unknown word."""
    words: Counter[str] = field(default_factory=Counter)
    """Number of occurrences of each unknown word."""

    def __str__(self) -> str:
        if not self.words:
            return f"the vocabulary holds every word of {self.texts:,} questions"
        often = ", ".join(
            f"{shown(word)} ({count:,})"
            # Equally frequent ones by code point, whatever the order of the texts.
            for word, count in sorted(self.words.items(), key=lambda item: (-item[1], item[0]))[:5]
        )
        return (
            f"{self.lacking:,} of {self.texts:,} questions hold words that the vocabulary lacks, "
            f"{len(self.words):,} in all; most often {often}"
        )


@dataclass(frozen=True)
class Vocabulary:
    """The words that a network knows, the tokenizer for them, and the answers it can give."""

    words: tuple[str, ...]
    """Words by id."""
    tokenizer: str = "mac"
    """One of `TOKENIZERS`."""
    answers: tuple[str, ...] = ANSWERS
    """Answers by id; by default CLEVR's."""
    unk_learned: bool = False
    """Whether a network is trained with <UNK>, and can be asked with it."""

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            known = ", ".join(TOKENIZERS)
            raise InputError(f"the tokenizer is {shown(self.tokenizer)}; it must be one of {known}")
        for name, words, most in (
            ("words", self.words, 1 << 15),  # stored in 15 bits
            ("answers", self.answers, MAX_ANSWERS),
        ):
            if not 0 < len(words) <= most:
                raise InputError(f"there are {len(words):,} {name}; there must be 1 to {most:,}")
            if len(set(words)) < len(words):
                (word, _), *_ = Counter(words).most_common(1)
                raise InputError(f"{shown(word)} is there twice among the {name}")
        if self.words[: len(SPECIALS)] != SPECIALS:
            raise InputError(f"the first four words must be {' '.join(SPECIALS)}")

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, texts: Iterable[str], tokenizer: str = "mac") -> Self:
        """A vocabulary of all the words in the texts of a training set."""
        return cls(SPECIALS, tokenizer).extended(texts, min_count=1)

    def extended(self, texts: Iterable[str], *, min_count: int) -> Self:
        """This vocabulary, followed by the texts' words that occur at least `min_count` times."""
        tokenize = TOKENIZERS[self.tokenizer]
        counts = Counter[str]()
        for text in texts:
            counts.update(tokenize(text))
        new = {word for word, count in counts.items() if count >= min_count} - set(self.words)
        return replace(self, words=(*self.words, *sorted(new)))

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """The id of each word, special tokens for padding and unknown words excepted."""
        # A text that spells out "<NULL>" must not be padded in the middle.
        return {word: i for i, word in enumerate(self.words) if i not in (PAD, UNK)}

    def encode(self, text: str, oov: OOVCounter | None = None) -> list[int]:
        """The ids of a text's words, UNK for an unknown one; `oov` counts those.

        Questions for training are encoded so; others by `unknown_words.encode_known`. A text
        without any word is one UNK, because attention over padding alone would be NaN.
        """
        known = self.ids
        words = TOKENIZERS[self.tokenizer](text)
        encoded = [known.get(word, UNK) for word in words]
        if oov is not None:
            oov.texts += 1
            if UNK in encoded:
                oov.lacking += 1
                oov.words.update(word for word in words if word not in known)
        return encoded or [UNK]

    def to_record(self) -> dict[str, Any]:
        """The vocabulary as JSON values, for files and checkpoints."""
        record = {
            "tokenizer": self.tokenizer,
            "words": list(self.words),
            "answers": list(self.answers),
        }
        # Only if it is true: packs and runs are identified by these records.
        return {**record, "unk_learned": True} if self.unk_learned else record

    @classmethod
    def from_record(cls, record: Any, where: str = "the vocabulary") -> Self:
        """The vocabulary of a record; `where` names its source in errors."""
        if not isinstance(record, Mapping):
            raise InputError(f"{where}: this is no vocabulary, but a {type(record).__name__}")
        for name in ("words", "answers"):
            words = record.get(name)
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise InputError(f'{where}: "{name}" must be a list of strings')
        try:
            words, answers = tuple(record["words"]), tuple(record["answers"])
            unk_learned = record.get("unk_learned") is True
            return cls(words, str(record.get("tokenizer")), answers, unk_learned)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def save(self, path: Path) -> None:
        """Write the vocabulary to a JSON file."""
        write_json(path, self.to_record())

    @classmethod
    def load(cls, path: Path) -> Self:
        """The vocabulary of a file written by `save`, or of a vocab.json of public repositories."""
        record = read_json(path)
        if isinstance(record, dict) and "question_token_to_idx" in record:
            record = _from_vocab_json(record, str(path))
        return cls.from_record(record, str(path))


# --- vocab.json of public repositories -------------------------------------------------------


def to_vocab_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of vocab.json, with the tokenizer added, which other readers ignore."""

    def ids(words: Iterable[str]) -> dict[str, int]:
        return {word: i for i, word in enumerate(words)}

    return {
        "question_token_to_idx": ids(vocabulary.words),
        "program_token_to_idx": ids(PROGRAM_TOKENS),
        "answer_token_to_idx": ids(SPECIALS + vocabulary.answers),
        "tokenizer": vocabulary.tokenizer,
    }


def _from_vocab_json(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The record of a vocab.json, after a check that its programs are numbered as ours."""
    words, programs, answers = (
        _by_id(record, f"{kind}_token_to_idx", where) for kind in ("question", "program", "answer")
    )
    for key, tokens, published in (
        ("program", programs, PROGRAM_TOKENS),
        ("answer", answers[: len(SPECIALS)], SPECIALS),
    ):
        for i, (token, ours) in enumerate(zip_longest(tokens, published)):
            if token != ours:
                raise InputError(
                    f'{where}: token {i} of "{key}_token_to_idx" is {shown(token)}, not {ours!r}; '
                    "programs and special tokens must be numbered as in the published file"
                )
    tokenizer = record.get("tokenizer", "clevr-iep")  # the only one of those repositories
    return {"tokenizer": tokenizer, "words": words, "answers": answers[len(SPECIALS) :]}


def _by_id(record: Mapping[str, Any], key: str, where: str) -> list[str]:
    ids = record.get(key)
    if not isinstance(ids, dict) or not all(type(i) is int for i in ids.values()):
        raise InputError(f'{where}: "{key}" must give each token a number')
    words = sorted(ids, key=ids.__getitem__)
    if [ids[word] for word in words] != list(range(len(words))):
        raise InputError(f'{where}: "{key}" must number its tokens from 0 on, without gaps')
    return words
