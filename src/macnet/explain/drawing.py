"""Parts of figures: words, lines of text, boxes and images, and how they are put together.

A part is a list of marks with a size, and knows neither pixels nor files. Parts are stacked above
and beside one another, and none needs to know the size of the others. `to_image` paints a part in
pixels; `vector.py` writes it as SVG or PDF.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

MARGIN, GAP, SMALL_GAP = 36, 28, 10
MAX_HEIGHT, MIN_HEIGHT = 1.5, 0.25  # of the room for an image, in widths
BASELINE = 0.8  # of a line of text, from its top, in font sizes
CORNER_SAMPLES = 4  # a side of a pixel, for round corners without steps

Color = tuple[int, ...]
BACKGROUND, TEXT, MUTED = (255, 255, 255), (26, 26, 26), (107, 107, 107)
WARNING, DIFFERENT = (150, 0, 24), (252, 228, 226)  # what differs, and behind it; 7:1

# --- marks and parts -------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A filled rectangle, with round corners if it has a radius."""

    x: float
    y: float
    width: float
    height: float
    color: Color
    radius: float = 0


@dataclass(frozen=True)
class Text:
    """A line of text, from its left end and its baseline."""

    x: float
    y: float
    text: str
    size: int
    color: Color = TEXT
    bold: bool = False


@dataclass(frozen=True)
class Picture:
    """Pixels (H, W, 3) uint8, each of them as large as a unit of length."""

    x: float
    y: float
    pixels: np.ndarray
    radius: float = 0


Mark: TypeAlias = Box | Text | Picture


@dataclass(frozen=True)
class Part:
    """Marks in a rectangle, which they do not leave."""

    width: int
    height: int
    marks: tuple[Mark, ...] = ()

    def moved(self, x: float, y: float) -> tuple[Mark, ...]:
        """Its marks, further right and further down."""
        return tuple(replace(mark, x=mark.x + x, y=mark.y + y) for mark in self.marks)


def stack(gap: int, *parts: Part, across: bool = False) -> Part:
    """Parts one below the other, or side by side."""
    sizes = np.array([(part.width, part.height) for part in parts])
    along = 0 if across else 1
    size = sizes.max(0)
    size[along] = sizes[:, along].sum() + gap * (len(parts) - 1)
    marks: list[Mark] = []
    at = 0
    for part in parts:
        marks += part.moved(at, 0) if across else part.moved(0, at)
        at += (part.width if across else part.height) + gap
    return Part(int(size[0]), int(size[1]), tuple(marks))


def with_margin(part: Part) -> Part:
    """With a margin around it."""
    size = part.width + 2 * MARGIN, part.height + 2 * MARGIN
    return Part(*size, part.moved(MARGIN, MARGIN))


def on_card(part: Part, color: Color, padding: int, radius: int) -> Part:
    """On a box of a color, with some room around it."""
    size = part.width + 2 * padding, part.height + 2 * padding
    return Part(*size, (Box(0, 0, *size, color, radius), *part.moved(padding, padding)))


def of_height(part: Part, height: int) -> Part:
    """As high as others beside it; a card's box, its first mark, grows with it."""
    first, *others = part.marks
    if isinstance(first, Box) and first.height == part.height:
        first = replace(first, height=height)
    return Part(part.width, height, (first, *others))


