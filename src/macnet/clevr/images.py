"""Images as PNG files, and the rendering of scene files."""

from __future__ import annotations

import hashlib
import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from macnet.clevr.quality import QUALITIES, check_image_size, check_quality
from macnet.clevr.release import WORLD_FORMAT, read_scenes
from macnet.clevr.render import render
from macnet.clevr.scene import Scene
from macnet.devices import choose_device
from macnet.errors import InputError, is_out_of_resources
from macnet.files import atomic_file, check_is_file, read_json, write_atomically
from macnet.progress import progress
from macnet.workers import default_workers, map_in_order, pool

T = TypeVar("T")

# Images are reproducible only if the same scenes are rendered together, so groups are the same
# whether some of their images exist already or not.
SCENES_PER_RENDER = 10

SOURCE_KEY = "macnet render"  # keyword of a text chunk in a PNG
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def split_into_groups(items: Sequence[T]) -> list[Sequence[T]]:
    """Items in the groups in which their scenes are rendered."""
    starts = range(0, len(items), SCENES_PER_RENDER)
    return [items[first : first + SCENES_PER_RENDER] for first in starts]


@contextmanager
def open_image(path: Path, formats: tuple[str, ...] | None = ("PNG",)) -> Iterator[Image.Image]:
    """Open an image file. The block must only read it: all its errors are blamed on the file.

    Checksums are verified, because Pillow decodes one in 60 files with a flipped bit without an
    error. That takes a twentieth of the time of decoding.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about images that are odd but readable
            with Image.open(path, formats=formats) as image:
                image.verify()
            with Image.open(path, formats=formats) as image:
                yield image
    except Exception as error:  # Pillow raises many kinds for a broken file
        if is_out_of_resources(error):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: it cannot be read as an image ({reason:.200})") from None


def read_image(
    path: Path, width: int, height: int, formats: tuple[str, ...] | None = ("PNG",)
) -> np.ndarray:
    """(height, width, 3) uint8; an image of another size is resized, whatever its aspect ratio."""
    with open_image(path, formats) as image:
        rgb = image.convert("RGB")
    if rgb.size != (width, height):
        rgb = rgb.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(rgb)


def is_intact_png(path: Path, width: int, height: int) -> bool:
    """Whether a file is a complete PNG of this size, with valid checksums of all its chunks."""
    try:
        content = memoryview(path.read_bytes())
    except FileNotFoundError:
        return False
    start, kind = len(_SIGNATURE), b""
    if content[:start] != _SIGNATURE or content[16:24] != struct.pack(">2I", width, height):
        return False
    while kind != b"IEND":
        if len(content) < start + 12:
            return False
        length, kind = struct.unpack_from(">I4s", content, start)
        end = start + 12 + length
        checksum = zlib.crc32(content[start + 4 : end - 4])
        if len(content) < end or checksum != int.from_bytes(content[end - 4 : end]):
            return False
        start = end
    return start == len(content)


def encode_png(image: np.ndarray, source_hash: str | None = None) -> bytes:
    """(H, W, 3) uint8 → a PNG, with the opaque alpha channel that the release has.

    `source_hash` is stored in a text chunk.
    """
    opaque = np.full((*image.shape[:2], 1), 255, np.uint8)
    rgba = Image.fromarray(np.concatenate([image, opaque], axis=2))
    texts = PngInfo()
    if source_hash is not None:
        texts.add_text(SOURCE_KEY, source_hash)
    content = io.BytesIO()
    # Level 1 takes less than half of the default level's time, for a quarter more bytes.
    rgba.save(content, "PNG", compress_level=1, pnginfo=texts)
    return content.getvalue()


def save_image(path: Path, image: np.ndarray) -> None:
    """Write (H, W, 3) uint8 to a PNG file."""
    with atomic_file(path) as file:
        file.write(encode_png(image))


def render_group(
    scenes: Sequence[Scene], width: int, height: int, quality: str, device: torch.device | str
) -> np.ndarray:
    """(N, H, W, 3) uint8: the images of a group of scenes."""
    return render(scenes, width, height, quality, device).images.cpu().numpy()


def render_groups(
    groups: Sequence[Sequence[Scene]], size: tuple[int, int], quality: str, device: str
) -> Iterator[np.ndarray]:
    """The images of each group, in order; on a CPU, all cores render."""
    # A process takes longer to start than a group to render; and one is enough for a GPU.
    parallel = torch.device(device).type == "cpu" and len(groups) > 2
    workers = min(default_workers(device), len(groups)) if parallel else 0
    function = partial(render_group, width=size[0], height=size[1], quality=quality, device=device)
    with pool(workers) as executor:
        yield from map_in_order(executor, function, groups, ahead=2 * workers)


# --- scene files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class RenderedFiles:
    """The images of a scene file, in a folder."""

    folder: Path
    rendered: int
    """Number of images that were rendered."""
    kept: int
    """Number of images that were there already."""
    size: tuple[int, int]
    """Width and height of the images."""
    quality: str


def render_file(
    scenes_json: str | PathLike[str],
    out: str | PathLike[str],
    *,
    size: tuple[int, int] | None = None,
    quality: str | None = None,
    device: str = "auto",
) -> RenderedFiles:
    """Render the scenes of a scene file to PNG files in a folder.

    `size` (width, height) and `quality` are by default those of the generated world that the file
    belongs to, or 480×320 and "fine". An image that is there already is kept, and rendered again if
    its scene, size or quality has changed; one that was not rendered by this function is an error.
    """
    scenes_json, out, device = Path(scenes_json), Path(out), choose_device(device)
    default_size, default_quality = _world_settings(scenes_json)
    size, quality = size or default_size, quality or default_quality
    check_image_size(*size)
    check_quality(quality)
    scenes = read_scenes(scenes_json)
    hashes = {name: _source_hash(scene, *size, quality) for name, scene in scenes.items()}
    kept = {name for name, value in hashes.items() if _recorded_hash(out / name) == value}
    out.mkdir(parents=True, exist_ok=True)
    groups = [group for group in split_into_groups(list(scenes)) if not kept.issuperset(group)]
    with progress("rendering", "images", len(scenes), done=len(kept)) as advance:
        rendered = render_groups(
            [[scenes[n] for n in group] for group in groups], size, quality, device
        )
        for group, images in zip(groups, rendered, strict=True):
            for name, image in zip(group, images, strict=True):
                if name not in kept:
                    write_atomically(out / name, encode_png(image, hashes[name]))
                    advance(1)
    return RenderedFiles(out, len(scenes) - len(kept), len(kept), size, quality)


def _world_settings(scenes_json: Path) -> tuple[tuple[int, int], str]:
    """The size and quality of the generated world that a scene file belongs to, if any."""
    check_is_file(scenes_json)
    folder = scenes_json.resolve().parent
    file = folder.with_name("world.json")
    found = read_json(file) if folder.name == "scenes" and file.exists() else None
    settings = found if isinstance(found, dict) else {}
    size = re.fullmatch(r"(\d{1,4})x(\d{1,4})", str(settings.get("size")))
    if not size or settings.get("quality") not in QUALITIES:
        return (480, 320), "fine"
    return (int(size[1]), int(size[2])), settings["quality"]


def _source_hash(scene: Scene, width: int, height: int, quality: str) -> str:
    """A hash of all that determines an image; exact, because repr writes floats in full."""
    return hashlib.sha256(repr((WORLD_FORMAT, scene, width, height, quality)).encode()).hexdigest()


def _recorded_hash(path: Path) -> str | None:
    """The hash that an image file records; None if there is no file."""
    if not path.exists():
        return None
    with open_image(path) as image:
        recorded = image.info.get(SOURCE_KEY)
    if not isinstance(recorded, str):
        raise InputError(
            f"{path}: it is there already, and was not made by macnet render; move it away, or "
            "give another folder"
        )
    return recorded
