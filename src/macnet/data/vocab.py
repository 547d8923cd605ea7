"""Words and their ids: how a question is cut up, which words are known, what becomes of others.

The ids are the community's. 0 to 3 are special; a vocabulary made from texts numbers its words
from 4 on by code point, so that "10" precedes "2"; words that are learned later follow, and no id
ever moves. An answer's id here is the community's less 4: a network has no use for the specials.
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

from macnet.clevr.program import COLUMN_OF, VALUES_OF, possible_answers, token_of
from macnet.disk import read_json, write_json
from macnet.errors import InputError

SPECIALS = ("<NULL>", "<START>", "<END>", "<UNK>")
PAD, START, END, UNK = range(4)

MAX_WORDS = 255
"""In a question. CLEVR's have 46 at most; without a limit, one broken line could fill memory."""

ANSWERS = tuple(sorted({answer for last in COLUMN_OF for answer in possible_answers(last)}))

PROGRAM_TOKENS = SPECIALS + tuple(
    sorted(token_of(function, values) for function in VALUES_OF for values in VALUES_OF[function])
)
"""A program's steps, by id: a function, with its value where it takes one."""


# --- tokenisings -----------------------------------------------------------------------------


def _clevr_iep(text: str) -> list[str]:
    """Case kept; `;` and `,` are words; no `?` and `.`; wrapped in <START> … <END>.

    Words end at each single space, so that two in a row have an empty word between them. That is
    why the published vocabulary has one.
    """
    text = text.replace(";", " ;").replace(",", " ,").replace("?", "").replace(".", "")
    return [SPECIALS[START], *text.split(" "), SPECIALS[END]]


def _mac(text: str) -> list[str]:
    r"""Lower-case; `. , ; :` are words wherever they stand; no `? ! \ / ( )`."""
    text = text.lower()
    for mark in ".,;:":
        text = text.replace(mark, f" {mark} ")
    for mark in "?!\\/()":
        text = text.replace(mark, "")
    return text.split()


# What lies between two words, without the spaces around it, is a word too.
_WORD_OR_BETWEEN = re.compile(r"\w+|[^\w\s](?:\W*[^\w\s])?")


def _n2nmn(text: str) -> list[str]:
    r"""Lower-case; cut at each `\W+`, which is kept as a word if it is more than white space."""
    return _WORD_OR_BETWEEN.findall(text.lower())


TOKENISINGS: Mapping[str, Callable[[str], list[str]]] = {
    "mac": _mac,
    "clevr-iep": _clevr_iep,
    "n2nmn": _n2nmn,
}
"""The rules of public code, by name: the MAC authors', that of clevr-iep (and film, TbD, CLOSURE),
and that of N2NMN."""


# --- the vocabulary --------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts what a vocabulary lacks, over the texts it encodes; as a string, it tells."""

    texts: int = 0
    lacking: int = 0
    """Texts with at least one unknown word."""
    words: Counter[str] = field(default_factory=Counter)
    """Unknown words, with how often each was met."""

    def __str__(self) -> str:
        if not self.words:
            return f"the vocabulary holds every word of {self.texts:,} questions"
        often = ", ".join(
            f"{shown(word)} ({count:,})"
            # Of equals the first by code point, whatever the order they came in.
            for word, count in sorted(self.words.items(), key=lambda item: (-item[1], item[0]))[:5]
        )
        return (
            f"{self.lacking:,} of {self.texts:,} questions hold words that the vocabulary lacks, "
            f"{len(self.words):,} in all; most often {often}"
        )


