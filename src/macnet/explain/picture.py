"""Any picture that people bring becomes one that a network can look at.

    rgb = open_picture("photo.jpg")  # or an image of Pillow's, or an array
    pixels = squeeze(rgb, 128, 128)  # (128, 128, 3) uint8

Networks have seen the 3:2 of CLEVR squeezed into their own shape. Pictures of any other shape are
squeezed likewise, never cut nor padded: all that is in them is seen, if not in its proportions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps

from macnet.disk import refuse_no_file
from macnet.errors import InputError, is_about_resources

Picture: TypeAlias = str | PathLike[str] | Image.Image | np.ndarray | torch.Tensor

GROUND = (122, 121, 121)
"""What shines through where a picture is transparent: the median pixel of 32 CLEVR images. On
white, which CLEVR never shows over more than a highlight, a network would be asked what it cannot
know."""

LARGEST = {"bool": 1, "uint8": 255, "uint16": 65535}
"""What white is, in an array of whole numbers. Among floats it is 1."""


def open_picture(picture: Picture) -> Image.Image:
    """In RGB, the right way up, in its own size."""
    if isinstance(picture, str | PathLike):
        path = Path(picture)
        refuse_no_file(path)
        with _blaming(str(path)), Image.open(path) as image:
            return _to_rgb(image)
    if isinstance(picture, Image.Image):
        with _blaming("the image"):
            return _to_rgb(picture)
    if isinstance(picture, torch.Tensor):
        tensor = picture.detach().cpu()
        # numpy has no bfloat16.
        picture = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    if isinstance(picture, np.ndarray):
        return _to_rgb(_from_array(picture, "the array"))
    raise InputError(
        f"the image is a {type(picture).__name__}; it must be a path, an image of Pillow's, or an "
        "array"
    )


def squeeze(rgb: Image.Image, width: int, height: int) -> np.ndarray:
    """(height, width, 3) uint8: what `data.pack` would make of it for a network to learn from."""
    if rgb.size != (width, height):
        rgb = rgb.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(rgb)


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    """All that goes wrong in here is the picture's fault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pictures that are odd but can be read
            yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)  # Pillow warns of half of it
        raise InputError(
            f"{name}: it has more than {most:,} pixels; make it smaller before asking about it"
        ) from None
    except Exception as error:  # Pillow has no end of them for a broken file
        if is_about_resources(error):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{name}: it cannot be read as an image ({reason:.200})") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if not all(image.size):
        raise InputError("it has no pixels")
    image.load()
    with suppress(Exception):  # what nobody can read of how it was held turns nothing
        image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):  # which Pillow would cut off at 255
        image = _from_array(_in_16_bits(np.asarray(image)), "its content")
    if not image.has_transparency_data:
        return image.convert("RGB")
    ground = Image.new("RGBA", image.size, GROUND)
    return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")


def _in_16_bits(array: np.ndarray) -> np.ndarray:
    """Some files of 16 bits come in 32."""
    fits = array.dtype == np.int32 and array.min() >= 0 and array.max() <= LARGEST["uint16"]
    return array.astype(np.uint16) if fits else array


def _from_array(array: np.ndarray, name: str) -> Image.Image:
    shape, dtype = array.shape, array.dtype
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise InputError(
            f"{name} is {shape}; it must be (height, width) or (height, width, channels), with 1, "
            "3 or 4 channels"
        )
    if dtype.name not in LARGEST and dtype.kind != "f":
        raise InputError(f"{name} is of {dtype}; it must be of uint8, uint16, bool or floats")
    largest = LARGEST.get(dtype.name, 1)
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= largest):  # nor is it so where something is no number
        raise InputError(f"{name} runs from {low:g} to {high:g}; floats must lie from 0 to 1")
    if dtype != np.uint8:
        array = np.rint(np.multiply(array, 255 / largest, dtype=np.float32)).astype(np.uint8)
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
