"""Any picture becomes the RGB that people would see; what is none is refused in one sentence."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from macnet.clevr.images import read_image, save_image
from macnet.errors import InputError
from macnet.explain.image import BACKGROUND, ImageLike, open_image, resize

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8)
GREYS = COLOURS[..., 0]


def seen(picture: ImageLike) -> np.ndarray:
    rgb = open_image(picture)
    assert rgb.mode == "RGB"
    return np.asarray(rgb)


def grey(array: np.ndarray) -> np.ndarray:
    return np.stack([array] * 3, -1)


# --- the pixels a network learns from --------------------------------------------------------


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_it_sees_what_packing_would_make_of_the_file(
    shape: tuple[int, int], size: tuple[int, int], seed: int, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "packed.png"
    noise = np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)
    save_image(path, noise)  # with alpha, as CLEVR's are
    expected = read_image(path, *size)
    np.testing.assert_array_equal(resize(open_image(path), *size), expected)
    np.testing.assert_array_equal(resize(open_image(noise), *size), expected)


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["png", "bmp", "tiff", "ppm", "tga", "webp", "jpeg", "gif", "ico"])
def test_formats(kind: str, tmp_path: Path) -> None:
    smooth = np.zeros((16, 24, 3), np.uint8)
    smooth[:, 12:] = 200, 100, 50
    path = tmp_path / f"picture.{kind}"
    exact = {
        "webp": {"lossless": True},
        "jpeg": {"quality": 100, "subsampling": 0},
        "ico": {"sizes": [(24, 16)]},
    }
    Image.fromarray(smooth).save(path, **exact.get(kind, {}))  # type: ignore[arg-type]
    tolerance = 3 if kind == "jpeg" else 0
    np.testing.assert_allclose(seen(path).astype(int), smooth, atol=tolerance)
    nameless = path.rename(tmp_path / "picture")  # what it is called does not matter
    np.testing.assert_array_equal(seen(nameless), seen(str(nameless)))


def test_of_a_film_the_first_picture(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (5, 4), colour) for colour in ("red", "blue", "lime")]
    for kind in ("gif", "webp", "tiff", "png"):
        path = tmp_path / f"film.{kind}"
        frames[0].save(path, save_all=True, append_images=frames[1:], lossless=True)
        assert (seen(path) == (255, 0, 0)).all()


def odd_modes() -> dict[str, tuple[Image.Image, np.ndarray]]:
    """Pictures as Pillow may have them, and what is seen in them."""
    wide = RNG.integers(0, 65536, (6, 9), dtype=np.uint16)
    from_wide = grey(np.rint(wide / 257).astype(np.uint8))
    half = np.full((6, 9), 128, np.uint8)
    over = np.rint((128 * COLOURS.astype(float) + 127 * np.array(BACKGROUND)) / 255)
    keyed = Image.fromarray(np.where(GREYS[..., None] > 99, COLOURS, 7).astype(np.uint8))
    keyed.info["transparency"] = (7, 7, 7)
    painted = Image.new("P", (9, 6), 1)
    painted.putpalette([0, 0, 0, 10, 20, 30])
    clear = painted.copy()
    clear.info["transparency"] = 1
    floats = RNG.random((6, 9)).astype(np.float32)
    everywhere = np.ones((6, 9, 1), np.uint8)
    return {
        "1": (Image.fromarray(GREYS > 99), grey(np.where(GREYS > 99, 255, 0))),
        "L": (Image.fromarray(GREYS), grey(GREYS)),
        "LA": (Image.new("LA", (9, 6), (200, 0)), everywhere * BACKGROUND),
        "P": (painted, everywhere * (10, 20, 30)),
        "P, clear": (clear, everywhere * BACKGROUND),
        "RGBA": (Image.fromarray(np.dstack([COLOURS, half])), over),
        "RGBA, opaque": (Image.fromarray(np.dstack([COLOURS, half * 0 + 255])), COLOURS),
        "RGB, a colour clear": (keyed, np.where(GREYS[..., None] > 99, COLOURS, BACKGROUND)),
        "CMYK": (Image.fromarray(COLOURS).convert("CMYK"), COLOURS),
        "YCbCr": (Image.new("YCbCr", (9, 6), (255, 128, 128)), everywhere * (255, 255, 255)),
        "HSV": (Image.new("HSV", (9, 6), (0, 255, 255)), everywhere * (255, 0, 0)),
        "I;16": (Image.fromarray(wide), from_wide),
        "I": (Image.fromarray(wide.astype(np.int32)), from_wide),
        "F": (Image.fromarray(floats), grey(np.rint(floats * 255))),
    }  # fmt: skip


@pytest.mark.parametrize("name", odd_modes())
def test_modes(name: str, tmp_path: Path) -> None:
    image, expected = odd_modes()[name]
    assert np.abs(seen(image) - expected.astype(int)).max() <= (name == "RGBA")
    kind = "tiff" if name in ("F", "I", "CMYK", "YCbCr") else "png"
    if name != "HSV":
        image.save(tmp_path / f"picture.{kind}")
        np.testing.assert_array_equal(seen(tmp_path / f"picture.{kind}"), seen(image))


def test_16_bits_of_the_other_end(tmp_path: Path) -> None:
    wide = RNG.integers(0, 65536, (6, 9), dtype=np.uint16)
    header = b"MM\0*" + struct.pack(">I", 8)  # a TIFF in network order
    tags = [(256, 9), (257, 6), (258, 16), (259, 1), (262, 1), (273, 122), (278, 6), (279, 108)]
    entries = b"".join(struct.pack(">HHII", tag, 4, 1, value) for tag, value in tags)
    directory = struct.pack(">H", len(tags)) + entries + struct.pack(">I", 0)
    content = (header + directory).ljust(122, b"\0") + wide.astype(">u2").tobytes()
    (tmp_path / "big.tiff").write_bytes(content)
    with Image.open(tmp_path / "big.tiff") as image:
        assert image.mode == "I;16B"
    np.testing.assert_array_equal(seen(tmp_path / "big.tiff"), grey(np.rint(wide / 257)))


TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["png", "webp", "tiff"])
def test_the_right_way_up(orientation: int, kind: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{kind}"
    Image.fromarray(COLOURS).save(path, exif=exif, lossless=True)
    np.testing.assert_array_equal(seen(path), TURNS[orientation](COLOURS))
    with Image.open(path) as image:
        np.testing.assert_array_equal(seen(image), TURNS[orientation](COLOURS))


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"nonsense"])
def test_a_broken_note_on_which_way_is_up(exif: bytes, tmp_path: Path) -> None:
    path = tmp_path / "noted.png"
    Image.fromarray(COLOURS).save(path, exif=exif)
    np.testing.assert_array_equal(seen(path), COLOURS)


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (4000, 3000)])
def test_sizes(size: tuple[int, int], tmp_path: Path) -> None:
    Image.new("RGB", size, (9, 8, 7)).save(tmp_path / "a.png")
    assert seen(tmp_path / "a.png").shape == (size[1], size[0], 3)
    assert (resize(open_image(tmp_path / "a.png"), 16, 12) == (9, 8, 7)).all()


# --- files that are no pictures --------------------------------------------------------------


def png_of(width: int, height: int) -> bytes:
    """That says how large it is, and holds next to nothing."""
    content = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(9))), (b"IEND", b"")):
        content += struct.pack(">I", len(data)) + kind + data
        content += struct.pack(">I", zlib.crc32(kind + data))
    return content


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it cannot be read as an image (cannot identify image file"),
        (b"What color is the cube?", "it cannot be read as an image (cannot identify image file"),
        (b"\x89PNG\r\n\x1a\n", "it cannot be read as an image ("),
        (png_of(40, 30), "it cannot be read as an image ("),
        (png_of(60_000, 60_000), "it has more than 178,956,970 pixels; make it smaller"),
    ],
)
def test_no_pictures(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        open_image(path)
    assert str(refused.value).startswith(f"{path}: {reason}")
    assert "\n" not in str(refused.value)


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.png: there is no such file"):
        open_image(tmp_path / "nothing.png")
    with pytest.raises(InputError, match="this is a folder, not a file"):
        open_image(tmp_path)


@given(kind=st.sampled_from(["png", "jpeg", "gif", "tiff", "bmp", "webp"]), share=st.floats(0, 1))
@settings(max_examples=80, deadline=None)
def test_one_that_was_cut_short(kind: str, share: float, tmp_path_factory: Any) -> None:
    """It is refused, unless all that matters was before the cut."""
    whole = BytesIO()
    Image.fromarray(COLOURS).save(whole, kind)
    path = tmp_path_factory.getbasetemp() / "short"
    path.write_bytes(whole.getvalue()[: int(share * len(whole.getvalue()))])
    with suppress(InputError):
        np.testing.assert_array_equal(seen(path), seen(Image.open(whole)))
        return
    with pytest.raises(InputError, match=rf"^{path}: it cannot be read as an image \("):
        open_image(path)


# --- arrays ----------------------------------------------------------------------------------

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda hw: st.sampled_from([hw, (*hw, 1), (*hw, 3)])
)


def as_rgb(array: np.ndarray) -> np.ndarray:
    return array if array.shape[2:] == (3,) else grey(array.reshape(array.shape[:2]))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_arrays_of_every_kind(data: st.DataObject) -> None:
    kind, white = data.draw(
        st.sampled_from([("u1", 255), ("<u2", 65535), (">u2", 65535), ("?", 1)])
    )
    array = data.draw(arrays.arrays(kind, SHAPES))
    expected = np.floor(as_rgb(array).astype(float) / white * 255 + 0.5)
    np.testing.assert_array_equal(seen(array), expected)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_floats_from_0_to_1(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([16, 32, 64]))
    numbers: Any = st.floats(0, 1, width=width)  # type: ignore[arg-type]
    array = data.draw(arrays.arrays(f"f{width // 8}", SHAPES, elements=numbers))
    assert np.abs(seen(array) - 255.0 * as_rgb(array).astype(float)).max() <= 0.501
    np.testing.assert_array_equal(seen(torch.from_numpy(array)), seen(array))


def test_bytes_survive_as_floats_and_as_16_bits() -> None:
    for same in (
        COLOURS / 255,
        (COLOURS / 255).astype(np.float32),
        COLOURS.astype(np.uint16) * 257,
    ):
        np.testing.assert_array_equal(seen(same), COLOURS)


def test_arrays_with_alpha_and_upside_down() -> None:
    clear = np.dstack([COLOURS, np.where(GREYS > 99, 255, 0).astype(np.uint8)])
    expected = np.where(GREYS[..., None] > 99, COLOURS, BACKGROUND)
    np.testing.assert_array_equal(seen(clear), expected)
    np.testing.assert_array_equal(seen(clear[::-1, ::-1]), expected[::-1, ::-1])
    np.testing.assert_array_equal(seen(torch.tensor(clear)), expected)


def test_tensors() -> None:
    coarse = torch.tensor(COLOURS // 64 * 64 / 256, dtype=torch.bfloat16, requires_grad=True)
    expected = np.rint(COLOURS // 64 * 64 / 256 * 255)
    np.testing.assert_array_equal(seen(coarse), expected)


@pytest.mark.parametrize(
    ("picture", "sentence"),
    [
        (np.zeros((3, 32, 48), np.uint8), "the array is (3, 32, 48); it must be (height, width)"),
        (np.zeros((2, 2, 2), np.uint8), "the array is (2, 2, 2); it must be"),
        (np.zeros((0, 4, 3), np.uint8), "the array is (0, 4, 3); it must be"),
        (np.zeros(3, np.uint8), "the array is (3,); it must be"),
        (np.zeros((4, 4), np.int64), "the array is of int64; it must be of uint8, uint16, bool or"),
        (np.zeros((4, 4), np.complex64), "the array is of complex64; it must be"),
        (np.array([["a"]]), "the array is of <U1; it must be"),
        (np.full((2, 2), 1.5), "the array runs from 1.5 to 1.5; floats must lie from 0 to 1"),
        (np.full((2, 2), -0.5), "the array runs from -0.5 to -0.5; floats must lie"),
        (np.full((2, 2), np.nan), "the array runs from nan to nan; floats must lie"),
        (torch.zeros(2, 2, dtype=torch.int32), "the array is of int32; it must be"),
        (Image.new("RGB", (0, 5)), "the image: it has no pixels"),
        (Image.new("I", (2, 2), 70_000), "the image: its content is of int32; it must be of uint8"),
        (Image.new("F", (2, 2), 3), "the image: its content runs from 3 to 3; floats must lie"),
        (7, "`image` is a int; it must be a path, a Pillow image, or an array"),
        (None, "`image` is a NoneType; it must be a path"),
    ],
)  # fmt: skip
def test_what_is_no_picture(picture: Any, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        open_image(picture)
    assert str(refused.value).startswith(sentence)
