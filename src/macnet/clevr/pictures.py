"""Pictures as files, and the drawing of scenes that exist already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from macnet.clevr.release import read_scenes
from macnet.clevr.render import render
from macnet.clevr.scene import Scene
from macnet.disk import whole_file
from macnet.progress import progress

# A picture is promised to be the same only in the same company, so scenes are always drawn in
# the groups they would be drawn in if none had been drawn yet.
GROUP = 10


def save_picture(path: Path, image: np.ndarray) -> None:
    """(H, W, 3) uint8 → a PNG file, with the opaque alpha channel that the release has."""
    opaque = np.full((*image.shape[:2], 1), 255, np.uint8)
    picture = Image.fromarray(np.concatenate([image, opaque], axis=2))
    with whole_file(path) as file:
        # Level 1 makes files of the released size, in a quarter of the default level's time.
        picture.save(file, "PNG", compress_level=1)


def draw(
    scenes: Sequence[Scene], width: int, height: int, quality: str, device: torch.device | str
) -> Iterator[np.ndarray]:
    """The scenes' pictures, (H, W, 3) uint8 each."""
    for first in range(0, len(scenes), GROUP):
        group = scenes[first : first + GROUP]
        yield from render(group, width, height, quality, device).images.cpu().numpy()


def draw_file(
    source: Path, out: Path, width: int, height: int, quality: str, device: torch.device | str
) -> tuple[int, int]:
    """Draw the scenes of a file into a folder, but for those whose pictures are there already.

    Returns how many were drawn, and how many there were.
    """
    scenes = read_scenes(source)
    out.mkdir(parents=True, exist_ok=True)
    there = {name for name in scenes if (out / name).exists()}
    names = list(scenes)
    with progress("drawing", "images", len(names), done=len(there)) as advance:
        for first in range(0, len(names), GROUP):
            group = names[first : first + GROUP]
            if there.issuperset(group):
                continue
            pictures = draw([scenes[name] for name in group], width, height, quality, device)
            for name, picture in zip(group, pictures, strict=True):
                if name not in there:
                    save_picture(out / name, picture)
                    advance(1)
    return len(names) - len(there), len(there)
