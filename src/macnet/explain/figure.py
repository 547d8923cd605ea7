"""An explanation as one figure: PNG, SVG or PDF.

At the top the image, the question and the chain of reasoning that led to the answer. Below, large,
a card for each group of steps that tells something (`grouping.py`), and all steps in small. If the
network wrote a program, the cards are its modules, below the program itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from macnet.explain.cards import ACCENT, RADIUS, draw_answer, draw_card, draw_question
from macnet.explain.drawing import (
    GAP,
    TEXT,
    Box,
    Color,
    Part,
    Text,
    centered,
    draw_text,
    draw_words,
    even_columns,
    font_of,
    resized,
    rows_of_cards,
    stack,
    to_image,
    with_margin,
)
from macnet.explain.grouping import StepGroup, group_steps, most_telling, reasoning_chain
from macnet.explain.overlay import overlay_attention
from macnet.explain.program_figure import draw_program, module_cards
from macnet.explain.reply import Explanation
from macnet.explain.vector import VECTOR_SUFFIXES, write_vector
from macnet.files import atomic_file

FIGURE_WIDTH = 1600  # without margins; half a figure fits a column of text
IMAGE_WIDTH = 640  # of the image itself
MOST_CARDS, CARDS_IN_ROW = 6, 4
ARROW_WIDTH = 52
STRIP_COLUMNS, STRIP_GAP = 16, 8  # the most small steps in a row
BEYOND_RESTING = (
    "Light is attention beyond the step's resting map, which is its mean over other questions "
    "about this image. Cards give the share of all attention that is shown."
)
IDLE_LIGHT = 0.35  # of a small step that the gate skips


def write_figure(
    explanation: Explanation, out: Path, groups: Sequence[StepGroup] | None = None
) -> None:
    """Write the explanation as a file whose name ends in .png, .svg or .pdf.

    `groups` are the cards, by default the most telling groups of steps.
    """
    figure, suffix = lay_out(explanation, groups), out.suffix.lower()
    with atomic_file(out) as file:
        if suffix in VECTOR_SUFFIXES:
            write_vector(figure, file, VECTOR_SUFFIXES[suffix])
        else:
            to_image(figure).save(file, "PNG")


def draw_figure(explanation: Explanation, groups: Sequence[StepGroup] | None = None) -> Image.Image:
    """The explanation as an image; `groups` are as in `write_figure`."""
    return to_image(lay_out(explanation, groups))


def lay_out(explanation: Explanation, groups: Sequence[StepGroup] | None = None) -> Part:
    """The figure before it is drawn; `groups` are as in `write_figure`."""
    image = centered(resized(explanation.image, IMAGE_WIDTH), IMAGE_WIDTH, RADIUS)
    room = FIGURE_WIDTH - GAP - IMAGE_WIDTH
    text = [draw_question(explanation.reply, room, 40)]
    if explanation.modules:
        parts = [draw_program(explanation, FIGURE_WIDTH), *module_cards(explanation, FIGURE_WIDTH)]
    else:
        groups = groups or choose_groups(explanation)
        parts = _rows_of_cards(explanation, groups)
        if [group.numbers for group in groups] != [(i + 1,) for i in range(len(explanation.steps))]:
            parts.append(_strip(explanation, groups))
        if explanation.is_beyond_resting:
            parts.append(draw_text(BEYOND_RESTING, FIGURE_WIDTH, 18))
        if groups[0].words is not None:
            text.append(_draw_chain(explanation, groups, room))
    text.append(draw_answer(explanation.reply, room, 72))
    top = stack(GAP, image, stack(GAP, *text), across=True)
    return with_margin(stack(GAP, top, *parts))


def choose_groups(explanation: Explanation) -> list[StepGroup]:
    """The groups of steps that tell most, in their order."""
    return most_telling(group_steps(explanation.steps), MOST_CARDS)


def _draw_chain(explanation: Explanation, groups: Sequence[StepGroup], width: int) -> Part:
    """What the steps read, in short, one after the other; the answer follows below."""
    words: list[str] = []
    colors: list[Color] = []
    for _, read in reasoning_chain(explanation.words, groups):
        words += [*read, "→"]
        colors += [TEXT] * len(read) + [ACCENT]
    return draw_words(words, 28, width, colors=colors)


# --- steps -----------------------------------------------------------------------------------


def _rows_of_cards(explanation: Explanation, groups: Sequence[StepGroup]) -> list[Part]:
    count = len(groups)
    columns = even_columns(count, CARDS_IN_ROW)
    width = min(IMAGE_WIDTH, (FIGURE_WIDTH + ARROW_WIDTH) // max(2, columns) - ARROW_WIDTH)
    cards = [draw_card(explanation, group, width) for group in groups]
    return rows_of_cards(cards, columns, _arrow)


def _arrow(height: int) -> Part:
    x = (ARROW_WIDTH - font_of(36).getlength("→")) / 2
    return Part(ARROW_WIDTH, height, (Text(x, height / 2 + 12, "→", 36, ACCENT),))


def _strip(explanation: Explanation, groups: Sequence[StepGroup]) -> Part:
    """All steps in small; a line joins those of a card, those that the gate skipped are dark."""
    steps = explanation.steps
    columns = min(STRIP_COLUMNS, max(12, len(steps)))
    width = (FIGURE_WIDTH + STRIP_GAP) // columns - STRIP_GAP
    image, card_of = resized(explanation.image, width), {n: g for g in groups for n in g.numbers}
    small = []
    for number, step in enumerate(steps, 1):
        pixels = overlay_attention(image, step.image, explanation.centers)
        if step.idle:
            pixels = (IDLE_LIGHT * pixels).astype(np.uint8)
        line = Part(width, 4)
        if card := card_of.get(number):
            joined = number % columns and number + 1 in card.numbers
            line = Part(width, 4, (Box(0, 0, width + (STRIP_GAP if joined else 0), 4, ACCENT),))
        label = draw_text(f"{number} idle" if step.idle else str(number), width, 18)
        small.append(stack(4, centered(pixels, width), line, label))
    rows = [small[start : start + columns] for start in range(0, len(small), columns)]
    return stack(STRIP_GAP, *(stack(STRIP_GAP, *row, across=True) for row in rows))
