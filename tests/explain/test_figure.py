"""A figure holds what tells most, and every step in small, whatever picture and question."""

from __future__ import annotations

import errno
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from explained import contrast, explanation, holds
from macnet.data.unknown_words import UnknownWord
from macnet.explain import cards, drawing
from macnet.explain.animation import write_gif
from macnet.explain.cards import ACCENT, CARD, LIT, PADDING, UNLIT
from macnet.explain.drawing import (
    BACKGROUND,
    MARGIN,
    Box,
    Part,
    Text,
    draw_words,
    mix,
    of_height,
    on_card,
    pieces,
    stack,
    to_image,
)
from macnet.explain.figure import (
    ARROW_WIDTH,
    BEYOND_RESTING,
    FIGURE_WIDTH,
    IMAGE_WIDTH,
    choose_groups,
    draw_figure,
    lay_out,
    write_figure,
)
from macnet.explain.grouping import StepGroup, merge_steps
from macnet.explain.overlay import overlay_attention
from macnet.explain.page import write_page
from macnet.explain.reply import Explanation


def each(told: Explanation) -> list[StepGroup]:
    """Every step by itself."""
    return [merge_steps(told.steps, [number + 1]) for number in range(len(told.steps))]


def texts(part: Part) -> list[str]:
    return [mark.text for mark in part.marks if isinstance(mark, Text)]


@pytest.mark.parametrize(("steps", "across"), [(1, 2), (2, 2), (3, 3), (4, 4), (5, 3), (9, 3)])
def test_every_group_has_a_card(steps: int, across: int) -> None:
    card = min(IMAGE_WIDTH, (FIGURE_WIDTH + ARROW_WIDTH) // across - ARROW_WIDTH)
    told = explanation(steps=steps, picture=(card - 2 * PADDING, 100))  # shown as it is
    part = lay_out(told, each(told))
    figure = to_image(part)
    assert figure.width == FIGURE_WIDTH + 2 * MARGIN
    for step in told.steps:
        assert holds(figure, overlay_attention(told.image, step.image, told.centers))
    assert [text for text in texts(part) if text.startswith("step ")] == [
        f"step {number + 1}" for number in range(steps)
    ]
    # From card to card, but not from row to row; the chain has more of them.
    arrows = [mark for mark in part.marks if isinstance(mark, Text) and mark.size == 36]
    assert len(arrows) == steps - -(-steps // across)
    told = explanation(steps=steps, picture=(IMAGE_WIDTH, 100))
    assert holds(draw_figure(told), told.image)


def test_all_steps_are_there_in_small_and_idle_ones_say_so() -> None:
    told = explanation(steps=12, seed=3)
    object.__setattr__(told.steps[4], "change", 0.01)
    part = lay_out(told)
    shown = texts(part)
    assert [text for text in shown if re.fullmatch(r"\d+( idle)?", text)][-12:] == [
        f"{number} idle" if number == 5 else str(number) for number in range(1, 13)
    ]
    on_cards = {number for group in choose_groups(told) for number in group.numbers}
    assert 5 not in on_cards
    lines = [mark for mark in part.marks if isinstance(mark, Box) and mark.color == ACCENT]
    assert len(lines) == len(on_cards)
    # Where every step has a card of its own, nothing is left to be told.
    few = explanation(steps=3)
    assert "3" not in texts(lay_out(few, each(few)))


def test_the_chain_is_what_the_steps_read_and_then_the_answer() -> None:
    told = explanation(steps=3, question="the color of the tiny cube", first=None)
    for step, read in zip(told.steps, ([5], [5], [0, 1]), strict=True):
        assert step.words is not None
        step.words[:] = 0
        step.words[read] = 1 / len(read)
    words = texts(lay_out(told, each(told)))
    start = words.index("cube", words.index("tiny"))
    answer = words.index(told.reply.answer)
    assert words[words.index("cube", start + 1) : answer] == ["cube", "→", "color", "→"]


def test_only_answers_that_are_likely_and_the_next_are_shown() -> None:
    told = explanation()
    for probabilities, expected in (
        ({"red": 0.999, "blue": 0.0006, "2": 0.0004}, "99.9%; next: blue (0.1%)"),
        ({"red": 0.9, "blue": 0.08, "2": 0.02}, "90.0%; next: blue (8.0%), 2 (2.0%)"),
        ({"red": 1.0}, "100.0%"),
    ):
        object.__setattr__(told.reply, "probabilities", probabilities)
        answer = cards.draw_answer(told.reply, 900, 72)
        assert " ".join(texts(answer)[1:]) == expected


@pytest.mark.parametrize("count", [2, 4])  # beside the titles, and below them
def test_a_figure_without_resting_maps_says_so(count: int) -> None:
    told = explanation(steps=count, resting=True)
    beyond = told.beyond_resting
    assert BEYOND_RESTING not in texts(lay_out(told))
    shown = texts(lay_out(beyond, each(beyond)))
    assert BEYOND_RESTING in shown
    for step in beyond.steps:
        assert step.change is not None
        assert f"{step.share:.0%} of attention, {step.change:.0%} of memory" in shown


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".gif"])
def test_the_same_explanation_is_the_same_file(suffix: str, tmp_path: Path) -> None:
    write = write_gif if suffix == ".gif" else write_figure
    contents = set()
    for name in ("a", "b"):
        write(explanation(steps=2, picture=(60, 20)), tmp_path / f"{name}{suffix}")
        contents.add((tmp_path / f"{name}{suffix}").read_bytes())
    assert len(contents) == 1
    (content,) = contents
    assert content.startswith({".png": b"\x89PNG", ".gif": b"GIF8"}.get(suffix, content[:1]))


