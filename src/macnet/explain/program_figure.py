"""Parts of figures about a program that a network wrote: its list, and a card for each module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from macnet.explain.captions import phrase
from macnet.explain.cards import CARD, PADDING, RADIUS, UNLIT, card_title, lit_image, lit_words
from macnet.explain.drawing import (
    DIFFERENT,
    GAP,
    MUTED,
    SMALL_GAP,
    TEXT,
    WARNING,
    Box,
    Mark,
    Part,
    Text,
    draw_text,
    draw_words,
    even_columns,
    font_of,
    on_card,
    rows_of_cards,
    stack,
    truncate,
)
from macnet.explain.program import ProgramRow, compare, legend, title
from macnet.explain.reply import Explanation, Module

PROGRAM_COLUMNS, COMPARED_COLUMNS = 4, 2  # of a program in the figure; of two side by side
MIN_ROWS = 6  # of a program in a column
MODULES_IN_ROW = 5  # that there is room for names


def draw_program(explanation: Explanation, width: int, size: int = 22, columns: int = 0) -> Part:
    """The program that was written as a list, beside the true one if that is known."""
    rows, compared = compare(explanation), explanation.true_modules is not None
    columns = columns or (COMPARED_COLUMNS if compared else PROGRAM_COLUMNS)
    height = max(MIN_ROWS, -(-len(rows) // columns))
    room = (width + GAP) // columns - GAP
    lists = (
        _program_rows(rows[i : i + height], room, size, compared=compared)
        for i in range(0, len(rows), height)
    )
    parts = [draw_words(title(explanation).split(), size + 4, width, bold=True)]
    if signs := legend(rows):
        told = (f"{sign} {meaning}" for sign, meaning in signs.items())
        parts.append(draw_text("   ".join(told), width, size))
    return stack(SMALL_GAP, *parts, stack(GAP, *lists, across=True))


def _program_rows(rows: Sequence[ProgramRow], width: int, size: int, *, compared: bool) -> Part:
    """Lines with the number and the name of a module, how it differs, and the true module."""
    font, line = font_of(size), round(1.6 * size)
    start, sign_width = 2 * size, 2 * size
    room = (width - start - sign_width) // 2 if compared else width - start
    true_start = start + room + sign_width
    marks: list[Mark] = []
    down = round(0.5 * line + 0.36 * size)  # from the top of a line to the baseline
    if compared:
        marks += [
            Text(x, down, text, size, MUTED)
            for x, text in ((start, "written"), (true_start, "true"))
        ]
    for place, row in enumerate(rows, int(compared)):
        top = place * line
        ink = WARNING if row.sign else TEXT
        if row.sign:
            at = start + room + (sign_width - font_of(size, True).getlength(row.sign)) / 2
            marks.append(Box(0, top + 1, width, line - 2, DIFFERENT))
            marks.append(Text(at, top + down, row.sign, size, WARNING, True))
        if row.number is not None:
            number = str(row.number)
            left = start - size / 2 - font.getlength(number)
            marks.append(Text(left, top + down, number, size, MUTED))
        for name, x in ((row.written, start), (row.true, true_start)):
            if name is not None:
                marks.append(Text(x, top + down, truncate(name, font, room), size, ink))
    return Part(width, line * (len(rows) + compared), tuple(marks))


# --- modules ---------------------------------------------------------------------------------


def module_cards(explanation: Explanation, width: int) -> list[Part]:
    """A title, and rows of cards that are as full as can be."""
    count = len(explanation.modules)
    text = "Its modules in order of execution"
    if any(module.image is not None for module in explanation.modules):
        text += f"; on the image, their {explanation.map_title}"
    parts = [draw_words(text.split(), 26, width, bold=True)]
    columns = max(2, even_columns(count, MODULES_IN_ROW))
    room = (width + GAP) // columns - GAP
    cards = [draw_module(explanation, i, room) for i in range(count)]
    return parts + rows_of_cards(cards, columns, partial(Part, GAP))


def draw_module(explanation: Explanation, index: int, width: int, size: int = 22) -> Part:
    """A module: what it takes, its name, its map, and the words that it attends to."""
    module, room = explanation.modules[index], width - 2 * PADDING
    parts = [
        card_title(str(index + 1), _facts(module), room),
        draw_words([module.name], 22, room, color=UNLIT),
        lit_image(explanation, module.image, room),
    ]
    if module.words is not None:
        parts.append(lit_words(phrase(explanation.words, module.words), room, size))
    return on_card(stack(SMALL_GAP, *parts), CARD, PADDING, RADIUS)


def _facts(module: Module) -> str:
    takes = ", ".join(str(i + 1) for i in module.inputs)
    return "; ".join([f"takes {takes}"] * bool(takes) + ["no map"] * (module.image is None))
