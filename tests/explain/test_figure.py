"""A figure holds every step, whatever the picture and the question; a film too."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from explained import contrast, explanation, holds, shares
from macnet.data.unknown_words import UnknownWord
from macnet.explain.drawing import GAP, MARGIN, TEXT, highlight_color, pieces
from macnet.explain.figure import (
    FIGURE_WIDTH,
    FRAME_WIDTH,
    IMAGE_WIDTH,
    TOP_SHARE,
    TOP_WORDS,
    draw_figure,
    draw_frames,
    top_words,
    write_gif,
    write_png,
)
from macnet.explain.overlay import overlay_attention


@pytest.mark.parametrize(
    ("steps", "across", "down"),
    [(1, 2, 1), (2, 2, 1), (3, 3, 1), (4, 4, 1), (5, 4, 2), (9, 6, 2), (16, 6, 3)],
)
def test_every_step_has_a_panel(steps: int, across: int, down: int) -> None:
    panel = min(IMAGE_WIDTH, (FIGURE_WIDTH + GAP) // across - GAP)
    told = explanation(steps=steps, picture=(panel, 100))  # which is shown as it is
    figure = draw_figure(told)
    assert figure.width == FIGURE_WIDTH + 2 * MARGIN
    assert 400 + down * 200 < figure.height < 600 + down * 330
    for look in told.steps:
        assert holds(figure, overlay_attention(told.image, look.image, told.centers))
    told = explanation(steps=steps, picture=(IMAGE_WIDTH, 100))
    assert holds(draw_figure(told), told.image)


def test_a_film_has_a_frame_for_each_step_and_two(tmp_path: Path) -> None:
    told = explanation(steps=5, picture=(FRAME_WIDTH, 200))
    drawn = draw_frames(told)
    assert len({frame.size for frame in drawn}) == 1
    lit = [overlay_attention(told.image, look.image, told.centers) for look in told.steps]
    lit = [told.image, *lit, told.image]
    assert all(holds(frame, part) for frame, part in zip(drawn, lit, strict=True))
    write_gif(told, tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as film:
        assert (film.format, getattr(film, "n_frames", 1), film.size) == ("GIF", 7, drawn[0].size)
        assert film.info["loop"] == 0
        stays = []
        for number, frame in enumerate(drawn):
            film.seek(number)
            stays.append(film.info["duration"])
            apart = np.asarray(film.convert("RGB")).astype(int) - np.asarray(frame)
            assert np.abs(apart).mean() < 12  # even of noise, 256 colours tell the most
    assert stays == [2000, 1000, 1000, 1000, 1000, 1000, 4000]


def test_the_same_thought_is_the_same_file(tmp_path: Path) -> None:
    for write, name in ((write_png, "a.png"), (write_gif, "a.gif")):
        contents = set()
        for _ in range(2):
            write(explanation(steps=1, picture=(60, 20)), tmp_path / name)
            contents.add((tmp_path / name).read_bytes())
        assert len(contents) == 1


@pytest.mark.parametrize(
    "size", [(1, 1), (1, 900), (900, 1), (64, 64), (300, 3000), (4000, 3000)], ids=str
)
def test_pictures_of_any_shape(size: tuple[int, int]) -> None:
    told = explanation(steps=2, picture=size)
    assert draw_figure(told).height < 2250
    assert all(frame.width == FRAME_WIDTH + 2 * MARGIN for frame in draw_frames(told))


@pytest.mark.parametrize(
    "question",
    [
        "Why?",
        " ".join(["behind"] * 46),
        " ".join(["something"] * 255),
        "x" * 1000,
        "这个立方体是什么颜色的? Какого цвета куб? 🟥🟦 مكعب",
        "<script>alert('&')</script> \0 \x1b[31m",
        "\udcff a letter of no script",
    ],
    ids=["short", "46 words", "255 words", "one long word", "scripts", "code", "no text"],
)
def test_questions_of_any_length_and_script(question: str) -> None:
    told = explanation(steps=2, question=question)
    figure = draw_figure(told)
    assert figure.height < 2200
    margins = np.asarray(figure).copy()
    margins[MARGIN:-MARGIN, MARGIN:-MARGIN] = 255
    assert (margins == 255).all()  # nothing stands over the edge
    assert len(draw_frames(told)) == 4


def test_what_a_network_lacks_is_left_out() -> None:
    whole = draw_figure(explanation(steps=8))
    without = ({"words": False}, {"first": None}, {"words": False, "first": None, "gate": False})
    heights = [draw_figure(explanation(steps=8, **lacks)).height for lacks in without]
    assert heights[2] < min(heights[:2])
    assert max(heights) < whole.height
    assert draw_figure(explanation(steps=8, first=0)).size == whole.size  # recalls the beginning


def test_an_animation_shows_the_question_where_no_word_is_attended_to() -> None:
    told = explanation(steps=2, words=False, gate=False, first=None)
    asked, *steps, _ = (np.asarray(frame) for frame in draw_frames(told))
    rows, below = np.nonzero((asked < 255).any((1, 2)))[0], FRAME_WIDTH * 40 // 60 + 100
    question = asked[below : rows[-1] + 1]
    assert (question < 128).any()
    for step in steps:
        assert holds(Image.fromarray(step), question)


def test_unknown_words_are_told() -> None:
    strange = (
        UnknownWord("shpere", "sphere"),
        UnknownWord("wug", None),
        UnknownWord("colour", "color"),
    )
    assert explanation(unknown=strange).reply.notes == [
        "It read 'shpere' as 'sphere', 'colour' as 'color'.",
        "It has never read 'wug', and left it out.",
    ]
    assert explanation().reply.notes == []
    assert len(explanation(unknown=(UnknownWord("x" * 900, None),)).reply.notes[0]) < 80
    plain = draw_figure(explanation(steps=2, picture=(40, 4)))
    told = draw_figure(
        explanation(steps=2, picture=(40, 4), unknown=(UnknownWord("shpere", "sphere"),) * 9)
    )
    assert told.height > plain.height


@given(seed=st.integers(0, 1 << 16), count=st.integers(1, 40))
def test_a_panel_shows_the_words_that_were_read_most(seed: int, count: int) -> None:
    read = shares(np.random.default_rng(seed), count)
    names, weights = top_words([f"w{i}" for i in range(count)], read)
    kept = [int(name[1:]) for name in names if name != "…"]
    assert kept == sorted(kept)
    rest = [share for i, share in enumerate(read) if i not in kept]
    assert min(read[kept]) >= max(rest, default=0)
    assert [w for name, w in zip(names, weights, strict=True) if name != "…"] == list(read[kept])
    # As many as it takes, and as there is room for.
    assert len(kept) == TOP_WORDS or read[kept].sum() > TOP_SHARE - 1e-6
    assert len(kept) == 1 or np.sort(read[kept])[1:].sum() < TOP_SHARE + 1e-6
    gaps = sum(b > a + 1 for a, b in pairwise(kept))
    assert len(names) == len(kept) + gaps
    assert "… …" not in " ".join(names)


@given(a=st.floats(0, 1), b=st.floats(0, 1))
def test_a_word_is_the_warmer_the_more_it_is_attended(a: float, b: float) -> None:
    low, high = highlight_color(min(a, b)), highlight_color(max(a, b))
    assert all(x >= y for x, y in zip(low, high, strict=True))  # of white, less and less
    assert contrast(high, TEXT) > 7  # and always to be read


@pytest.mark.parametrize("write", [write_png, write_gif])
def test_a_full_disk_leaves_nothing(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Image.Image, file: Any, *_: Any, **__: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write(explanation(steps=1, picture=(60, 20)), tmp_path / "figure")
    assert list(tmp_path.iterdir()) == []


class Ruler:
    """A font of ten pixels a letter, which counts the letters that it has measured."""

    measured = 0

    def getlength(self, text: str) -> float:
        self.measured += len(text)
        return 10.0 * len(text)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("", [""]),
        ("a", ["a"]),
        ("abcdefg", ["abcdefg"]),
        ("abcdefgh", ["abcdefg", "h"]),
        ("w" * 40_000, ["w" * 7] * 5714 + ["ww"]),
    ],
)
def test_words_in_pieces(word: str, expected: list[str]) -> None:
    ruler = Ruler()
    assert [*pieces(word, ruler, 75)] == expected  # type: ignore[arg-type]
    assert ruler.measured <= 10 + 10 * len(word), "of a long word, only a little at a time"
    assert [*pieces("wide", ruler, 3)] == [*"wide"]  # type: ignore[arg-type]


def test_a_question_of_a_book() -> None:
    """Its beginning is shown; a picture of all of it would be a wall."""
    long, longer = (draw_figure(explanation(question="w " * n)) for n in (900, 50_000))
    assert long.size == longer.size
