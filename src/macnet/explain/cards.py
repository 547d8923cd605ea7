"""Cards of figures and animations: dark, with words and image lit where they are attended to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from macnet.explain.captions import likely_answers, phrase
from macnet.explain.drawing import (
    MUTED,
    SMALL_GAP,
    TEXT,
    Color,
    Part,
    Text,
    centered,
    draw_text,
    draw_words,
    font_of,
    font_size,
    mix,
    on_card,
    resized,
    stack,
    truncate,
)
from macnet.explain.grouping import StepGroup
from macnet.explain.overlay import overlay_attention
from macnet.explain.reply import Explanation, Reply

CARD, PADDING, RADIUS = (24, 24, 27), 14, 14
LIT, UNLIT = (255, 255, 255), (133, 133, 140)  # words on a card; the darkest has 5:1
ACCENT = (196, 110, 0)  # what leads from one to the next; 4:1 on white
ROOM_BESIDE = 400  # that two facts take beside a title; of all cards in a row alike
MAX_QUESTION = 1600  # letters; questions with the most words, if like CLEVR's, have no more

# --- the question and the answer -------------------------------------------------------------


def draw_question(reply: Reply, width: int, size: int, *, color: Color = TEXT) -> Part:
    """The question as it was typed, cut off where it is longer than any sensible one."""
    shown = reply.question[:MAX_QUESTION]
    words = (shown if shown == reply.question else f"{shown}…").split()
    size = min(size, font_size(words, size, 26, 16))
    return draw_words(words, size, width, color=color)


def draw_answer(
    reply: Reply, width: int, size: int, *, color: Color = TEXT, muted: Color = MUTED
) -> Part:
    """The answer, its probability and that of the next, and notes on unknown words."""
    (answer, probability), *others = likely_answers(reply)
    following = ", ".join(f"{name} ({share:.1%})" for name, share in others)
    likely = f"{probability:.1%}" + (f"; next: {following}" if following else "")
    told = (draw_words(text.split(), 22, width, color=muted) for text in (likely, *reply.notes))
    return stack(SMALL_GAP, draw_words([answer], size, width, color=color, bold=True), *told)


# --- cards ---------------------------------------------------------------------------------------


def draw_card(explanation: Explanation, group: StepGroup, width: int) -> Part:
    """A group of steps: what it attended to in image and question, and how much it changed."""
    room = width - 2 * PADDING
    facts = describe_shares(group)
    beside = room >= ROOM_BESIDE or ", " not in facts
    parts = [card_title(group.title, facts if beside else None, room)]
    parts += [] if beside else [draw_text(facts, room, 18, color=UNLIT)]
    parts.append(lit_image(explanation, group.image, room))
    if group.words is not None:
        parts.append(lit_words(phrase(explanation.words, group.words), room, 24))
    return on_card(stack(SMALL_GAP, *parts), CARD, PADDING, RADIUS)


def describe_shares(group: StepGroup) -> str:
    """How much of the attention is shown, and how much of the memory changed, where it is known."""
    facts = [f"{group.share:.0%} of attention"] * (group.share < 1)
    facts += [] if group.change is None else [f"{group.change:.0%} of memory"]
    return ", ".join(facts)


def card_title(title: str, fact: str | None, width: int) -> Part:
    """A title on a card, and on its right, where there is room, a fact."""
    bold, plain = font_of(22, bold=True), font_of(18)
    line = [Text(0, 22, truncate(title, bold, width), 22, LIT, True)]
    if fact and bold.getlength(title) + plain.getlength(fact) + 20 < width:
        line.append(Text(width - plain.getlength(fact), 22, fact, 18, UNLIT))
    return Part(width, 30, tuple(line))


def lit_image(explanation: Explanation, attention: np.ndarray | None, width: int) -> Part:
    """The image, lit where it is attended to; as it is, if there is no attention over it."""
    image = resized(explanation.image, width)
    if attention is not None:
        image = overlay_attention(image, attention, explanation.centers)
    return centered(image, width, RADIUS - PADDING // 2)


def lit_words(words: Sequence[tuple[str, float]], width: int, size: int) -> Part:
    """Words on a card, as bright as the image is where it has as much of the attention."""
    strongest = max(share for _, share in words) or 1
    colors = [mix(UNLIT, LIT, (share / strongest) ** 0.5) for _, share in words]
    return draw_words([word for word, _ in words], size, width, colors=colors)
