"""Explanations of thoughts that nobody had, for whatever shows them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
from PIL import Image

from macnet.data.unknown_words import UnknownWord
from macnet.explain.reply import IDLE, Explanation, GridCenters, Reply, StepAttention

QUESTION = "What color is the cube behind the tiny sphere?"


def shares(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Attention that is sharp here and there, and sums to one."""
    drawn = np.exp(rng.normal(0, 2, shape))
    attention: np.ndarray = (drawn / drawn.sum()).astype(np.float32)
    return attention


def centred(rows: int, columns: int, stride: int = 8) -> GridCenters:
    """As a trunk that shrinks a picture by the stride centres its places: on its pixel 0, 8, …"""
    return GridCenters(
        *((stride * np.arange(cells) + 0.5) / (stride * cells) for cells in (rows, columns))
    )


def explanation(
    *,
    steps: int = 3,
    question: str = QUESTION,
    picture: tuple[int, int] = (60, 40),
    grid: tuple[int, int] = (4, 5),
    words: bool = True,
    gate: bool = True,
    resting: bool = False,
    first: int | None = 1,
    unknown: tuple[UnknownWord, ...] = (),
    seed: int = 0,
) -> Explanation:
    """A picture is width × height; self-attention begins with the step `first`, if there is any."""
    rng = np.random.default_rng(seed)
    read = tuple(question.lower().split())
    attention = []
    for number in range(1, steps + 1):
        recalls = first is not None and number > first
        attention.append(
            StepAttention(
                words=shares(rng, len(read)) if words else None,
                image=shares(rng, *grid),
                self_attention=shares(rng, number - (first or 0)) if recalls else None,
                resting=shares(rng, *grid) if resting else None,
                change=float(rng.uniform(IDLE, 1)) if gate else None,
            )
        )
    answers = ("cyan", "brown", "2", "yes", "no", "red", "large")
    likely = sorted(shares(rng, len(answers)).tolist(), reverse=True)
    width, height = picture
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    reply = Reply(question, dict(zip(answers, likely, strict=True)), unknown)
    return Explanation(reply, read, pixels, centred(*grid), tuple(attention))


ROUND = 20  # pixels, more than corners of images have

# --- what is seen of them --------------------------------------------------------------------


def holds(image: Image.Image, part: np.ndarray) -> bool:
    """Whether the part is anywhere in it, but for its corners, which may be round."""
    corner = min(ROUND, *(side // 3 for side in part.shape[:2]))
    part = part[corner:-corner, corner:-corner] if corner else part
    pixels, (height, width) = np.asarray(image), part.shape[:2]
    corners = (pixels[:, :, :] == part[0, 0]).all(-1)
    return any(
        np.array_equal(pixels[y : y + height, x : x + width], part)
        for y, x in zip(*corners.nonzero(), strict=True)
    )


def contrast(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    """As the guidelines for accessible pages count it."""

    def luminance(colour: tuple[int, ...]) -> float:
        c = np.array(colour) / 255
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


VOID = {"meta", "img", "input"}


class Parsed(HTMLParser):
    """Tags with their attributes, the text of each kind of tag, and whether all were closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def data_of(text: str) -> Any:
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    return json.loads(found)
