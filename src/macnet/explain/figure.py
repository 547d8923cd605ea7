"""An explanation as one picture (PNG), or as a film with a frame a step (GIF).

Everything is a picture: some words, a row of bars, what a step looked at. Pictures are laid above
and beside one another, and none needs to know how large the others will be.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from macnet.disk import whole_file
from macnet.explain.overlay import shade
from macnet.explain.reply import Explanation, Look, Reply, Unknown

PANEL, FRAME = 320, 640  # the width of a step, in the figure and in the film
MARGIN, GAP, NEAR = 36, 30, 10
TALLEST, FLATTEST = 1.5, 0.25  # the room for a picture, in widths
PAPER, INK, QUIET, FAINT = (255, 255, 255), (26, 26, 26), (107, 107, 107), (228, 228, 228)
WARM = (245, 161, 26)  # behind the most attended word; ink reads on it at 8:1
SMALL = 15
LIKELIEST = 5  # answers that are shown
QUESTION_MS, STEP_MS, ANSWER_MS = 2000, 1000, 4000  # that a frame stays

Colour = tuple[int, ...]


def write_png(explanation: Explanation, out: Path) -> None:
    figure = draw_figure(explanation)
    with whole_file(out) as file:
        figure.save(file, "PNG")


def write_gif(explanation: Explanation, out: Path) -> None:
    frames = [frame.quantize(256, Image.Quantize.MEDIANCUT) for frame in draw_frames(explanation)]
    stays = [QUESTION_MS, *[STEP_MS] * len(explanation.looks), ANSWER_MS]
    with whole_file(out) as file:
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=stays, loop=0)


def draw_figure(explanation: Explanation) -> Image.Image:
    """The question above; then in rows the picture, a panel for each step, and the answer."""
    picture = _resized(explanation.picture, PANEL)
    size = _size(explanation.words, 19, 15, 12)
    panels = [_above(NEAR, _text("the picture", PANEL), _boxed(picture, PANEL))]
    panels += _steps(explanation, picture, PANEL, size)
    cells = len(panels) + 1
    columns = min((5, 4, 3)[: 2 + (cells < 10)], key=lambda count: -cells % count)
    room = min(2, 1 + -cells % columns)  # the answer may take what is left of the last row
    room = room * (PANEL + GAP) - GAP
    panels.append(_above(NEAR, _text("the answer", room), _answer(explanation.reply, room)))
    rows = [_beside(GAP, *panels[at : at + columns]) for at in range(0, cells, columns)]
    width = columns * (PANEL + GAP) - GAP
    return _framed(_above(GAP, _question(explanation.reply, width, 34), *rows), width)


def draw_frames(explanation: Explanation) -> list[Image.Image]:
    """The picture and the question, a frame for each step, and the answer: all of one size."""
    picture = _resized(explanation.picture, FRAME)
    plain, reply = _boxed(picture, FRAME), explanation.reply
    frames = [
        _above(NEAR, _text("the question", FRAME), plain, _question(reply, FRAME, 28)),
        *_steps(explanation, picture, FRAME, _size(explanation.words, 28, 20, 14)),
        _above(NEAR, _text("the answer", FRAME), plain, _answer(reply, FRAME)),
    ]
    height = max(frame.height for frame in frames)
    return [_framed(frame, FRAME, height) for frame in frames]


# --- what is shown ---------------------------------------------------------------------------


def _question(reply: Reply, width: int, size: int) -> Image.Image:
    words = reply.question.split()
    return _words(words, None, _size(words, size, 24, 16), width)


def _steps(
    explanation: Explanation, picture: np.ndarray, width: int, size: int
) -> Iterator[Image.Image]:
    """What each step kept, looked at, read and recalled."""
    for number, look in enumerate(explanation.looks, 1):
        parts = [_title(number, look, width), _boxed(shade(picture, look.places), width)]
        if look.words is not None:
            parts.append(_words(explanation.words, look.words, size, width))
        if look.recalled is not None and len(look.recalled):
            parts.append(_recalled(number, look.recalled, width))
        yield _above(NEAR, *parts)


def _title(number: int, look: Look, width: int) -> Image.Image:
    title = _text(str(number), width, bold=True)
    if look.kept is not None:
        kept = f"kept {look.kept:.2f} of the old memory"
        ImageDraw.Draw(title).text((width, 0), kept, QUIET, _font(SMALL), anchor="ra")
    return title


def _recalled(number: int, shares: np.ndarray, width: int) -> Image.Image:
    """A bar over the number of each step before; 0 is where all begin."""
    image = Image.new("RGB", (width, 54), PAPER)
    pen = ImageDraw.Draw(image)
    pen.text((0, 18), "recalled", QUIET, _font(SMALL))
    left = 80
    apart = min(24, (width - left) / len(shares))
    font = _font(12 if apart > 18 else 9)
    for column, share in enumerate(shares):
        x = left + column * apart
        pen.rectangle((x + 1, 0, x + apart - 3, 36), FAINT)
        pen.rectangle((x + 1, round(36 * (1 - share)), x + apart - 3, 36), INK)
        before = number - len(shares) + column
        pen.text((x + apart / 2 - 1, 40), str(before), QUIET, font, anchor="ma")
    return image


def _answer(reply: Reply, width: int) -> Image.Image:
    """The answer, the likeliest with their probabilities, and the words it could not know."""
    likeliest = list(islice(reply.probabilities.items(), LIKELIEST))
    names = [_cut(name, _font(19), width // 3) for name, _ in likeliest]
    left = max(_font(19).getlength(name) for name in names) + 14
    right = width - 62
    line = 32
    bars = Image.new("RGB", (width, line * len(likeliest)), PAPER)
    pen = ImageDraw.Draw(bars)
    for row, (name, (_, probability)) in enumerate(zip(names, likeliest, strict=True)):
        y = row * line
        pen.text((0, y + 4), name, INK, _font(19))
        pen.rectangle((left, y + 5, right, y + 24), FAINT)
        if length := round((right - left) * probability):
            pen.rectangle((left, y + 5, left + length, y + 24), WARM)
        pen.text((width, y + 6), f"{probability:.1%}", INK, _font(17), anchor="ra")
    parts = [_words([reply.answer], None, 44, width, bold=True), bars]
    parts += (_words(note(word).split(), None, SMALL, width) for word in reply.unknown)
    return _above(NEAR, *parts)


def note(unknown: Unknown) -> str:
    if unknown.meant is None:
        return f"It does not know the word “{unknown.word}”."
    return f"It read “{unknown.word}” as “{unknown.meant}”."


# --- words -----------------------------------------------------------------------------------


def _words(
    words: Sequence[str],
    shares: np.ndarray | None,
    size: int,
    width: int,
    *,
    bold: bool = False,
) -> Image.Image:
    """Words in lines, each on a ground that is the warmer the more it is attended."""
    font = _font(size, bold)
    pad, line = 0 if shares is None else max(3, size // 5), round(size * 1.5)
    gap = 0.7 * pad or font.getlength(" ")
    placed: list[tuple[int, str, float, int]] = []  # which word, its letters, and where
    x, y = 0.0, 0
    for which, word in enumerate(words):
        for piece in _pieces(word, font, width - 2 * pad):
            length = font.getlength(piece) + 2 * pad
            if x + length > width and x > 0:
                x, y = 0.0, y + line
            placed.append((which, piece, x, y))
            x += length + gap
    image = Image.new("RGB", (width, y + line), PAPER)
    pen = ImageDraw.Draw(image)
    strongest = 0.0 if shares is None else shares.max()
    for which, piece, x, y in placed:
        relative = 1.0 if shares is None else shares[which] / strongest if strongest > 0 else 0.0
        if shares is not None:
            box = (x, y + 1, x + font.getlength(piece) + 2 * pad, y + line - 2)
            pen.rounded_rectangle(box, pad, warmth(relative))
        ink = _mixed(QUIET, INK, relative)
        pen.text((x + pad, y + line * 0.72), piece, ink, font, anchor="ls")
    return image


def warmth(relative: float) -> Colour:
    """The ground of a word, by its attention as a share of the step's strongest."""
    return _mixed(PAPER, WARM, relative)