def test_vectors_have_the_size_and_the_text_of_the_figure(tmp_path: Path) -> None:
    told = explanation(steps=3, picture=(60, 40), question="what is <b> & $x$ ?")
    figure = lay_out(told)
    for name in ("figure.svg", "figure.pdf"):
        write_figure(told, tmp_path / name)
    svg = (tmp_path / "figure.svg").read_text("utf-8")
    assert f'width="{figure.width}pt" height="{figure.height}pt"' in svg
    images = 1 + len(choose_groups(told))
    images += 3 * (len(choose_groups(told)) < 3)  # and all in small
    assert svg.count("<image ") == images
    pdf = (tmp_path / "figure.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert f"/MediaBox [ 0 0 {figure.width} {figure.height} ]".encode() in pdf


@pytest.mark.parametrize(
    "question", ["what \udcff is \x01 this", "这个立方体是什么颜色的?", "a \x1b[31m b"]
)
def test_vectors_of_letters_that_no_file_can_hold(question: str, tmp_path: Path) -> None:
    for name in ("figure.svg", "figure.pdf"):
        write_figure(explanation(steps=1, question=question), tmp_path / name)
    ElementTree.parse(tmp_path / "figure.svg")


def test_vectors_do_not_depend_on_the_settings_of_the_user(tmp_path: Path) -> None:
    contents = []
    for settings in ({}, {"savefig.bbox": "tight", "svg.fonttype": "none", "font.size": 33.0}):
        with matplotlib.rc_context(settings):  # type: ignore[arg-type]
            write_figure(explanation(steps=2), tmp_path / "figure.svg")
            assert settings.items() <= matplotlib.rcParams.items()  # which stay as they are
        contents.append((tmp_path / "figure.svg").read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".gif", ".html"])
def test_steps_that_only_rest_are_dark(suffix: str, tmp_path: Path) -> None:
    told = explanation(steps=4, resting=True, gate=False)
    for step in told.steps[1:3]:
        object.__setattr__(step, "resting", step.image)
    beyond = told.beyond_resting
    assert [step.share == 0 for step in beyond.steps] == [False, True, True, False]
    write = {".gif": write_gif, ".html": write_page}.get(suffix, write_figure)
    write(told if suffix == ".html" else beyond, tmp_path / f"a{suffix}")
    dark = overlay_attention(told.image, beyond.steps[1].image, told.centers)
    assert dark.max() <= round(0.4 * 255)
    if suffix == ".html":
        page = (tmp_path / "a.html").read_text()
        assert page.count("attends to nothing beyond its resting map") == 2


