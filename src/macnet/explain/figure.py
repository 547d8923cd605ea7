"""An explanation as one picture (PNG), or as a film with a frame a step (GIF).

Everything is a picture: some words, a row of bars, what a step looked at. Pictures are laid above
and beside one another, and none needs to know how large the others will be.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from macnet.disk import whole_file
from macnet.explain.overlay import shade
from macnet.explain.reply import Explanation, Look, Reply

FIGURE, FRAME = 1600, 640  # the widths of all that is shown: half of it fits a column of text
PLAIN = 640  # that of the picture as it is, in the figure
MARGIN, GAP, NEAR = 36, 28, 10
TALLEST, FLATTEST = 1.5, 0.25  # the room for a picture, in widths
PAPER, INK, QUIET, FAINT = (255, 255, 255), (26, 26, 26), (107, 107, 107), (228, 228, 228)
WARM = (245, 161, 26)  # behind the most attended word; ink reads on it at 8:1
MOST_READ, READ = 6, 2 / 3  # words of a step in the figure: so many, or that share of attention
LONGEST = 15  # letters of a word there
LONGEST_QUESTION = 1600  # letters; one of the most words, and such as CLEVR's, has no more
LIKELIEST = 5  # answers that are shown
QUESTION_MS, STEP_MS, ANSWER_MS = 2000, 1000, 4000  # that a frame stays

Colour = tuple[int, ...]
Reading = Callable[[Sequence[str], np.ndarray], tuple[Sequence[str], np.ndarray]]
"""Of words and their attention, those that are shown."""


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
    """The picture, the question and the answer; below, in rows, a panel for each step."""
    reply, room = explanation.reply, FIGURE - GAP - PLAIN
    picture = _boxed(_resized(explanation.picture, PLAIN), PLAIN)
    told = _above(NEAR, _question(reply, room, 40), _answer(reply, room))
    columns = 4 if len(explanation.looks) <= 8 else 6
    steps = _steps(explanation, (FIGURE + GAP) // columns - GAP, 24, most_read)
    rows = iter(lambda: list(islice(steps, columns)), [])
    parts = _beside(GAP, picture, told), *(_beside(GAP, *row) for row in rows)
    return _framed(_above(GAP, *parts), FIGURE)


def draw_frames(explanation: Explanation) -> list[Image.Image]:
    """The picture and the question, a frame for each step, and the answer: all of one size."""
    plain, reply = _boxed(_resized(explanation.picture, FRAME), FRAME), explanation.reply
    label = partial(_text, width=FRAME, size=18)
    frames = [
        _above(NEAR, label("the question"), plain, _question(reply, FRAME, 28)),
        *_steps(explanation, FRAME, _size(explanation.words, 28, 20, 14), all_read),
        _above(NEAR, label("the answer"), plain, _answer(reply, FRAME)),
    ]
    height = max(frame.height for frame in frames)
    return [_framed(frame, FRAME, height) for frame in frames]


# --- what is shown ---------------------------------------------------------------------------


def _question(reply: Reply, width: int, size: int) -> Image.Image:
    shown = reply.question[:LONGEST_QUESTION]
    words = (shown if shown == reply.question else f"{shown}…").split()
    return _words(words, None, _size(words, size, 24, 16), width)


def _steps(explanation: Explanation, width: int, size: int, read: Reading) -> Iterator[Image.Image]:
    """What each step kept, looked at, read and recalled."""
    picture = _resized(explanation.picture, width)
    for number, look in enumerate(explanation.looks, 1):
        lit = shade(picture, look.places, explanation.centres)
        parts = [_title(number, look, width), _boxed(lit, width)]
        if look.words is not None:
            parts.append(_words(*read(explanation.words, look.words), size, width))
        if look.recalled is not None and len(look.recalled):
            parts.append(_recalled(number, look.recalled, width))
        yield _above(NEAR, *parts)


def all_read(words: Sequence[str], shares: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
    return words, shares


def most_read(words: Sequence[str], shares: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
    """The fewest words that have most of the attention, in their order; … where some are left out.

    A panel has room for no more.
    """
    most = np.argsort(-shares, kind="stable")
    enough = np.searchsorted(shares[most].cumsum(), READ) + 1
    kept = sorted(most[: min(enough, MOST_READ)].tolist())
    told: list[tuple[str, float]] = []
    for before, which in zip([kept[0], *kept], kept, strict=False):
        told += [("…", 0.0)] * (which > before + 1)
        word = words[which]
        told.append((word if len(word) <= LONGEST else f"{word[:LONGEST]}…", shares[which]))
    names, weights = zip(*told, strict=True)
    return names, np.array(weights)


def _title(number: int, look: Look, width: int) -> Image.Image:
    title = _text(str(number), width, 24, bold=True)
    if look.kept is not None:
        kept = f"kept {look.kept:.2f}"
        ImageDraw.Draw(title).text((width, 0), kept, QUIET, _font(22), anchor="ra")
    return title


def _recalled(number: int, shares: np.ndarray, width: int) -> Image.Image:
    """A bar over the number of each step before; 0 is where all begin."""
    image = Image.new("RGB", (width, 86), PAPER)
    pen = ImageDraw.Draw(image)
    pen.text((0, 0), "recalled", QUIET, _font(20))
    apart = min(30, width / len(shares))
    font = _font(min(18, int(0.8 * apart)))
    for column, share in enumerate(shares):
        x = column * apart
        pen.rectangle((x, 28, x + apart - 4, 64), FAINT)
        pen.rectangle((x, 28 + round(36 * (1 - share)), x + apart - 4, 64), INK)
        before = number - len(shares) + column
        pen.text((x + apart / 2 - 2, 67), str(before), QUIET, font, anchor="ma")
    return image


def _answer(reply: Reply, width: int) -> Image.Image:
    """The answer, the likeliest with their probabilities, and the words it could not know."""
    likeliest = list(islice(reply.probabilities.items(), LIKELIEST))
    names = [_cut(name, _font(26), width // 3) for name, _ in likeliest]
    left = max(_font(26).getlength(name) for name in names) + 16
    right = width - 104
    line = 42
    bars = Image.new("RGB", (width, line * len(likeliest)), PAPER)
    pen = ImageDraw.Draw(bars)
    for row, (name, (_, probability)) in enumerate(zip(names, likeliest, strict=True)):
        middle = row * line + line // 2
        pen.text((0, middle), name, INK, _font(26), anchor="lm")
        pen.rectangle((left, middle - 13, right, middle + 13), FAINT)
        if length := round((right - left) * probability):
            pen.rectangle((left, middle - 13, left + length, middle + 13), WARM)
        pen.text((width, middle), f"{probability:.1%}", INK, _font(24), anchor="rm")
    parts = [_words([reply.answer], None, 56, width, bold=True), bars]
    parts += (_words(note.split(), None, 22, width) for note in reply.notes)
    return _above(NEAR, *parts)


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
    gap = pad or font.getlength(" ")
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
    while (fits := _fitting(word, font, width)) < len(word):
        yield word[:fits]
        word = word[fits:]
    yield word


def _fitting(word: str, font: ImageFont.FreeTypeFont, width: float) -> int:
    """How many of its letters fit; but one in any case."""
    # Among twice as many as are known to: to measure all of a long word, for each of its pieces,
    # would take for ever.
    some = 1
    while some < len(word) and font.getlength(word[:some]) <= width:
        some *= 2
    if some >= len(word) and font.getlength(word) <= width:
        return len(word)
    few = range(min(some, len(word)))
    return max(1, bisect(few, width, key=lambda n: font.getlength(word[:n])) - 1)


def _cut(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    first = next(_pieces(text, font, width))
    return first if first == text else f"{first}…"


def _size(words: Sequence[str], few: int, many: int, crowd: int) -> int:
    """Of letters: the smaller the longer a question is; CLEVR's longest have 46 words."""
    letters = sum(len(word) + 1 for word in words)
    return few if letters < 180 else many if letters < 360 else crowd


def _text(text: str, width: int, size: int, *, bold: bool = False) -> Image.Image:
    image = Image.new("RGB", (width, round(1.2 * size)), PAPER)
    ImageDraw.Draw(image).text((0, 0), text, INK if bold else QUIET, _font(size, bold))
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
