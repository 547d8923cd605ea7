"""An explanation as one figure (PNG), or as an animation with a frame per panel (GIF).

A panel is a reasoning step and what it attended to, or a module of a program that was written and
what it put out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from macnet.explain.drawing import (
    BACKGROUND,
    DIFFERENT,
    FAINT,
    GAP,
    HIGHLIGHT,
    MUTED,
    SMALL_GAP,
    TEXT,
    WARNING,
    centered,
    draw_text,
    draw_words,
    font_of,
    font_size,
    resized,
    stack,
    truncate,
    with_margin,
)
from macnet.explain.overlay import overlay_attention
from macnet.explain.program import ProgramRow, compare, legend, title
from macnet.explain.reply import Explanation, Module, Reply, StepAttention
from macnet.files import atomic_file

FIGURE_WIDTH, FRAME_WIDTH = 1600, 640  # without margins; half a figure fits a column of text
IMAGE_WIDTH = 640  # of the image itself, in the figure
TOP_WORDS, TOP_SHARE = 6, 2 / 3  # the most words of a step in the figure, and their attention
MAX_LETTERS = 15  # of a word there
MAX_QUESTION = 1600  # letters; questions with the most words, if like CLEVR's, have no more
TOP_ANSWERS = 5
PROGRAM_COLUMNS, COMPARED_COLUMNS = 4, 2  # of a program in the figure; of two side by side
MIN_ROWS = 6  # of a program in a column
QUESTION_MS, PROGRAM_MS, PANEL_MS, ANSWER_MS = 2000, 4000, 1000, 4000  # durations of frames


def write_png(explanation: Explanation, out: Path) -> None:
    """Write the explanation as a figure."""
    with atomic_file(out) as file:
        draw_figure(explanation).save(file, "PNG")


def write_gif(explanation: Explanation, out: Path) -> None:
    """Write the explanation as an animation."""
    frames = [frame.quantize(256, Image.Quantize.MEDIANCUT) for frame in draw_frames(explanation)]
    program = [PROGRAM_MS] if explanation.modules else []
    times = [QUESTION_MS, *program, *[PANEL_MS] * len(explanation.panels), ANSWER_MS]
    with atomic_file(out) as file:
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0)


def draw_figure(explanation: Explanation) -> Image.Image:
    """The image, the question and the answer; below, in rows, a panel for each step or module.

    A program that was written stands between, beside the true one if that is known.
    """
    reply, room = explanation.reply, FIGURE_WIDTH - GAP - IMAGE_WIDTH
    image = centered(resized(explanation.image, IMAGE_WIDTH), IMAGE_WIDTH)
    text = stack(SMALL_GAP, _question(reply, room, 40), _answer(reply, room))
    parts = [stack(GAP, image, text, across=True)]
    count = len(explanation.panels)
    columns = 6 if count > 8 else min(4, max(2, count))
    if explanation.modules:
        compared = explanation.true_modules is not None
        across = COMPARED_COLUMNS if compared else PROGRAM_COLUMNS
        parts.append(_program(explanation, FIGURE_WIDTH, 22, across))
        parts.append(_modules_title(explanation, FIGURE_WIDTH, 26))
        # At most five, so that there is room for names; and rows that are as full as can be.
        columns = max(2, -(-count // -(-count // 5)))
    # A panel is no wider than the image above it.
    panel = min(IMAGE_WIDTH, (FIGURE_WIDTH + GAP) // columns - GAP)
    panels = _panels(explanation, panel, 24, brief=True)
    rows = iter(lambda: list(islice(panels, columns)), [])
    parts += (stack(GAP, *row, across=True) for row in rows)
    return with_margin(stack(GAP, *parts), FIGURE_WIDTH)


def draw_frames(explanation: Explanation) -> list[Image.Image]:
    """The image and the question, a frame for each panel, and the answer: all of one size.

    A program that was written has a frame before those of its modules.
    """
    reply = explanation.reply
    plain = centered(resized(explanation.image, FRAME_WIDTH), FRAME_WIDTH)
    label = partial(draw_text, width=FRAME_WIDTH, size=18)
    frames = [
        stack(SMALL_GAP, label("the question"), plain, _question(reply, FRAME_WIDTH, 28)),
        *([_program(explanation, FRAME_WIDTH, 17, 1)] if explanation.modules else []),
        *_panels(explanation, FRAME_WIDTH, font_size(explanation.words, 28, 20, 14), brief=False),
        stack(SMALL_GAP, label("the answer"), plain, _answer(reply, FRAME_WIDTH)),
    ]
    height = max(frame.height for frame in frames)
    return [with_margin(frame, FRAME_WIDTH, height) for frame in frames]


# --- what is shown ---------------------------------------------------------------------------


def _question(reply: Reply, width: int, size: int) -> Image.Image:
    shown = reply.question[:MAX_QUESTION]
    words = (shown if shown == reply.question else f"{shown}…").split()
    return draw_words(words, None, font_size(words, size, 24, 16), width)


def _panels(
    explanation: Explanation, width: int, size: int, *, brief: bool
) -> Iterator[Image.Image]:
    """Panels with the image and the words of each step or module, and what else belongs to it.

    That is the gate and the self-attention of a step, the name and the inputs of a module. `brief`:
    of the words only those with most of the attention; none, if none is attended to.
    """
    image = resized(explanation.image, width)
    for number, panel in enumerate(explanation.panels, 1):
        shaded = image
        if panel.image is not None:
            shaded = overlay_attention(image, panel.image, explanation.centers)
        parts = [_panel_title(number, panel, width), centered(shaded, width)]
        if panel.words is not None:
            words, shares = explanation.words, panel.words
            if brief:
                words, shares = top_words(words, shares)
            parts.append(draw_words(words, shares, size, width))
        elif not brief:
            parts.append(_question(explanation.reply, width, size))
        recalled = panel.self_attention if isinstance(panel, StepAttention) else None
        if recalled is not None and len(recalled):
            parts.append(_self_attention(number, recalled, width))
        yield stack(SMALL_GAP, *parts)


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


def _panel_title(number: int, panel: StepAttention | Module, width: int) -> Image.Image:
    line = draw_text(str(number), width, 24, bold=True)
    if isinstance(panel, Module):
        takes = ", ".join(str(i + 1) for i in panel.inputs)
        facts = [f"takes {takes}"] * bool(takes) + ["no map"] * (panel.image is None)
    else:
        facts = [] if panel.gate is None else [f"kept {panel.gate:.2f}"]
    ImageDraw.Draw(line).text((width, 0), "; ".join(facts), MUTED, font_of(22), anchor="ra")
    if isinstance(panel, Module):
        return stack(0, line, draw_words([panel.name], None, 22, width))
    return line


def _program(explanation: Explanation, width: int, size: int, columns: int) -> Image.Image:
    """The program that was written as a list, beside the true one if that is known."""
    rows, compared = compare(explanation), explanation.true_modules is not None
    height = max(MIN_ROWS, -(-len(rows) // columns))
    room = (width + GAP) // columns - GAP
    lists = (
        _program_rows(rows[i : i + height], room, size, compared=compared)
        for i in range(0, len(rows), height)
    )
    parts = [draw_words(title(explanation).split(), None, size + 4, width, bold=True)]
    if signs := legend(rows):
        told = (f"{sign} {meaning}" for sign, meaning in signs.items())
        parts.append(draw_text("   ".join(told), width, size))
    return stack(SMALL_GAP, *parts, stack(GAP, *lists, across=True))


def _program_rows(
    rows: Sequence[ProgramRow], width: int, size: int, *, compared: bool
) -> Image.Image:
    """Lines with the number and the name of a module, how it differs, and the true module."""
    font, bold, line = font_of(size), font_of(size, bold=True), round(1.6 * size)
    start, sign_width = 2 * size, 2 * size
    room = (width - start - sign_width) // 2 if compared else width - start
    true_start = start + room + sign_width
    image = Image.new("RGB", (width, line * (len(rows) + compared)), BACKGROUND)
    pen = ImageDraw.Draw(image)
    if compared:
        pen.text((start, line / 2), "written", MUTED, font, anchor="lm")
        pen.text((true_start, line / 2), "true", MUTED, font, anchor="lm")
    for place, row in enumerate(rows, int(compared)):
        top, middle = place * line, place * line + line / 2
        ink = WARNING if row.sign else TEXT
        if row.sign:
            pen.rectangle((0, top + 1, width - 1, top + line - 2), DIFFERENT)
            at = start + room + sign_width / 2
            pen.text((at, middle), row.sign, WARNING, bold, anchor="mm")
        if row.number is not None:
            pen.text((start - size / 2, middle), str(row.number), MUTED, font, anchor="rm")
        for name, x in ((row.written, start), (row.true, true_start)):
            if name is not None:
                pen.text((x, middle), truncate(name, font, room), ink, font, anchor="lm")
    return image


def _modules_title(explanation: Explanation, width: int, size: int) -> Image.Image:
    text = "Its modules in order of execution"
    if any(module.image is not None for module in explanation.modules):
        text += f"; on the image, their {explanation.map_title}"
    return draw_words(text.split(), None, size, width, bold=True)


def _self_attention(number: int, shares: np.ndarray, width: int) -> Image.Image:
    """A bar over the number of each previous step; 0 is the initial state."""
    image = Image.new("RGB", (width, 86), BACKGROUND)
    pen = ImageDraw.Draw(image)
    pen.text((0, 0), "recalled", MUTED, font_of(20))
    apart = min(30, width / len(shares))
    font = font_of(min(18, int(0.8 * apart)))
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
    names = [truncate(name, font_of(26), width // 3) for name, _ in likeliest]
    left = max(font_of(26).getlength(name) for name in names) + 16
    right = width - 104
    line = 42
    bars = Image.new("RGB", (width, line * len(likeliest)), BACKGROUND)
    pen = ImageDraw.Draw(bars)
    for row, (name, (_, probability)) in enumerate(zip(names, likeliest, strict=True)):
        middle = row * line + line // 2
        pen.text((0, middle), name, TEXT, font_of(26), anchor="lm")
        pen.rectangle((left, middle - 13, right, middle + 13), FAINT)
        if length := round((right - left) * probability):
            pen.rectangle((left, middle - 13, left + length, middle + 13), HIGHLIGHT)
        pen.text((width, middle), f"{probability:.1%}", TEXT, font_of(24), anchor="rm")
    parts = [draw_words([reply.answer], None, 56, width, bold=True), bars]
    parts += (draw_words(note.split(), None, 22, width) for note in reply.notes)
    return stack(SMALL_GAP, *parts)