def even_columns(count: int, most: int) -> int:
    """The columns of as few rows as can be, with so many columns at most, that are as full."""
    return -(-count // -(-count // most))


def rows_of_cards(
    cards: Sequence[Part], columns: int, between: Callable[[int], Part]
) -> list[Part]:
    """Rows of cards that are as high as the highest of their row, with something between two."""
    rows = []
    for start in range(0, len(cards), columns):
        row = cards[start : start + columns]
        height = max(card.height for card in row)
        parts = [part for card in row for part in (of_height(card, height), between(height))]
        rows.append(stack(0, *parts[:-1], across=True))
    return rows


# --- text ------------------------------------------------------------------------------------


def draw_text(text: str, width: int, size: int, *, color: Color = MUTED) -> Part:
    """A line of text, cut off where there is no more room."""
    line = Text(0, BASELINE * 1.2 * size, truncate(text, font_of(size), width), size, color)
    return Part(width, round(1.2 * size), (line,))


def draw_words(
    words: Sequence[str],
    size: int,
    width: int,
    *,
    color: Color = TEXT,
    colors: Sequence[Color] | None = None,
    bold: bool = False,
) -> Part:
    """Words in as many lines as they take, all in one color or each in its own."""
    font, line = font_of(size, bold), round(size * 1.4)
    gap = font.getlength(" ")
    marks: list[Mark] = []
    x, y = 0.0, 0
    for index, word in enumerate(words):
        for piece in pieces(word, font, width):
            length = font.getlength(piece)
            if x + length > width and x > 0:
                x, y = 0.0, y + line
            marks.append(Text(x, y + size, piece, size, colors[index] if colors else color, bold))
            x += length + gap
    return Part(width, y + line, tuple(marks))


def mix(low: Color, high: Color, share: float) -> Color:
    """A color between two."""
    return tuple(round(a + (b - a) * share) for a, b in zip(low, high, strict=True))


def pieces(word: str, font: ImageFont.FreeTypeFont, width: float) -> Iterator[str]:
    """A word, in as many pieces as it takes to fit a line."""
    while (fits := _letters_that_fit(word, font, width)) < len(word):
        yield word[:fits]
        word = word[fits:]
    yield word


def _letters_that_fit(word: str, font: ImageFont.FreeTypeFont, width: float) -> int:
    """The number of its letters that fit, at least one."""
    # Among at most twice as many as are known to fit: measuring all of a long word for each of its
    # pieces would take quadratic time.
    some = 1
    while some < len(word) and font.getlength(word[:some]) <= width:
        some *= 2
    few = range(min(some, len(word)) + 1)
    return max(1, bisect(few, width, key=lambda n: font.getlength(word[:n])) - 1)


def truncate(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """As much of a text as fits, with … where it is cut."""
    first = next(pieces(text, font, width))
    return first if first == text else f"{first}…"


def font_size(words: Sequence[str], few: int, many: int, crowd: int) -> int:
    """The font size, by the length of a question; CLEVR's longest have 46 words."""
    letters = sum(len(word) + 1 for word in words)
    return few if letters < 180 else many if letters < 360 else crowd


@cache
def font_of(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu, which comes with matplotlib and covers more scripts than Pillow's own font."""
    import matplotlib  # here, for a page does not need it

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(matplotlib.get_data_path()) / "fonts/ttf" / name
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


# --- images ----------------------------------------------------------------------------------


def resized(image: np.ndarray, width: int) -> np.ndarray:
    """As large as the room for it allows."""
    height = image.shape[0] * width / image.shape[1]
    scale = min(1.0, MAX_HEIGHT * width / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))


def centered(image: np.ndarray, width: int, radius: float = 0) -> Part:
    """In the middle of the room for an image."""
    height = max(image.shape[0], round(MIN_HEIGHT * width))
    corner = (width - image.shape[1]) // 2, (height - image.shape[0]) // 2
    return Part(width, height, (Picture(*corner, image, radius),))


def to_image(part: Part) -> Image.Image:
    """The part in pixels."""
    image = Image.new("RGB", (part.width, part.height), BACKGROUND)
    pen = ImageDraw.Draw(image)
    for mark in part.marks:
        x, y = round(mark.x), round(mark.y)
        if isinstance(mark, Text):
            font = font_of(mark.size, mark.bold)
            pen.text((mark.x, y), mark.text, mark.color, font, anchor="ls")
        elif isinstance(mark, Box):
            size = round(mark.width), round(mark.height)
            image.paste(mark.color, (x, y), _corners(size, mark.radius))
        else:
            pasted = Image.fromarray(mark.pixels)
            image.paste(pasted, (x, y), _corners(pasted.size, mark.radius))
    return image


def _corners(size: tuple[int, int], radius: float) -> Image.Image:
    """What a box with round corners covers of its pixels."""
    mask = Image.new("L", size, 255)
    # No larger than half of a side, and only as much of the mask as is round is drawn in detail.
    corner = int(min(radius, size[0] / 2, size[1] / 2))
    if corner:
        large = 2 * corner * CORNER_SAMPLES
        disc = Image.new("L", (large, large))
        ImageDraw.Draw(disc).ellipse((0, 0, large - 1, large - 1), 255)
        disc = disc.resize((2 * corner, 2 * corner), Image.Resampling.BOX)
        for left, x in ((0, 0), (corner, size[0] - corner)):
            for top, y in ((0, 0), (corner, size[1] - corner)):
                mask.paste(disc.crop((left, top, left + corner, top + corner)), (x, y))
    return mask
