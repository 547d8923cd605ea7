"""Contact sheets of datasets, and comparisons of rendered with original images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from os import PathLike
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from macnet.clevr.images import open_image, render_groups, split_into_groups
from macnet.clevr.quality import check_quality
from macnet.clevr.release import (
    images_folder,
    is_unlabeled,
    questions_file,
    read_records,
    read_scenes,
)
from macnet.devices import choose_device
from macnet.errors import InputError
from macnet.files import atomic_file
from macnet.progress import progress

TILE = (480, 320)  # every image is shown at the released size
GAP = 20
BACKGROUND, INK, FAINT, ACCENT = "white", "#222222", "#8a8a8a", "#1f5fbf"
TEXT_SIZE = 17
LINE = 24  # height of a line of text
AMPLIFICATION = 4  # of differences between images, which would be too faint to see


# --- contact sheets --------------------------------------------------------------------------


def contact_sheet(data: str | PathLike[str], out: str | PathLike[str], *, images: int = 12) -> int:
    """Write a PNG with images of a dataset, a question and its answer under each.

    Returns the number of images that it shows: fewer than `images` if the dataset has fewer.
    """
    out = _check_sheet(out, images)
    entries = list(islice(_entries(Path(data)), images))
    if not entries:
        raise InputError(f"{data}: no images with questions are here; is it a CLEVR folder?")
    font = _font()
    questions = [_wrapped(question, font, TILE[0]) for _, question, _ in entries]
    # About the shape of a page in landscape format.
    columns = max(1, round(math.sqrt(len(entries) * 4 / 3)))
    rows = math.ceil(len(entries) / columns)
    width = TILE[0] + GAP
    height = TILE[1] + LINE * (max(map(len, questions)) + 1) + 2 * GAP
    sheet = Image.new("RGB", (columns * width + GAP, rows * height + GAP), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for i, ((image, _, answer), lines) in enumerate(zip(entries, questions, strict=True)):
        row, column = divmod(i, columns)
        x, y = GAP + column * width, GAP + row * height
        sheet.paste(Image.fromarray(_read(image)).resize(TILE), (x, y))
        y += TILE[1] + GAP // 2
        for line in lines:
            pen.text((x, y), line, INK, font)
            y += LINE
        pen.text((x, y), answer, ACCENT, font, stroke_width=0.4, stroke_fill=ACCENT)
    _save(sheet, out)
    return len(entries)


def _entries(data: Path) -> Iterator[tuple[Path, str, str]]:
    """Images, each with a question and its answer: the first of the first image, and so on."""
    splits = [folder.name for folder in sorted((data / "images").glob("*")) if folder.is_dir()]
    # Validation first: it is the smallest file with answers, and the released ones are large.
    splits.sort(key=lambda split: (not split.startswith("val"), is_unlabeled(split)))
    for split in splits:
        if not questions_file(data, split).exists():
            continue
        questions: dict[str, list[tuple[str, str]]] = {}
        for record in read_records(questions_file(data, split), "questions"):
            text, answer = record.get("question"), record.get("answer", "")
            if isinstance(text, str) and isinstance(answer, str):
                questions.setdefault(record["image_filename"], []).append((text, answer))
        for i, (name, of_image) in enumerate(questions.items()):
            image = images_folder(data, split) / name
            if image.exists():
                yield image, *of_image[i % len(of_image)]


def _wrapped(text: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


# --- comparison with originals ---------------------------------------------------------------


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Peak signal-to-noise ratio of two uint8 images, in dB."""
    error = np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)
    return 10 * math.log10(255**2 / error) if error else math.inf


@dataclass(frozen=True)
class Comparison:
    """PSNR (dB) of rendered against original images."""

    quality: str
    psnr: dict[str, float]
    """PSNR by image name; infinity if the images are equal."""

    @property
    def mean_psnr(self) -> float:
        """Mean PSNR over all images."""
        return sum(self.psnr.values()) / len(self.psnr)


def compare(
    scenes_json: str | PathLike[str],
    images_dir: str | PathLike[str],
    out: str | PathLike[str],
    *,
    images: int = 8,
    quality: str = "fine",
    device: str = "auto",
) -> Comparison:
    """Render the scenes whose original images exist, and measure the PSNR of each.

    All are rendered at the size of the first original. A PNG shows the first `images` of them:
    original, rendered, difference.
    """
    out, folder, device = _check_sheet(out, images), Path(images_dir), choose_device(device)
    check_quality(quality)
    scenes = {
        name: scene
        for name, scene in read_scenes(Path(scenes_json)).items()
        if (folder / name).exists()
    }
    if not scenes:
        raise InputError(f"{folder}: it has no image of any scene in {scenes_json}")
    height, width = _read(folder / next(iter(scenes))).shape[:2]
    measured: dict[str, float] = {}
    rows: list[tuple[str, np.ndarray, np.ndarray]] = []
    with progress("comparing", "images", len(scenes)) as advance:
        groups = split_into_groups(list(scenes.values()))
        all_rendered = chain.from_iterable(render_groups(groups, (width, height), quality, device))
        for name, rendered in zip(scenes, all_rendered, strict=True):
            original = _read(folder / name)
            if original.shape != rendered.shape:
                raise InputError(
                    f"{folder / name}: it is {original.shape[1]}x{original.shape[0]}, and the "
                    f"images before it {width}x{height}"
                )
            measured[name] = psnr(original, rendered)
            if len(rows) < images:
                rows.append((f"{name}   {measured[name]:.1f} dB", original, rendered))
            advance(1)
    _save(_comparison_sheet(rows, quality), out)
    return Comparison(quality, measured)


def _comparison_sheet(
    rows: Sequence[tuple[str, np.ndarray, np.ndarray]], quality: str
) -> Image.Image:
    columns = ("original", f"rendered, {quality}", f"difference, {AMPLIFICATION} times")
    width, height = TILE[0] + GAP, TILE[1] + GAP + LINE
    sheet = Image.new(
        "RGB", (len(columns) * width + GAP, GAP + LINE + len(rows) * height), BACKGROUND
    )
    pen, font = ImageDraw.Draw(sheet), _font()
    for column, title in enumerate(columns):
        pen.text((GAP + column * width, GAP // 2), title, INK, font)
    for row, (label, original, rendered) in enumerate(rows):
        y = GAP + LINE + row * height
        difference = np.abs(original.astype(np.int16) - rendered) * AMPLIFICATION
        shown = original, rendered, difference.clip(0, 255).astype(np.uint8)
        for column, image in enumerate(shown):
            sheet.paste(Image.fromarray(image).resize(TILE), (GAP + column * width, y))
        pen.text((GAP, y + TILE[1] + 4), label, FAINT, font)
    return sheet


def _font() -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(TEXT_SIZE)
    assert isinstance(font, ImageFont.FreeTypeFont)  # as every Pillow from PyPI has it
    return font


# --- files -----------------------------------------------------------------------------------


def _read(path: Path) -> np.ndarray:
    """(H, W, 3) uint8."""
    with open_image(path) as image:
        return np.asarray(image.convert("RGB"))


def _check_sheet(out: str | PathLike[str], images: int) -> Path:
    if images < 1:
        raise InputError(f"`images` is {images}; it must be at least 1")
    if Path(out).suffix.lower() != ".png":
        raise InputError(f"{out}: the sheet is a PNG; give a name that ends in .png")
    return Path(out)


def _save(sheet: Image.Image, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(out) as file:
        sheet.save(file, "PNG")
