"""What becomes of words in a question that a network has not learned.

When a network is asked, by a person or with a whole dataset, a word that looks like a misspelling
of a known one is replaced by that one. Any other becomes <UNK> if the network met <UNK> in
training, and is left out otherwise: a vector that was never learned is random, and spoils the
answer. Unknown punctuation is left out. (`benchmarks/unknown_words.py` measures it.) In a training
split, unknown words stay <UNK>, and that is how a network meets it: `Vocabulary.unk_learned`.
"""

from __future__ import annotations

import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from macnet.data.question_arrays import UNKNOWN, QuestionArrays, TokenizedQuestion, collect
from macnet.data.vocab import END, SPECIALS, START, TOKENIZERS, UNK, Vocabulary

NO_WORDS = frozenset(("", SPECIALS[START], SPECIALS[END]))
"""Tokens of which alone no question is made."""
PUNCTUATION = frozenset(string.punctuation + string.whitespace)
MAX_EDITS = 2
"""Between a word and a misspelling of it; one if it has four to seven letters, fewer if shorter."""


@dataclass(frozen=True)
class UnknownWord:
    """A word that the network has not learned."""

    word: str
    replacement: str | None
    """The known word that it is likely a misspelling of, or <UNK>.

    None if there is no such word, and the network has not learned <UNK>: then it is left out.
    """


class KnownWords(NamedTuple):
    """A question in words that the network has learned."""

    words: tuple[str, ...]
    """Known words and <UNK>."""
    unknown: tuple[UnknownWord, ...]
    """Each unknown word of the question once."""


def split_words(text: str, vocabulary: Vocabulary) -> list[str]:
    """The words of a text, known or not, without unknown punctuation."""
    ids = vocabulary.ids
    return [
        bare
        for word in TOKENIZERS[vocabulary.tokenizer](text)
        if (bare := word if word in ids else _without_punctuation(word)) or word in ids
    ]


def replace_unknown(words: Sequence[str], vocabulary: Vocabulary) -> KnownWords:
    """Replace or leave out the unknown of a question's words."""
    known, ids = vocabulary.words[len(SPECIALS) :], vocabulary.ids
    rest = SPECIALS[UNK] if vocabulary.unk_learned else None
    replacements = {
        word: _closest_word(word, known) or rest for word in dict.fromkeys(words) if word not in ids
    }
    replaced = (replacements.get(word, word) for word in words)
    return KnownWords(
        tuple(word for word in replaced if word is not None),
        tuple(UnknownWord(*item) for item in replacements.items()),
    )


def encode_known(text: str, vocabulary: Vocabulary) -> list[int]:
    """The ids of a text's words, the unknown ones replaced or left out."""
    words = replace_unknown(split_words(text, vocabulary), vocabulary).words
    return _without_unk([vocabulary.ids.get(word, UNK) for word in words], vocabulary)


def without_unk(questions: QuestionArrays, vocabulary: Vocabulary) -> QuestionArrays:
    """Questions whose texts are lost, without <UNK> unless the network has learned it."""
    pairs = zip(questions.tokens.tolist(), questions.lengths.tolist(), strict=True)
    kept = collect(
        TokenizedQuestion(_without_unk(row[:length], vocabulary), UNKNOWN, b"", 0)
        for row, length in pairs
    )
    return replace(questions, tokens=kept.tokens, lengths=kept.lengths)


def _without_unk(tokens: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """If nothing else is left, one UNK: a question was asked."""
    kept = [token for token in tokens if token != UNK or vocabulary.unk_learned]
    return kept if any(vocabulary.words[token] not in NO_WORDS for token in kept) else [UNK]


def _without_punctuation(word: str) -> str:
    """The word without punctuation around it; "" if it is nothing else."""
    inside = [i for i, sign in enumerate(word) if not _is_punctuation(sign)]
    return word[inside[0] : inside[-1] + 1] if inside else ""


def _is_punctuation(sign: str) -> bool:
    return sign in PUNCTUATION or unicodedata.category(sign).startswith("P")


# --- misspellings ----------------------------------------------------------------------------


def closest_word(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like an unknown one, if any is like it at all.

    Case and punctuation do not count. Of words that are equally near, it is the one with more of
    the given letters ("cubs" are rather cubes than a cube), then the one that comes first.
    """
    letters = _letters(word)
    near = [
        (edits, -(Counter(letters) & Counter(_letters(other))).total(), other)
        for other in known
        if (edits := _edits(letters, _letters(other))) is not None
    ]
    return min(near, key=lambda found: found[:2])[-1] if near else None


def _edits(word: str, known: str) -> int | None:
    """The distance of two words; None if they are likelier two words than a misspelling."""
    # A first letter is left out or swapped with the next, but rarely another: "tall" is no "ball".
    if not word or word[0] not in known[:2]:
        return None
    # Among three letters, only swapped ones are no other word.
    most = min(MAX_EDITS, len(word) // 4) or int(sorted(word) == sorted(known))
    if abs(len(word) - len(known)) > most:
        return None
    edits = distance(word, known)
    return edits if edits <= most else None


def distance(a: str, b: str) -> int:
    """The number of deletions, insertions, replacements and swaps of neighbours that make b of a.

    This is the Damerau–Levenshtein distance, except that no letter is touched twice.
    """
    # From the letters of a so far to each beginning of b; and the same of a letter before.
    row, before = list(range(len(b) + 1)), list[int]()
    for i, x in enumerate(a):
        two_before, before, row = before, row, [i + 1]
        for j, y in enumerate(b):
            ways = [before[j + 1] + 1, row[j] + 1, before[j] + (x != y)]
            if i and j and (x, y) == (b[j - 1], a[i - 1]):
                ways.append(two_before[j - 1] + 1)
            row.append(min(ways))
    return row[-1]


def _letters(word: str) -> str:
    return "".join(filter(str.isalnum, word.casefold()))


# People make the same mistakes, and ask with the same words.
_closest_word = lru_cache(10_000)(closest_word)
