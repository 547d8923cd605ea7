"""What was meant by a word that nobody knows."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.data.block_encoder import world_texts
from macnet.data.unknown_words import closest_word, distance
from macnet.data.vocab import SPECIALS, Vocabulary

LETTERS = "abc"  # few, so that words meet
KNOWN = Vocabulary.build(world_texts()).words[len(SPECIALS) :]
texts = st.text(LETTERS, max_size=7)


def naive(a: str, b: str) -> int:
    """The definition, from the end backwards."""

    @cache
    def d(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        ways = [d(i - 1, j) + 1, d(i, j - 1) + 1, d(i - 1, j - 1) + (a[i - 1] != b[j - 1])]
        if i > 1 and j > 1 and a[i - 2 : i] == b[j - 2 : j][::-1]:
            ways.append(d(i - 2, j - 2) + 1)
        return min(ways)

    return d(len(a), len(b))


def one_slip(word: str) -> set[str]:
    """All that becomes of a word by one slip, and the word."""
    cuts = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    return {
        word,
        *(a + b[1:] for a, b in cuts if b),
        *(a + letter + b for a, b in cuts for letter in LETTERS),
        *(a + letter + b[1:] for a, b in cuts if b for letter in LETTERS),
        *(a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1),
    }


@given(texts, texts)
def test_the_distance_is_its_definition(a: str, b: str) -> None:
    assert distance(a, b) == naive(a, b)


@given(texts, texts)
def test_what_a_distance_must_be(a: str, b: str) -> None:
    found = distance(a, b)
    assert found == distance(b, a) == distance(a[::-1], b[::-1])
    assert (found == 0) == (a == b)
    assert abs(len(a) - len(b)) <= found <= max(len(a), len(b))


@given(st.text(LETTERS, max_size=5), st.data())
@settings(max_examples=50)
def test_one_slip_is_at_a_distance_of_one(word: str, data: st.DataObject) -> None:
    near = one_slip(word)
    assert all(distance(word, other) == (other != word) for other in near)
    other = data.draw(texts)
    assert (distance(word, other) <= 1) == (other in near)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("shpere", "sphere"),
        ("spheer", "sphere"),
        ("phere", "sphere"),
        ("sheres", "spheres"),
        ("cilinder", "cylinder"),
        ("cilnder", None),  # two slips are too many for seven letters
        ("cylidners", "cylinders"),
        ("cilindres", "cylinders"),
        ("colour", "color"),
        ("grey", "gray"),
        ("yelow", "yellow"),
        ("hsiny", "shiny"),
        ("teh", "the"),
        ("rde", "red"),
        ("cubs", "cubes"),
        ("Sphere", "sphere"),
        ('"cube"', "cube"),
        ("cube's", "cubes"),
        ("red-", "red"),
        # These are words, or none.
        ("tall", None),
        ("wall", None),
        ("cone", None),
        ("dog", None),
        ("hat", None),
        ("man", None),
        ("table", None),
        ("orange", None),
        ("куб", None),
        ("球", None),
        ("🙂", None),
        ("", None),
        ("-", None),
        ("x" * 100_000, None),
    ],
)
def test_what_people_type(typed: str, meant: str | None) -> None:
    assert closest_word(typed, KNOWN) == meant


@given(st.sampled_from([word for word in KNOWN if len(word) > 4]), st.data())
def test_neighbours_that_are_swapped_are_always_found(word: str, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(word) - 2))
    typed = word[:i] + word[i + 1] + word[i] + word[i + 2 :]
    assert closest_word(typed, KNOWN) == word


@given(st.text(max_size=12))
def test_it_is_a_known_word_or_none(typed: str) -> None:
    meant = closest_word(typed, KNOWN)
    assert meant is None or meant in KNOWN
    assert closest_word(typed, []) is None


def test_of_equals_the_first() -> None:
    assert closest_word("mall", ["male", "mali", "mall!"]) == "mall!"
    assert closest_word("malx", ["mali", "male"]) == "mali"
    assert closest_word("malx", ["male", "mali"]) == "male"
    assert closest_word("ball", [";", "", "<END>", "balls"]) == "balls"
