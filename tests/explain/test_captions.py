"""What is said of attention is true of what is lit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from explained import centred, shares
from macnet.explain.captions import (
    TOP_SHARE,
    TOP_WORDS,
    describe_places,
    in_words,
    lit_places,
    phrase,
    summary,
)


@given(seed=st.integers(0, 1 << 16), count=st.integers(1, 40))
def test_a_phrase_has_the_words_that_were_read_most(seed: int, count: int) -> None:
    read = shares(np.random.default_rng(seed), count)
    told = phrase([f"w{i}" for i in range(count)], read)
    kept = [int(name[1:]) for name, _ in told if name != "…"]
    assert kept == sorted(kept)
    rest = [share for i, share in enumerate(read) if i not in kept]
    assert min(read[kept]) >= max(rest, default=0)
    assert [share for name, share in told if name != "…"] == [float(s) for s in read[kept]]
    # As many as it takes, and as there is room for.
    assert len(kept) == TOP_WORDS or read[kept].sum() > TOP_SHARE - 1e-6
    assert len(kept) == 1 or np.sort(read[kept])[1:].sum() < TOP_SHARE + 1e-6
    assert len(told) == len(kept) + sum(b > a + 1 for a, b in pairwise(kept))


def test_a_summary_has_no_small_words_unless_there_are_no_others() -> None:
    words = ["is", "the", "color", "of", "the", "cube", "red"]
    assert summary(words, np.array([0, 0.2, 0.25, 0.1, 0.1, 0.35, 0])) == ["color", "cube"]
    assert summary(words, np.array([0.5, 0.5, 0, 0, 0, 0, 0])) == ["is", "the"]


def test_places_are_where_it_is_bright() -> None:
    centers, attention = centred(12, 12), np.zeros((12, 12))
    assert describe_places(np.full((12, 12), 1 / 144), centers) == "no place in particular"
    attention[1, 10] = attention[2, 11] = 0.3  # they touch, at a corner
    attention[6, 5] = 0.25
    attention[11, 0] = 0.15
    assert lit_places(attention, centers) == [
        ("upper right", 0.6),
        ("middle", 0.25),
        ("lower left", 0.15),
    ]
    told = "the upper right (60%), the middle (25%) and the lower left (15%)"
    assert describe_places(attention, centers) == told
    assert describe_places(attention, centers, 0.5) == (
        "the upper right (30%), the middle (12%) and the lower left (8%)"
    )
    # What lies dark around it does not count, however much of it there is.
    spread = np.full((12, 12), 0.7 / 143)
    spread[0, 0] = 0.3
    assert describe_places(spread, centers) == "the upper left (30%)"


@given(seed=st.integers(0, 999), rows=st.integers(1, 20), columns=st.integers(1, 20))
def test_places_of_any_attention(seed: int, rows: int, columns: int) -> None:
    attention = shares(np.random.default_rng(seed), rows, columns)
    places = lit_places(attention, centred(rows, columns))
    found = [place.share for place in places]
    assert found == sorted(found, reverse=True)
    assert sum(found) <= 1 + 1e-5


def test_lists_as_people_say_them() -> None:
    assert [in_words([*"abc"][:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
