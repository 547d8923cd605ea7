"""Images of any kind as the input of a network.

    rgb = open_image("photo.jpg")  # or a Pillow image, or an array
    pixels = resize(rgb, 128, 128)  # (128, 128, 3) uint8

Networks were trained on CLEVR's 3:2 images resized to their own aspect ratio. Images of any other
shape are resized likewise, never cropped nor padded: all of an image is seen, if distorted.
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

from macnet.errors import InputError, is_out_of_resources
from macnet.files import check_is_file

ImageLike: TypeAlias = str | PathLike[str] | Image.Image | np.ndarray | torch.Tensor

BACKGROUND = (122, 121, 121)
"""The background of transparent images: the median pixel of 32 CLEVR images. White, which CLEVR
never shows over more than a highlight, would be far from what networks were trained on."""

WHITE = {"bool": 1, "uint8": 255, "uint16": 65535}
"""The value of white in an array of integers; in one of floats it is 1."""


def open_image(given: ImageLike) -> Image.Image:
    """The image in RGB, upright, in its own size."""
    if isinstance(given, str | PathLike):
        path = Path(given)
        check_is_file(path)
        with _name_errors(str(path)), Image.open(path) as image:
            return _to_rgb(image)
    if isinstance(given, Image.Image):
        with _name_errors("the image"):
            return _to_rgb(given)
    if isinstance(given, torch.Tensor):
        tensor = given.detach().cpu()
        # numpy has no bfloat16.
        given = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    if isinstance(given, np.ndarray):
        return _to_rgb(_from_array(given, "the array"))
    raise InputError(
        f"`image` is a {type(given).__name__}; it must be a path, a Pillow image, or an array"
    )


def resize(rgb: Image.Image, width: int, height: int) -> np.ndarray:
    """(height, width, 3) uint8: the same as `data.pack` makes for training."""
    return np.asarray(rgb.resize((width, height), Image.Resampling.BICUBIC))


@contextmanager
def _name_errors(name: str) -> Iterator[None]:
    """Errors in here become InputError, which names the image."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of images that are odd but can be read
            yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except Image.DecompressionBombError:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)  # Pillow warns of half of it
        raise InputError(f"{name}: it has more than {most:,} pixels; make it smaller") from None
    except Exception as error:  # Pillow has no end of them for a broken file
        if is_out_of_resources(error):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{name}: it cannot be read as an image ({reason:.200})") from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if not all(image.size):
        raise InputError("it has no pixels")
    image.load()
    with suppress(Exception):  # an unreadable orientation is ignored
        image = ImageOps.exif_transpose(image)
    if image.mode == "F" or image.mode.startswith("I"):  # which Pillow would cut off at 255
        image = _from_array(_in_16_bits(np.asarray(image)), "its content")
    if not image.has_transparency_data:
        return image.convert("RGB")
    ground = Image.new("RGBA", image.size, BACKGROUND)
    return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")


def _in_16_bits(array: np.ndarray) -> np.ndarray:
    """Some files of 16 bits come in 32."""
    fits = array.dtype == np.int32 and array.min() >= 0 and array.max() <= WHITE["uint16"]
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
    if dtype.name not in WHITE and dtype.kind != "f":
        raise InputError(f"{name} is of {dtype}; it must be of uint8, uint16, bool or floats")
    largest = WHITE.get(dtype.name, 1)
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= largest):  # which NaN fails too
        raise InputError(f"{name} runs from {low:g} to {high:g}; floats must lie from 0 to 1")
    if dtype != np.uint8:
        array = np.rint(np.multiply(array, 255 / largest, dtype=np.float32)).astype(np.uint8)
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)
