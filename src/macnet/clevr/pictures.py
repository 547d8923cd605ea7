"""Pictures as files, and the drawing of scenes that exist already."""

from __future__ import annotations

import hashlib
import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from macnet.clevr.release import FORMAT, read_scenes
from macnet.clevr.render import QUALITIES, refuse_huge, render
from macnet.clevr.scene import Scene
from macnet.disk import read_json, refuse_no_file, whole_file, write_safely
from macnet.errors import InputError, is_about_resources
from macnet.progress import progress
from macnet.workers import default_workers, in_order, pool

T = TypeVar("T")

# A picture is promised to be the same only in the same company, so scenes are always drawn in
# the groups they would be drawn in if none had been drawn yet.
GROUP = 10

MADE_FROM = "macnet render"  # the name of a text in a PNG
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


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
        if is_about_resources(error):
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


def is_whole_png(path: Path, width: int, height: int) -> bool:
    """Whether a file is a PNG of this size, with the checksums of all its chunks and its end."""
    try:
        content = memoryview(path.read_bytes())
    except FileNotFoundError:
        return False
    place, kind = len(_SIGNATURE), b""
    if content[:place] != _SIGNATURE or content[16:24] != struct.pack(">2I", width, height):
        return False
    while kind != b"IEND":
        if len(content) < place + 12:
            return False
        length, kind = struct.unpack_from(">I4s", content, place)
        end = place + 12 + length
        checksum = zlib.crc32(content[place + 4 : end - 4])
        if len(content) < end or checksum != int.from_bytes(content[end - 4 : end]):
            return False
        place = end
    return place == len(content)


def encode_picture(image: np.ndarray, made_from: str | None = None) -> bytes:
    """(H, W, 3) uint8 → a PNG, with the opaque alpha channel that the release has.

    It may say in a text of its own what it was made from.
    """
    opaque = np.full((*image.shape[:2], 1), 255, np.uint8)
    picture = Image.fromarray(np.concatenate([image, opaque], axis=2))
    texts = PngInfo()
    if made_from is not None:
        texts.add_text(MADE_FROM, made_from)
    content = io.BytesIO()
    # Level 1 takes less than half of the default level's time, for a quarter more bytes.
    picture.save(content, "PNG", compress_level=1, pnginfo=texts)
    return content.getvalue()


def save_picture(path: Path, image: np.ndarray) -> None:
    with whole_file(path) as file:
        file.write(encode_picture(image))


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


def drawn_as(scenes_json: Path) -> tuple[tuple[int, int], str]:
    """The size and quality of the pictures that a world of ours has of its scenes.

    Scenes that belong to none are drawn in the release's size, to be looked at.
    """
    refuse_no_file(scenes_json)
    folder = scenes_json.resolve().parent
    settings_file = folder.with_name("world.json")
    is_there = folder.name == "scenes" and settings_file.exists()
    found = read_json(settings_file) if is_there else None
    settings = found if isinstance(found, dict) else {}
    size = re.fullmatch(r"(\d{1,4})x(\d{1,4})", str(settings.get("size")))
    if not size or settings.get("quality") not in QUALITIES:
        return (480, 320), "fine"
    return (int(size[1]), int(size[2])), settings["quality"]


def draw_file(
    source: Path, out: Path, width: int, height: int, quality: str, device: torch.device | str
) -> tuple[int, int]:
    """Draw the scenes of a file into a folder, but for those whose pictures are there already.

    A picture says what it was made from, and is drawn again when that has changed; one that was
    not made here is refused. Returns how many were drawn, and how many there were.
    """
    refuse_huge(width, height)
    scenes = read_scenes(source)
    texts = {name: _made_from(scene, width, height, quality) for name, scene in scenes.items()}
    there = {name for name, text in texts.items() if _said_of(out / name) == text}
    out.mkdir(parents=True, exist_ok=True)
    groups = [group for group in in_groups(list(scenes)) if not there.issuperset(group)]
    with progress("drawing", "images", len(scenes), done=len(there)) as advance:
        of_groups = [[scenes[name] for name in group] for group in groups]
        drawn = draw(of_groups, width, height, quality, device)
        for group, pictures in zip(groups, drawn, strict=True):
            for name, picture in zip(group, pictures, strict=True):
                if name not in there:
                    write_safely(out / name, encode_picture(picture, texts[name]))
                    advance(1)
    return len(scenes) - len(there), len(there)


def _made_from(scene: Scene, width: int, height: int, quality: str) -> str:
    """A hash of all that decides a picture; exact, for floats are written in full."""
    return hashlib.sha256(repr((FORMAT, scene, width, height, quality)).encode()).hexdigest()


def _said_of(path: Path) -> str | None:
    """What a picture was made from; None if there is none."""
    if not path.exists():
        return None
    with open_picture(path) as image:
        text = image.info.get(MADE_FROM)
    if not isinstance(text, str):
        raise InputError(
            f"{path}: it is there already, and was not made by this command; move it away, or give "
            "another folder"
        )
    return text