@pytest.mark.parametrize(
    "size", [(1, 1), (1, 900), (900, 1), (64, 64), (300, 3000), (4000, 3000)], ids=str
)
def test_pictures_of_any_shape(size: tuple[int, int]) -> None:
    told = explanation(steps=2, picture=size)
    assert lay_out(told).height < 2700


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
    figure = draw_figure(explanation(steps=2, question=question))
    assert figure.height < 2600
    margins = np.asarray(figure).copy()
    margins[MARGIN:-MARGIN, MARGIN:-MARGIN] = 255
    assert (margins == 255).all()  # nothing stands over the edge


def test_what_a_network_lacks_is_left_out() -> None:
    whole, without = (
        lay_out(told, each(told))
        for told in (explanation(steps=3), explanation(steps=3, words=False, gate=False))
    )
    assert without.height < whole.height
    assert sum("of memory" in text for text in texts(whole)) == 3
    assert not any("of memory" in text for text in texts(without))
    assert texts(without).count("→") == 2  # between the cards, and no chain


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
    told = " ".join(texts(lay_out(explanation(unknown=strange))))
    assert all(note in told for note in explanation(unknown=strange).reply.notes)


# --- parts -----------------------------------------------------------------------------------


@given(a=st.floats(0, 1), b=st.floats(0, 1))
def test_a_word_is_the_brighter_the_more_it_is_read(a: float, b: float) -> None:
    low, high = (mix(UNLIT, LIT, share) for share in sorted((a, b)))
    assert all(x <= y for x, y in zip(low, high, strict=True))
    assert contrast(low, CARD) > 4.5  # and always to be read


def test_parts_keep_their_marks() -> None:
    one, two = (draw_words(["word"], 20, width) for width in (100, 60))
    below, beside = stack(5, one, two), stack(5, one, two, across=True)
    assert (below.width, below.height) == (100, 2 * one.height + 5)
    assert (beside.width, beside.height) == (165, one.height)
    assert [mark.y for mark in below.marks] == [20, one.height + 25]
    assert [mark.x for mark in beside.marks] == [0, 105]
    card = on_card(one, CARD, 10, 8)
    box, text = of_height(card, 200).marks
    assert isinstance(box, Box)
    assert (box.height, card.height, text.x, text.y) == (200, one.height + 20, 10, 30)


@pytest.mark.parametrize("size", [(40, 30), (9, 50), (1, 1)])
def test_corners_are_round_and_nothing_else_is(size: tuple[int, int]) -> None:
    part = Part(*size, (Box(0, 0, *size, CARD, 8),))
    pixels = np.asarray(to_image(part)).astype(int)
    radius = min(8, min(size) // 2)
    for y in range(size[1]):
        for x in range(size[0]):
            across = max(radius - x - 0.5, x + 0.5 - size[0] + radius, 0)
            down = max(radius - y - 0.5, y + 0.5 - size[1] + radius, 0)
            inside = radius - (across**2 + down**2) ** 0.5 if across and down else radius + 1
            if abs(inside) > 1:  # but for the line itself
                assert tuple(pixels[y, x]) == (CARD if inside > 0 else BACKGROUND)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_full_disk_leaves_nothing(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Any, file: Any, *_: Any, **__: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    with pytest.raises(OSError, match="No space left"):
        write_figure(explanation(steps=1, picture=(60, 20)), tmp_path / f"figure{suffix}")
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
    long, longer = (explanation(steps=2, question="w " * n) for n in (900, 50_000))
    heights = [lay_out(told, each(told)).height for told in (long, longer)]
    assert abs(heights[0] - heights[1]) < 50  # of words that the steps read


def test_text_is_cut_where_it_has_no_room() -> None:
    (line,) = drawing.draw_text("word " * 99, 200, 20).marks
    assert isinstance(line, Text)
    assert line.text.endswith("…")
    assert drawing.font_of(20).getlength(line.text) < 200 + 20
