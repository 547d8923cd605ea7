"""Generated questions as token ids, by tables: without texts, programs and tokenizers.

    text = pattern % phrases                       "How many %s are there?" % ("red cubes",)
    ids = pattern_ids[pattern] % phrase_ids        the same format, with ids in place of words

The ids are those of the question written out and tokenized (`BlockEncoder.encode_texts`), in a
fraction of the time: a GPU learns faster than workers could write and read texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import chain

import numpy as np

from macnet.clevr.choices import Choice
from macnet.clevr.families import (
    NOUN_PHRASES,
    PLURAL_NOUN_PHRASES,
    QUESTION_FAMILIES,
    RELATION_PHRASES,
    QuestionFamily,
)
from macnet.clevr.program import Output, to_answer, to_token
from macnet.clevr.questions import TemplateInstance, node_functions
from macnet.data.question_arrays import TYPES, UNKNOWN, program_ids
from macnet.data.vocab import TOKENIZERS, UNK, Vocabulary


class QuestionEncoder:
    """Encodes generated questions as rows of the table that `to_table` makes."""

    def __init__(self, vocabulary: Vocabulary, words: int, steps: int) -> None:
        """The rows have room for so many words, and for so many steps of a program."""
        self._words, self._steps = words, steps
        self._pattern_ids, self._phrase_ids = _pattern_ids(vocabulary), _phrase_ids(vocabulary)
        self._labels = [_labels(family, vocabulary) for family in QUESTION_FAMILIES]
        self._lengths = [_to_bytes(length) for length in range(words + 1)]

    def row(self, question: TemplateInstance) -> bytes:
        """(words + steps + 3,) int16: tokens, program, length, answer, type."""
        family, choices, output, pattern, phrases, _ = question
        ids = self._phrase_ids
        tokens = self._pattern_ids[pattern] % tuple([ids[phrase] for phrase in phrases])
        program = b"".join([_node_ids(name, choices[k]) for k, name in _PREFIX_ORDER[family]])
        return b"".join(
            (
                tokens.ljust(_ITEM * self._words, b"\0"),
                program.ljust(_ITEM * self._steps, b"\0"),
                self._lengths[len(tokens) // _ITEM],
                self._labels[family][output],
            )
        )

    def table(self, rows: Iterable[bytes]) -> np.ndarray:
        """(Q, words + steps + 3) int16."""
        # (Of a bytearray, because an array of bytes could not be written to.)
        table = np.frombuffer(bytearray().join(rows), np.int16)
        return table.reshape(-1, self._words + self._steps + 3)


@lru_cache(maxsize=8)
def question_encoder(vocabulary: Vocabulary, words: int, steps: int) -> QuestionEncoder:
    """The encoder with these settings: a worker gets them with every block."""
    return QuestionEncoder(vocabulary, words, steps)


def without_answer(row: bytes) -> bytes:
    """The row of the same question without its answer."""
    return row[: -2 * _ITEM] + _to_bytes(UNKNOWN) + row[-_ITEM:]


# --- tables ----------------------------------------------------------------------------------

_ITEM = np.dtype(np.int16).itemsize
_SLOT = "_slot_"  # a word that stands for a phrase while a pattern is tokenized


def _to_bytes(*ids: int) -> bytes:
    return np.array(ids, np.int16).tobytes()


def _pattern_ids(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Text pattern → the same %-format, with the ids of its words."""
    tokenize, ids = TOKENIZERS[vocabulary.tokenizer], vocabulary.ids
    found = {}
    for text in chain.from_iterable(chain.from_iterable(f.texts for f in QUESTION_FAMILIES)):
        for pattern in (text.pattern, text.without_other):
            words = tokenize(pattern % ((_SLOT,) * len(text.slots)))
            found[pattern] = b"".join(
                b"%b" if word == _SLOT else _to_bytes(ids.get(word, UNK)).replace(b"%", b"%%")
                for word in words
            )
    return found


def _phrase_ids(vocabulary: Vocabulary) -> dict[str, bytes]:
    """Phrase → the ids of its words, without those that a tokenizer puts around a text."""
    tokenize, ids = TOKENIZERS[vocabulary.tokenizer], vocabulary.ids
    around = tokenize(_SLOT)
    before, after = around.index(_SLOT), len(around) - around.index(_SLOT) - 1
    found = {}
    for phrase in chain(*NOUN_PHRASES, *PLURAL_NOUN_PHRASES, *RELATION_PHRASES):
        words = tokenize(phrase)
        found[phrase] = _to_bytes(*(ids.get(w, UNK) for w in words[before : len(words) - after]))
    return found


def _labels(family: QuestionFamily, vocabulary: Vocabulary) -> dict[Output, bytes]:
    """Output of a program of this family → answer and question type."""
    last = family.nodes[-1].final_function or family.nodes[-1].function
    return {
        output: _to_bytes(vocabulary.answers.index(to_answer(output)), TYPES.index(last))
        for output in family.outputs
    }


def _prefix_order(family: QuestionFamily, root: int = -1) -> list[tuple[int, str]]:
    """The template nodes of a family in prefix order, by index, with their functions."""
    k = range(len(family.nodes))[root]
    inputs = [node for i in family.nodes[k].inputs for node in _prefix_order(family, i)]
    return [(k, family.nodes[k].function), *inputs]


_PREFIX_ORDER = [_prefix_order(family) for family in QUESTION_FAMILIES]


@cache
def _node_ids(function: str, choice: Choice) -> bytes:
    """The program ids of what a template node expands to, in prefix order: the last one first."""
    functions = reversed(node_functions(function, choice))
    return _to_bytes(*program_ids(to_token(name, values) for name, values in functions))
