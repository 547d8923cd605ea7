"""An explanation as one figure (PNG), or as an animation with a frame per step (GIF).

Every part is an image: some words, a row of bars, what a step attended to. Parts are stacked above
and beside one another, and none needs to know the size of the others.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from macnet.explain.overlay import overlay_attention
from macnet.explain.reply import Explanation, Reply, StepAttention
from macnet.files import atomic_file

FIGURE_WIDTH, FRAME_WIDTH = 1600, 640  # without margins; half a figure fits a column of text
IMAGE_WIDTH = 640  # of the image itself, in the figure
MARGIN, GAP, SMALL_GAP = 36, 28, 10
MAX_HEIGHT, MIN_HEIGHT = 1.5, 0.25  # of the room for an image, in widths
BACKGROUND, TEXT, MUTED, FAINT = (255, 255, 255), (26, 26, 26), (107, 107, 107), (228, 228, 228)
HIGHLIGHT = (245, 161, 26)  # behind the most attended word; text has a contrast of 8:1 on it
TOP_WORDS, TOP_SHARE = 6, 2 / 3  # the most words of a step in the figure, and their attention
MAX_LETTERS = 15  # of a word there
MAX_QUESTION = 1600  # letters; questions with the most words, if like CLEVR's, have no more
TOP_ANSWERS = 5
QUESTION_MS, STEP_MS, ANSWER_MS = 2000, 1000, 4000  # durations of frames

Color = tuple[int, ...]


def write_png(explanation: Explanation, out: Path) -> None:
    """Write the explanation as a figure."""
    with atomic_file(out) as file:
        draw_figure(explanation).save(file, "PNG")


def write_gif(explanation: Explanation, out: Path) -> None:
    """Write the explanation as an animation."""
    frames = [frame.quantize(256, Image.Quantize.MEDIANCUT) for frame in draw_frames(explanation)]
    times = [QUESTION_MS, *[STEP_MS] * len(explanation.steps), ANSWER_MS]
    with atomic_file(out) as file:
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0)


def draw_figure(explanation: Explanation) -> Image.Image:
    """The image, the question and the answer; below, in rows, a panel for each step."""
    reply, room = explanation.reply, FIGURE_WIDTH - GAP - IMAGE_WIDTH
    image = _centered(_resized(explanation.image, IMAGE_WIDTH), IMAGE_WIDTH)
    text = _stack(SMALL_GAP, _question(reply, room, 40), _answer(reply, room))
    columns = 6 if len(explanation.steps) > 8 else min(4, max(2, len(explanation.steps)))
    # A panel is no wider than the image above it.
    panel = min(IMAGE_WIDTH, (FIGURE_WIDTH + GAP) // columns - GAP)
    steps = _steps(explanation, panel, 24, brief=True)
    rows = iter(lambda: list(islice(steps, columns)), [])
    parts = (_stack(GAP, *row, across=True) for row in ((image, text), *rows))
    return _with_margin(_stack(GAP, *parts), FIGURE_WIDTH)


def draw_frames(explanation: Explanation) -> list[Image.Image]:
    """The image and the question, a frame for each step, and the answer: all of one size."""
    reply = explanation.reply
    plain = _centered(_resized(explanation.image, FRAME_WIDTH), FRAME_WIDTH)
    label = partial(_text, width=FRAME_WIDTH, size=18)
    frames = [
        _stack(SMALL_GAP, label("the question"), plain, _question(reply, FRAME_WIDTH, 28)),
        *_steps(explanation, FRAME_WIDTH, _font_size(explanation.words, 28, 20, 14), brief=False),
        _stack(SMALL_GAP, label("the answer"), plain, _answer(reply, FRAME_WIDTH)),
    ]
    height = max(frame.height for frame in frames)
    return [_with_margin(frame, FRAME_WIDTH, height) for frame in frames]


# --- what is shown ---------------------------------------------------------------------------


def _question(reply: Reply, width: int, size: int) -> Image.Image:
    shown = reply.question[:MAX_QUESTION]
    words = (shown if shown == reply.question else f"{shown}…").split()
    return _words(words, None, _font_size(words, size, 24, 16), width)


def _steps(
    explanation: Explanation, width: int, size: int, *, brief: bool
) -> Iterator[Image.Image]:
    """Panels with the gate, the image, the words and the self-attention of each step.

    `brief`: of the words only those with most of the attention; none, if none is attended to.
    """
    image = _resized(explanation.image, width)
    for number, step in enumerate(explanation.steps, 1):
        shaded = overlay_attention(image, step.image, explanation.centers)
        parts = [_title(number, step, width), _centered(shaded, width)]
        if step.words is not None:
            words, shares = explanation.words, step.words
            if brief:
                words, shares = top_words(words, shares)
            parts.append(_words(words, shares, size, width))
        elif not brief:
            parts.append(_question(explanation.reply, width, size))
        if step.self_attention is not None and len(step.self_attention):
            parts.append(_self_attention(number, step.self_attention, width))
        yield _stack(SMALL_GAP, *parts)


def top_words(words: Sequence[str], shares: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """The fewest words that have most of the attention, in their order, for panels.

    A … stands where words are left out.
    """
    most = np.argsort(-shares, kind="stable")
    enough = np.searchsorted(shares[most].cumsum(), TOP_SHARE) + 1
    kept = sorted(most[: min(enough, TOP_WORDS)].tolist())
    shown: list[tuple[str, float]] = []
    for before, index in zip([kept[0], *kept], kept, strict=False):
        shown += [("…", 0.0)] * (index > before + 1)
        word = words[index]
        cut = word if len(word) <= MAX_LETTERS else f"{word[:MAX_LETTERS]}…"
        shown.append((cut, shares[index]))
    names, weights = zip(*shown, strict=True)
    return names, np.array(weights)


def _title(number: int, step: StepAttention, width: int) -> Image.Image:
    title = _text(str(number), width, 24, bold=True)
    if step.gate is not None:
        kept = f"kept {step.gate:.2f}"
        ImageDraw.Draw(title).text((width, 0), kept, MUTED, _font(22), anchor="ra")
    return title


def _self_attention(number: int, shares: np.ndarray, width: int) -> Image.Image:
    """A bar over the number of each previous step; 0 is the initial state."""
    image = Image.new("RGB", (width, 86), BACKGROUND)
    pen = ImageDraw.Draw(image)
    pen.text((0, 0), "recalled", MUTED, _font(20))
    apart = min(30, width / len(shares))
    font = _font(min(18, int(0.8 * apart)))
    for column, share in enumerate(shares):
        x = column * apart
        pen.rectangle((x, 28, x + apart - 4, 64), FAINT)
        pen.rectangle((x, 28 + round(36 * (1 - share)), x + apart - 4, 64), TEXT)
        before = number - len(shares) + column
        pen.text((x + apart / 2 - 2, 67), str(before), MUTED, font, anchor="ma")
    return image


def _answer(reply: Reply, width: int) -> Image.Image:
    """The answer, the most probable answers, and notes on unknown words."""
    likeliest = list(islice(reply.probabilities.items(), TOP_ANSWERS))
    names = [_truncate(name, _font(26), width // 3) for name, _ in likeliest]
    left = max(_font(26).getlength(name) for name in names) + 16
    right = width - 104
    line = 42
    bars = Image.new("RGB", (width, line * len(likeliest)), BACKGROUND)
    pen = ImageDraw.Draw(bars)
    for row, (name, (_, probability)) in enumerate(zip(names, likeliest, strict=True)):
        middle = row * line + line // 2
        pen.text((0, middle), name, TEXT, _font(26), anchor="lm")
        pen.rectangle((left, middle - 13, right, middle + 13), FAINT)
        if length := round((right - left) * probability):
            pen.rectangle((left, middle - 13, left + length, middle + 13), HIGHLIGHT)
        pen.text((width, middle), f"{probability:.1%}", TEXT, _font(24), anchor="rm")
    parts = [_words([reply.answer], None, 56, width, bold=True), bars]
    parts += (_words(note.split(), None, 22, width) for note in reply.notes)
    return _stack(SMALL_GAP, *parts)


# --- words -----------------------------------------------------------------------------------


def _words(
    words: Sequence[str], shares: np.ndarray | None, size: int, width: int, *, bold: bool = False
) -> Image.Image:
    """Words in lines, each on a background that shows its attention."""
    font = _font(size, bold)
    pad, line = 0 if shares is None else max(3, size // 5), round(size * 1.5)
    gap = pad or font.getlength(" ")
    placed: list[tuple[int, str, float, int]] = []  # which word, its letters, and where
    x, y = 0.0, 0
    for index, word in enumerate(words):
        for piece in _pieces(word, font, width - 2 * pad):
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


def _pieces(word: str, font: ImageFont.FreeTypeFont, width: float) -> Iterator[str]:
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


def _truncate(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    first = next(_pieces(text, font, width))
    return first if first == text else f"{first}…"


def _font_size(words: Sequence[str], few: int, many: int, crowd: int) -> int:
    """The font size, by the length of a question; CLEVR's longest have 46 words."""
    letters = sum(len(word) + 1 for word in words)
    return few if letters < 180 else many if letters < 360 else crowd


