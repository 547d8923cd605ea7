"""Figures as SVG and PDF, whose text and boxes are sharp at any size."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import IO, Any, Literal

from macnet.explain.drawing import BACKGROUND, Box, Color, Mark, Part, Picture, Text

Kind = Literal["svg", "pdf"]
VECTOR_SUFFIXES: Mapping[str, Kind] = {".svg": "svg", ".pdf": "pdf"}

POINTS_PER_INCH = 72  # a unit of length of a part is a point
# Letters are outlines in SVG, which needs no font then, and text in PDF, where it can be searched.
# Without the salt and the dates, the same part would not be the same bytes.
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "macnet",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
}
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # of what no file can hold, such as lone surrogates
NO_DATES = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def write_vector(part: Part, file: IO[bytes], kind: Kind) -> None:
    """Write a part of a figure; the same part gives the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # the font's boxes say it too
        matplotlib.rcdefaults()  # whatever the user has set for figures of their own
        matplotlib.rcParams.update(SETTINGS)
        size = part.width / POINTS_PER_INCH, part.height / POINTS_PER_INCH
        figure = Figure(figsize=size, dpi=POINTS_PER_INCH, facecolor=_hex(BACKGROUND))
        axes = figure.add_axes((0, 0, 1, 1), frameon=False)
        for order, mark in enumerate(part.marks):
            _draw(axes, mark, order)
        axes.set(xlim=(0, part.width), ylim=(part.height, 0), aspect="auto")
        axes.axis("off")
        figure.savefig(file, format=kind, metadata=NO_DATES[kind])


def _draw(axes: Any, mark: Mark, order: int) -> None:
    if isinstance(mark, Text):
        weight, color = "bold" if mark.bold else "normal", _hex(mark.color)
        text = {"size": mark.size, "weight": weight, "color": color, "parse_math": False}
        shown = "".join(letter if letter.isprintable() else REPLACEMENT for letter in mark.text)
        axes.text(mark.x, mark.y, shown, va="baseline", zorder=order, **text)
        return
    if isinstance(mark, Box):
        axes.add_patch(_outline(mark, mark.width, mark.height, fc=_hex(mark.color), zorder=order))
        return
    height, width = mark.pixels.shape[:2]
    extent = mark.x, mark.x + width, mark.y + height, mark.y
    image = axes.imshow(mark.pixels, extent=extent, interpolation="none", zorder=order)
    image.set_clip_path(_outline(mark, width, height, transform=axes.transData))


def _outline(mark: Box | Picture, width: float, height: float, **options: Any) -> Any:
    from matplotlib.patches import FancyBboxPatch

    style = f"round,pad=0,rounding_size={mark.radius}" if mark.radius else "square,pad=0"
    return FancyBboxPatch((mark.x, mark.y), width, height, boxstyle=style, lw=0, **options)


def _hex(color: Color) -> str:
    return f"#{bytes(color).hex()}"