def _mixed(low: Colour, high: Colour, share: float) -> Colour:
    return tuple(round(a + (b - a) * share) for a, b in zip(low, high, strict=True))


def _pieces(word: str, font: ImageFont.FreeTypeFont, width: float) -> Iterator[str]:
    """A word, in as many pieces as it takes to fit a line."""
    while font.getlength(word) > width and len(word) > 1:
        fits = max(1, bisect(range(len(word)), width, key=lambda n: font.getlength(word[:n])) - 1)
        yield word[:fits]
        word = word[fits:]
    yield word


def _cut(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    first = next(_pieces(text, font, width))
    return first if first == text else f"{first}…"


def _size(words: Sequence[str], few: int, many: int, crowd: int) -> int:
    """Of letters: the smaller the longer a question is; CLEVR's longest have 46 words."""
    letters = sum(len(word) + 1 for word in words)
    return few if letters < 180 else many if letters < 360 else crowd


def _text(text: str, width: int, *, bold: bool = False) -> Image.Image:
    image = Image.new("RGB", (width, 20), PAPER)
    ImageDraw.Draw(image).text((0, 0), text, INK if bold else QUIET, _font(SMALL, bold))
    return image


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu, which comes with matplotlib, and has letters of more scripts than Pillow's own."""
    import matplotlib  # which a page does without

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(matplotlib.get_data_path()) / "fonts/ttf" / name
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


# --- pictures --------------------------------------------------------------------------------


def _resized(picture: np.ndarray, width: int) -> np.ndarray:
    """As large as it may be shown."""
    height = picture.shape[0] * width / picture.shape[1]
    scale = min(1.0, TALLEST * width / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS))


def _boxed(picture: np.ndarray, width: int) -> Image.Image:
    """In the middle of the room for a picture."""
    height = max(picture.shape[0], round(FLATTEST * width))
    box = Image.new("RGB", (width, height), PAPER)
    box.paste(
        Image.fromarray(picture),
        ((width - picture.shape[1]) // 2, (height - picture.shape[0]) // 2),
    )
    return box


def _above(gap: int, *parts: Image.Image) -> Image.Image:
    height = sum(part.height for part in parts) + gap * (len(parts) - 1)
    image = Image.new("RGB", (max(part.width for part in parts), height), PAPER)
    y = 0
    for part in parts:
        image.paste(part, (0, y))
        y += part.height + gap
    return image


def _beside(gap: int, *parts: Image.Image) -> Image.Image:
    width = sum(part.width for part in parts) + gap * (len(parts) - 1)
    image = Image.new("RGB", (width, max(part.height for part in parts)), PAPER)
    x = 0
    for part in parts:
        image.paste(part, (x, 0))
        x += part.width + gap
    return image


def _framed(image: Image.Image, width: int, height: int | None = None) -> Image.Image:
    size = width + 2 * MARGIN, (height or image.height) + 2 * MARGIN
    framed = Image.new("RGB", size, PAPER)
    framed.paste(image, (MARGIN, MARGIN))
    return framed