def _text(text: str, width: int, size: int, *, bold: bool = False) -> Image.Image:
    image = Image.new("RGB", (width, round(1.2 * size)), BACKGROUND)
    ImageDraw.Draw(image).text((0, 0), text, TEXT if bold else MUTED, _font(size, bold))
    return image


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu, which comes with matplotlib and covers more scripts than Pillow's own font."""
    import matplotlib  # here, for a page does not need it

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(matplotlib.get_data_path()) / "fonts/ttf" / name
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


# --- images ----------------------------------------------------------------------------------


def _resized(image: np.ndarray, width: int) -> np.ndarray:
    """As large as the room for it allows."""
    height = image.shape[0] * width / image.shape[1]
    scale = min(1.0, MAX_HEIGHT * width / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))


def _centered(image: np.ndarray, width: int) -> Image.Image:
    """In the middle of the room for an image."""
    height = max(image.shape[0], round(MIN_HEIGHT * width))
    box = Image.new("RGB", (width, height), BACKGROUND)
    corner = (width - image.shape[1]) // 2, (height - image.shape[0]) // 2
    box.paste(Image.fromarray(image), corner)
    return box


def _stack(gap: int, *parts: Image.Image, across: bool = False) -> Image.Image:
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


def _with_margin(image: Image.Image, width: int, height: int | None = None) -> Image.Image:
    size = width + 2 * MARGIN, (height or image.height) + 2 * MARGIN
    framed = Image.new("RGB", size, BACKGROUND)
    framed.paste(image, (MARGIN, MARGIN))
    return framed
