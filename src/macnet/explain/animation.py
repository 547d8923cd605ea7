"""An explanation as an animation: the question, its steps one after the other, and the answer.

Each frame has the whole question, with the words lit that a step reads. If the network wrote a
program, it has a frame of its own, and then each of its modules.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from macnet.explain.cards import (
    CARD,
    LIT,
    PADDING,
    UNLIT,
    card_title,
    describe_shares,
    draw_answer,
    draw_question,
    lit_image,
    lit_words,
)
from macnet.explain.drawing import (
    BACKGROUND,
    SMALL_GAP,
    Box,
    Part,
    font_size,
    of_height,
    on_card,
    stack,
    to_image,
)
from macnet.explain.grouping import StepGroup, group_steps
from macnet.explain.program_figure import draw_module, draw_program
from macnet.explain.reply import Explanation
from macnet.files import write_atomically

FRAME_WIDTH = 480  # without padding
QUESTION_MS, PROGRAM_MS, PANEL_MS, ANSWER_MS = 2500, 4000, 1600, 4000  # durations of frames
ASKED = (200, 200, 205)  # the question, before any word is read
DOT, DOT_GAP = 10, 6  # of the row of dots, one a step
ON, OFF = (245, 161, 26), (70, 70, 76)  # of a step that is shown, and of the others
MAX_BYTES = 500_000
SCALES = 1, 0.8, 0.65, 0.5, 0.35, 0.25, 0.18  # the sizes that are tried to get there
COLORS = 255  # of a frame, and one for what stays as it was
MARKS = (ON, OFF, LIT, UNLIT, CARD)  # which are few pixels, or must not be a shade off
SAMPLES = 2  # of whose pixels one is looked at for the palette, each way


def write_gif(
    explanation: Explanation, out: Path, groups: Sequence[StepGroup] | None = None
) -> None:
    """Write the explanation as an animation; `groups` are its steps, by default all that tell."""
    frames = draw_frames(explanation, groups)
    program = [PROGRAM_MS] if explanation.modules else []
    panels = len(frames) - 2 - len(program)
    times = [QUESTION_MS, *program, *[PANEL_MS] * panels, ANSWER_MS]
    for scale in SCALES:
        content = _encode(frames, times, scale)
        if len(content) <= MAX_BYTES:
            break
    write_atomically(out, content)


def _encode(frames: Sequence[Image.Image], times: Sequence[int], scale: float) -> bytes:
    if scale != 1:
        width, height = (round(scale * side) for side in frames[0].size)
        frames = [frame.resize((width, height), Image.Resampling.LANCZOS) for frame in frames]
    # Dithering would cost twice the bytes, and little banding is seen without it.
    indexed = [
        frame.quantize(palette=_palette(frame), dither=Image.Dither.NONE) for frame in frames
    ]
    content = io.BytesIO()
    indexed[0].save(
        content, "GIF", save_all=True, append_images=indexed[1:], duration=[*times], loop=0
    )
    return content.getvalue()


def _palette(frame: Image.Image) -> Image.Image:
    """Colors for a frame. Rare ones count for more than they are, or all would be gray."""
    pixels = np.asarray(frame)[::SAMPLES, ::SAMPLES].reshape(-1, 3)
    shades, counts = np.unique(pixels // 2, axis=0, return_counts=True)
    weighted = np.repeat(2 * shades + 1, np.sqrt(counts).astype(int), axis=0)
    image = Image.fromarray(weighted.astype(np.uint8)[None])
    own = image.quantize(COLORS - len(MARKS), Image.Quantize.MEDIANCUT, kmeans=1).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*own, *(value for color in MARKS for value in color)])
    return palette


def draw_frames(
    explanation: Explanation, groups: Sequence[StepGroup] | None = None
) -> list[Image.Image]:
    """The image and the question, a frame for each group or module, and the answer: of one size."""
    plain = lit_image(explanation, None, FRAME_WIDTH)
    size = font_size(explanation.words, 26, 20, 14)
    question = draw_question(explanation.reply, FRAME_WIDTH, size, color=ASKED)
    answer = draw_answer(explanation.reply, FRAME_WIDTH, 44, color=LIT, muted=UNLIT)
    if explanation.modules:
        frames = [on_card(draw_program(explanation, FRAME_WIDTH, 17, 1), BACKGROUND, PADDING, 0)]
        count = len(explanation.modules)
        frames += [
            draw_module(explanation, i, FRAME_WIDTH + 2 * PADDING, size) for i in range(count)
        ]
    else:
        groups = groups or group_steps(explanation.steps)
        frames = [_on_card(*_step(explanation, group, question, size)) for group in groups]
    frames = [
        _on_card(card_title("the question", None, FRAME_WIDTH), plain, question),
        *frames,
        _on_card(card_title("the answer", None, FRAME_WIDTH), plain, answer),
    ]
    height = max(frame.height for frame in frames)
    return [to_image(of_height(frame, height)) for frame in frames]


def _on_card(*parts: Part) -> Part:
    return on_card(stack(SMALL_GAP, *parts), CARD, PADDING, 0)


def _step(
    explanation: Explanation, group: StepGroup, question: Part, size: int
) -> tuple[Part, ...]:
    """A group of steps: its number among all, its image, and the question with its words lit."""
    count = len(explanation.steps)
    title = card_title(f"{group.title} of {count}", describe_shares(group), FRAME_WIDTH)
    words = question
    if group.words is not None:
        words = lit_words([*zip(explanation.words, group.words, strict=True)], FRAME_WIDTH, size)
    dots = [
        Box(i * (DOT + DOT_GAP), 0, DOT, DOT, ON if i + 1 in group.numbers else OFF, DOT / 2)
        for i in range(count)
    ]
    image = lit_image(explanation, group.image, FRAME_WIDTH)
    return title, image, Part(FRAME_WIDTH, DOT, tuple(dots)), words