@dataclass(frozen=True)
class Vocabulary:
    """The words a network knows, how texts are cut into them, and the answers it can give."""

    words: tuple[str, ...]
    """By id."""
    tokenising: str = "mac"
    """One of `TOKENISINGS`."""
    answers: tuple[str, ...] = ANSWERS
    """By id."""
    unk_learned: bool = False
    """Whether <UNK> was met in training, and so means something."""

    def __post_init__(self) -> None:
        if self.tokenising not in TOKENISINGS:
            known = ", ".join(TOKENISINGS)
            raise InputError(
                f"the tokenising is {shown(self.tokenising)}; it must be one of {known}"
            )
        for name, words, most in (
            ("words", self.words, 1 << 15),  # they are stored in 15 bits,
            ("answers", self.answers, 1 << 7),  # and these in 7
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
    def build(cls, texts: Iterable[str], tokenising: str = "mac") -> Self:
        """Of all the words in the texts of a training set."""
        return cls(SPECIALS, tokenising).grown(texts, at_least=1)

    def grown(self, texts: Iterable[str], *, at_least: int) -> Self:
        """With the texts' words that occur at least so often, after those there are already."""
        tokenise = TOKENISINGS[self.tokenising]
        counts = Counter[str]()
        for text in texts:
            counts.update(tokenise(text))
        new = {word for word, count in counts.items() if count >= at_least} - set(self.words)
        return replace(self, words=(*self.words, *sorted(new)))

    @cached_property
    def ids(self) -> Mapping[str, int]:
        # A text that spells out "<NULL>" must not be padded in the middle.
        return {word: i for i, word in enumerate(self.words) if i not in (PAD, UNK)}

    def encode(self, text: str, tally: Tally | None = None) -> list[int]:
        """The ids of a text's words, UNK for an unknown one; a tally takes note of those.

        So are questions encoded that are learned from; others as `reading.encode_read` does.

        A text without any word is one UNK: attention over nothing but padding would be no number.
        """
        known = self.ids
        words = TOKENISINGS[self.tokenising](text)
        encoded = [known.get(word, UNK) for word in words]
        if tally is not None:
            tally.texts += 1
            if UNK in encoded:
                tally.lacking += 1
                tally.words.update(word for word in words if word not in known)
        return encoded or [UNK]

    def to_record(self) -> dict[str, Any]:
        """For JSON, and for the checkpoint of a network that has learned these words."""
        record = {
            "tokenising": self.tokenising,
            "words": list(self.words),
            "answers": list(self.answers),
        }
        # Only where it is so: packs and runs are recognised by these records.
        return {**record, "unk_learned": True} if self.unk_learned else record

    @classmethod
    def from_record(cls, record: Any, where: str = "the vocabulary") -> Self:
        if not isinstance(record, Mapping):
            raise InputError(f"{where}: this is no vocabulary, but a {type(record).__name__}")
        for name in ("words", "answers"):
            words = record.get(name)
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise InputError(f'{where}: "{name}" must be a list of strings')
        try:
            words, answers = tuple(record["words"]), tuple(record["answers"])
            unk_learned = record.get("unk_learned") is True
            found = cls(words, str(record.get("tokenising")), answers, unk_learned)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        lacking = [answer for answer in ANSWERS if answer not in answers]
        if lacking:
            raise InputError(f"{where}: {lacking[0]!r} is not among its answers, but among CLEVR's")
        return found

    def save(self, path: Path) -> None:
        write_json(path, self.to_record())

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a file of `save`, or from the community's vocab.json."""
        record = read_json(path)
        if isinstance(record, dict) and "question_token_to_idx" in record:
            record = _from_community_record(record, str(path))
        return cls.from_record(record, str(path))


# --- the community's vocab.json --------------------------------------------------------------


def to_community_record(vocabulary: Vocabulary) -> dict[str, Any]:
    """What vocab.json holds; the tokenising is ours to add, and in nobody's way."""

    def ids(words: Iterable[str]) -> dict[str, int]:
        return {word: i for i, word in enumerate(words)}

    return {
        "question_token_to_idx": ids(vocabulary.words),
        "program_token_to_idx": ids(PROGRAM_TOKENS),
        "answer_token_to_idx": ids(SPECIALS + vocabulary.answers),
        "tokenising": vocabulary.tokenising,
    }


def _from_community_record(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The same as a record of ours, once its programs and answers prove to be numbered as ours."""
    words = _by_id(record, "question_token_to_idx", where)
    for key, published in (
        ("program_token_to_idx", PROGRAM_TOKENS),
        ("answer_token_to_idx", SPECIALS + ANSWERS),
    ):
        for i, (token, ours) in enumerate(zip_longest(_by_id(record, key, where), published)):
            if token != ours:
                raise InputError(
                    f'{where}: token {i} of "{key}" is {shown(token)}, not {ours!r}; programs and '
                    f"answers must be numbered as in the published file"
                )
    tokenising = record.get("tokenising", "clevr-iep")  # theirs has but one
    return {"tokenising": tokenising, "words": words, "answers": list(ANSWERS)}


def _by_id(record: Mapping[str, Any], key: str, where: str) -> list[str]:
    ids = record.get(key)
    if not isinstance(ids, dict) or not all(type(i) is int for i in ids.values()):
        raise InputError(f'{where}: "{key}" must give each token a number')
    words = sorted(ids, key=ids.__getitem__)
    if [ids[word] for word in words] != list(range(len(words))):
        raise InputError(f'{where}: "{key}" must number its tokens from 0 on, without gaps')
    return words
