"""What a network reads of a question in which there are words that it does not know.

Whoever asks it, one person or a whole dataset: a word that looks like a slip of the pen for a known
one is read as that one. Any other is <UNK> if the network met that in training, and else left out:
a vector that was never learned is random, and spoils the answer. Marks that it has never read, such
as commas, are left out. (`benchmarks/unknown_words.py` measures it.) In a split to learn from,
unknown words stay <UNK>, and that is how a network meets it: `Vocabulary.unk_learned`.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from macnet.data.spelling import likely_meant
from macnet.data.vocab import END, SPECIALS, START, TOKENISINGS, UNK, Vocabulary

EMPTY = frozenset(("", SPECIALS[START], SPECIALS[END]))
"""Words of which no question is made."""
SYMBOLS = frozenset(string.punctuation + string.whitespace)


@dataclass(frozen=True)
class Unknown:
    """A word that the network has never read."""

    word: str
    meant: str | None
    """What is read in its place: the word that was likely meant, or <UNK>.

    None if there is no word like it, and the network has not learned <UNK>: then it is left out.
    """


class Reading(NamedTuple):
    words: tuple[str, ...]
    """As they are read; all are known, or <UNK>."""
    unknown: tuple[Unknown, ...]
    """Each once."""


def typed_words(text: str, vocabulary: Vocabulary) -> list[str]:
    """The words of a text, known or not, without marks that are unknown."""
    ids = vocabulary.ids
    return [
        bare
        for word in TOKENISINGS[vocabulary.tokenising](text)
        if (bare := word if word in ids else _bare(word)) or word in ids
    ]


def read(typed: Sequence[str], vocabulary: Vocabulary) -> Reading:
    """What becomes of typed words."""
    known, ids = vocabulary.words[len(SPECIALS) :], vocabulary.ids
    rest = SPECIALS[UNK] if vocabulary.unk_learned else None
    meant = {
        word: _likely_meant(word, known) or rest for word in dict.fromkeys(typed) if word not in ids
    }
    understood = (meant.get(word, word) for word in typed)
    return Reading(
        tuple(word for word in understood if word is not None),
        tuple(Unknown(*found) for found in meant.items()),
    )


def encode_read(text: str, vocabulary: Vocabulary) -> list[int]:
    """The ids of what is read of a text."""
    words = read(typed_words(text, vocabulary), vocabulary).words
    return reread([vocabulary.ids.get(word, UNK) for word in words], vocabulary)


def reread(tokens: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Of ids what is read, where the text is lost; if that is nothing, one UNK: it was asked."""
    kept = [token for token in tokens if token != UNK or vocabulary.unk_learned]
    return kept if any(vocabulary.words[token] not in EMPTY for token in kept) else [UNK]


@lru_cache(10_000)  # people make the same slips, and ask with the same words
def _likely_meant(word: str, known: tuple[str, ...]) -> str | None:
    return likely_meant(word, known)


def _bare(word: str) -> str:
    """Without the marks around it; nothing is left of one that is all marks."""
    inside = [i for i, sign in enumerate(word) if not _is_mark(sign)]
    return word[inside[0] : inside[-1] + 1] if inside else ""


def _is_mark(sign: str) -> bool:
    return sign in SYMBOLS or unicodedata.category(sign).startswith("P")
