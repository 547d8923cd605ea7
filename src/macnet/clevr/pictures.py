"""Pictures as files, and the drawing of scenes that exist already."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image

from macnet.clevr.release import read_scenes
from macnet.clevr.render import refuse_huge, render
from macnet.clevr.scene import Scene
from macnet.disk import whole_file
from macnet.errors import InputError, is_about_memory
from macnet.progress import progress
from macnet.workers import default_workers, in_order, pool

T = TypeVar("T")

# A picture is promised to be the same only in the same company, so scenes are always drawn in
# the groups they would be drawn in if none had been drawn yet.
GROUP = 10


def in_groups(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[first : first + GROUP] for first in range(0, len(items), GROUP)]


@contextmanager
def open_picture(path: Path) -> Iterator[Image.Image]:
    """A PNG file to read from, in a block that does nothing else: all its errors are the file's.

    Of single flipped bits, Pillow lets one in 60 pass as a picture; the file's checksums do not.
    To look at them takes a twentieth of the time of decoding.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pictures that are odd but can be read
            with Image.open(path, formats=["PNG"]) as image:
                image.verify()
            with Image.open(path, formats=["PNG"]) as image:
                yield image
    except Exception as error:  # Pillow has no end of them for a broken file
        if is_about_memory(error):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: it cannot be read as an image ({reason:.200})") from None


def read_picture(path: Path, width: int, height: int) -> np.ndarray:
    """(height, width, 3) uint8; one of another size is squeezed, so that 3:2 does not stay 3:2."""
    with open_picture(path) as image:
        rgb = image.convert("RGB")
    if rgb.size != (width, height):
        rgb = rgb.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(rgb)


def save_picture(path: Path, image: np.ndarray) -> None:
    """(H, W, 3) uint8 → a PNG file, with the opaque alpha channel that the release has."""
    opaque = np.full((*image.shape[:2], 1), 255, np.uint8)
    picture = Image.fromarray(np.concatenate([image, opaque], axis=2))
    with whole_file(path) as file:
        # Level 1 takes less than half of the default level's time, for a quarter more bytes.
        picture.save(file, "PNG", compress_level=1)


def draw_group(
    scenes: Sequence[Scene], width: int, height: int, quality: str, device: torch.device | str
) -> np.ndarray:
    """(N, H, W, 3) uint8: the pictures of a few scenes."""
    return render(scenes, width, height, quality, device).images.cpu().numpy()


def draw(
    groups: Sequence[Sequence[Scene]],
    width: int,
    height: int,
    quality: str,
    device: torch.device | str,
) -> Iterator[np.ndarray]:
    """The pictures of many groups, one after another; on a CPU, all cores draw."""
    # A process takes longer to start than a group to draw; and one is enough for a GPU.
    worth_it = torch.device(device).type == "cpu" and len(groups) > 2
    workers = min(default_workers(device), len(groups)) if worth_it else 0
    with pool(workers) as executor:
        how = partial(draw_group, width=width, height=height, quality=quality, device=device)
        yield from in_order(executor, how, groups, ahead=2 * workers)


def draw_file(
    source: Path, out: Path, width: int, height: int, quality: str, device: torch.device | str
) -> tuple[int, int]:
    """Draw the scenes of a file into a folder, but for those whose pictures are there already.

    Returns how many were drawn, and how many there were.
    """
    refuse_huge(width, height)
    scenes = read_scenes(source)
    out.mkdir(parents=True, exist_ok=True)
    there = {name for name in scenes if (out / name).exists()}
    for name in there:
        _check_size(out / name, width, height)
    groups = [group for group in in_groups(list(scenes)) if not there.issuperset(group)]
    with progress("drawing", "images", len(scenes), done=len(there)) as advance:
        of_groups = [[scenes[name] for name in group] for group in groups]
        drawn = draw(of_groups, width, height, quality, device)
        for group, pictures in zip(groups, drawn, strict=True):
            for name, picture in zip(group, pictures, strict=True):
                if name not in there:
                    save_picture(out / name, picture)
                    advance(1)
    return len(scenes) - len(there), len(there)


def _check_size(path: Path, width: int, height: int) -> None:
    with open_picture(path) as image:
        size = image.size
    if size != (width, height):
        raise InputError(
            f"{path}: it is there already, but {size[0]}x{size[1]}; give another folder"
        )
