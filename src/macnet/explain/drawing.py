"""Parts of figures: words, lines of text and images, and how they are put together.

Every part is an image. Parts are stacked above and beside one another, and none needs to know the
size of the others.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

MARGIN, GAP, SMALL_GAP = 36, 28, 10
MAX_HEIGHT, MIN_HEIGHT = 1.5, 0.25  # of the room for an image, in widths
BACKGROUND, TEXT, MUTED, FAINT = (255, 255, 255), (26, 26, 26), (107, 107, 107), (228, 228, 228)
HIGHLIGHT = (245, 161, 26)  # behind the most attended word; text has a contrast of 8:1 on it
WARNING, DIFFERENT = (150, 0, 24), (252, 228, 226)  # what differs, and behind it; 7:1

Color = tuple[int, ...]

# --- words -----------------------------------------------------------------------------------


def draw_words(
    words: Sequence[str], shares: np.ndarray | None, size: int, width: int, *, bold: bool = False
) -> Image.Image:
    """Words in lines, each on a background that shows its attention."""
    font = font_of(size, bold)
    pad, line = 0 if shares is None else max(3, size // 5), round(size * 1.5)
    gap = pad or font.getlength(" ")
    placed: list[tuple[int, str, float, int]] = []  # which word, its letters, and where
    x, y = 0.0, 0
    for index, word in enumerate(words):
        for piece in pieces(word, font, width - 2 * pad):
            length = font.getlength(piece) + 2 * pad
            if x + length > width and x > 0:
                x, y = 0.0, y + line
            placed.append((index, piece, x, y))
            x += length + gap
    image = Image.new("RGB", (width, y + line), BACKGROUND)
    pen = ImageDraw.Draw(image)
    strongest = 0.0 if shares is None else shares.max()
    for index, piece, x, y in placed:
        relative = 1.0 if shares is None else shares[index] / strongest if strongest > 0 else 0.0
        if shares is not None:
            box = (x, y + 1, x + font.getlength(piece) + 2 * pad, y + line - 2)
            pen.rounded_rectangle(box, pad, highlight_color(relative))
        ink = _mix(MUTED, TEXT, relative)
        pen.text((x + pad, y + line * 0.72), piece, ink, font, anchor="ls")
    return image


def highlight_color(relative: float) -> Color:
    """The background of a word, by its attention relative to the step's strongest."""
    return _mix(BACKGROUND, HIGHLIGHT, relative)


def _mix(low: Color, high: Color, share: float) -> Color:
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


def draw_text(text: str, width: int, size: int, *, bold: bool = False) -> Image.Image:
    """A line of text, muted unless it is bold."""
    image = Image.new("RGB", (width, round(1.2 * size)), BACKGROUND)
    ImageDraw.Draw(image).text((0, 0), text, TEXT if bold else MUTED, font_of(size, bold))
    return image


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


def centered(image: np.ndarray, width: int) -> Image.Image:
    """In the middle of the room for an image."""
    height = max(image.shape[0], round(MIN_HEIGHT * width))
    box = Image.new("RGB", (width, height), BACKGROUND)
    corner = (width - image.shape[1]) // 2, (height - image.shape[0]) // 2
    box.paste(Image.fromarray(image), corner)
    return box


def stack(gap: int, *parts: Image.Image, across: bool = False) -> Image.Image:
    """Parts one below the other, or side by side."""
    sizes = np.array([part.size for part in parts])
    along = 0 if across else 1
    size = sizes.max(0)
    size[along] = sizes[:, along].sum() + gap * (len(parts) - 1)
    image = Image.new("RGB", (int(size[0]), int(size[1])), BACKGROUND)
    at = 0
    for part in parts:
        image.paste(part, (at, 0) if across else (0, at))
        at += part.size[along] + gap
    return image


def with_margin(image: Image.Image, width: int, height: int | None = None) -> Image.Image:
    """In the upper left of a larger image, with a margin around it."""
    size = width + 2 * MARGIN, (height or image.height) + 2 * MARGIN
    framed = Image.new("RGB", size, BACKGROUND)
    framed.paste(image, (MARGIN, MARGIN))
    return framed
