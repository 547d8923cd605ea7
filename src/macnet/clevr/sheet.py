"""Pictures of pictures: a sheet of a dataset, and a sheet of originals beside our renderings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from macnet.clevr.pictures import draw, in_groups, open_picture
from macnet.clevr.release import (
    images_folder,
    is_secret,
    questions_file,
    read_records,
    read_scenes,
)
from macnet.disk import whole_file
from macnet.errors import InputError
from macnet.progress import progress

TILE = (480, 320)  # every picture is shown at the released size
GAP = 20
PAPER, INK, FAINT, ACCENT = "white", "#222222", "#8a8a8a", "#1f5fbf"
TEXT_SIZE = 17
LINE = 24  # from one line of text to the next
AMPLIFIED = 4  # differences between renderings are too faint to see as they are


# --- a dataset -------------------------------------------------------------------------------


class _Entry(NamedTuple):
    image: Path
    question: str
    answer: str


def contact_sheet(data: Path, out: Path, images: int) -> int:
    """A grid of a dataset's images, a question and its answer under each; returns how many."""
    _check_png(out)
    entries = list(islice(_entries(data), images))
    if not entries:
        raise InputError(f"{data}: no images with questions are here; is it a CLEVR folder?")
    font = _font()
    questions = [_wrapped(entry.question, font, TILE[0]) for entry in entries]
    # As near to the shape of a page on its side as whole rows allow.
    columns = max(1, round(math.sqrt(len(entries) * 4 / 3)))
    rows = math.ceil(len(entries) / columns)
    width = TILE[0] + GAP
    height = TILE[1] + LINE * (max(map(len, questions)) + 1) + 2 * GAP
    sheet = Image.new("RGB", (columns * width + GAP, rows * height + GAP), PAPER)
    pen = ImageDraw.Draw(sheet)
    for place, (entry, lines) in enumerate(zip(entries, questions, strict=True)):
        row, column = divmod(place, columns)
        x, y = GAP + column * width, GAP + row * height
        sheet.paste(Image.fromarray(_open(entry.image)).resize(TILE), (x, y))
        y += TILE[1] + GAP // 2
        for line in lines:
            pen.text((x, y), line, INK, font)
            y += LINE
        pen.text((x, y), entry.answer, ACCENT, font, stroke_width=0.4, stroke_fill=ACCENT)
    _save(sheet, out)
    return len(entries)


def _entries(data: Path) -> Iterator[_Entry]:
    """Images of a dataset, each with one of its questions; every next one takes a later one."""
    splits = [folder.name for folder in sorted((data / "images").glob("*")) if folder.is_dir()]
    # Validation first: it is the smallest file with answers, and the real ones are large.
    splits.sort(key=lambda split: (not split.startswith("val"), is_secret(split)))
    for split in splits:
        if not questions_file(data, split).exists():
            continue
        questions: dict[str, list[tuple[str, str]]] = {}
        for record in read_records(questions_file(data, split), "questions"):
            text, answer = record.get("question"), record.get("answer", "")
            if isinstance(text, str) and isinstance(answer, str):
                questions.setdefault(record["image_filename"], []).append((text, answer))
        for place, (name, asked) in enumerate(questions.items()):
            image = images_folder(data, split) / name
            if image.exists():
                yield _Entry(image, *asked[place % len(asked)])


def _wrapped(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


# --- originals beside renderings -------------------------------------------------------------


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two uint8 pictures, in dB."""
    error = np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)
    return 10 * math.log10(255**2 / error) if error else math.inf


def compare(
    scenes_json: Path,
    images: Path,
    out: Path,
    *,
    shown: int,
    quality: str,
    device: torch.device | str,
) -> dict[str, float]:
    """Render the scenes whose images exist and measure each; the sheet shows the first of them.

    All are rendered at the size of the first image. Returns the PSNR by image, in dB.
    """
    _check_png(out)
    scenes = {
        name: scene for name, scene in read_scenes(scenes_json).items() if (images / name).exists()
    }
    if not scenes:
        raise InputError(f"{images}: it has no image of any scene in {scenes_json}")
    height, width = _open(images / next(iter(scenes))).shape[:2]
    measured: dict[str, float] = {}
    rows: list[tuple[str, list[np.ndarray]]] = []
    with progress("comparing", "images", len(scenes)) as advance:
        groups = in_groups(list(scenes.values()))
        pictures = chain.from_iterable(draw(groups, width, height, quality, device))
        for name, ours in zip(scenes, pictures, strict=True):
            original = _open(images / name)
            if original.shape != ours.shape:
                raise InputError(
                    f"{images / name}: it is {original.shape[1]}x{original.shape[0]}, and the "
                    f"images before it {width}x{height}"
                )
            measured[name] = psnr(original, ours)
            if len(rows) < shown:
                rows.append((f"{name}   {measured[name]:.1f} dB", [original, ours]))
            advance(1)
    _save(_comparison(rows, quality), out)
    return measured


def _comparison(rows: Sequence[tuple[str, list[np.ndarray]]], quality: str) -> Image.Image:
    columns = ("original", f"ours, {quality}", f"difference, {AMPLIFIED} times")
    width, height = TILE[0] + GAP, TILE[1] + GAP + LINE
    sheet = Image.new("RGB", (len(columns) * width + GAP, GAP + LINE + len(rows) * height), PAPER)
    pen, font = ImageDraw.Draw(sheet), _font()
    for column, title in enumerate(columns):
        pen.text((GAP + column * width, GAP // 2), title, INK, font)
    for row, (label, (original, ours)) in enumerate(rows):
        y = GAP + LINE + row * height
        apart = np.abs(original.astype(np.int16) - ours) * AMPLIFIED
        for column, picture in enumerate((original, ours, apart.clip(0, 255).astype(np.uint8))):
            sheet.paste(Image.fromarray(picture).resize(TILE), (GAP + column * width, y))
        pen.text((GAP, y + TILE[1] + 4), label, FAINT, font)
    return sheet


def _font() -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(TEXT_SIZE)
    assert isinstance(font, ImageFont.FreeTypeFont)  # as every Pillow from PyPI has it
    return font


# --- files -----------------------------------------------------------------------------------


def _open(path: Path) -> np.ndarray:
    """(H, W, 3) uint8."""
    with open_picture(path) as image:
        return np.asarray(image.convert("RGB"))


def _check_png(out: Path) -> None:
    if out.suffix.lower() != ".png":
        raise InputError(f"{out}: the sheet is a PNG; give a name that ends in .png")


def _save(sheet: Image.Image, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as file:
        sheet.save(file, "PNG")
