"""HDF5 files of features (N, C, H, W), in which row i belongs to image i, whoever made them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from macnet.data.clevr_h5 import open_hdf5
from macnet.errors import InputError

NAMES = ("features", "images")  # the second in files of pixels, (N, 3, 224, 224) in [0, 1]
MAX_ROW = 1 << 26  # bytes; a damaged file may claim any shape


@dataclass(frozen=True)
class FeatureFile:
    """A file of features; it is open only while rows are read, so that this can be pickled."""

    path: Path
    name: str
    """Name of the array in the file."""
    shape: tuple[int, int, int, int]
    """(images, channels, height, width)"""
    dtype: np.dtype[Any]
    split: str | None
    """Split of the images; None if the file, made by other code, does not say it."""

    def rows(self, start: int, stop: int) -> np.ndarray:
        """(stop − start, C, H, W): the features of these images, checked to be finite."""
        with open_hdf5(self.path) as file:
            rows: np.ndarray = np.ascontiguousarray(file[self.name][start:stop], self.dtype)
        if rows.shape != (stop - start, *self.shape[1:]):
            raise InputError(f"{self.path}: it changed while it was read")
        largest = largest_of(rows)
        for wrong, what in (
            (~np.isfinite(largest), "NaN or infinity"),
            (largest == 0, "nothing but zeros; the file is incomplete"),
        ):
            if wrong.any():
                row = start + int(wrong.argmax())
                raise InputError(f"{self.path}: row {row} of {self.name!r} holds {what}")
        return rows


def open_features(path: Path) -> FeatureFile:
    """Check a file of features and describe it; its rows are not read."""
    with open_hdf5(path) as file:
        name = next((name for name in NAMES if name in file), None)
        if name is None:
            found = ", ".join(sorted(file)[:5]) or "nothing"
            raise InputError(f"{path}: it has no array {NAMES[0]!r}; it holds {found}")
        array = file[name]
        if not isinstance(array, h5py.Dataset):
            raise InputError(f"{path}: {name!r} is no array")
        shape: Any = array.shape or ()
        dtype, whole = array.dtype, _is_whole(array)
        split = file.attrs.get("split")
    if dtype.kind != "f" or dtype.itemsize not in (2, 4):
        raise InputError(f"{path}: {name!r} is of {dtype}; float16 or float32 is expected")
    if len(shape) != 4 or 0 in shape or np.prod(shape[1:], dtype=float) * 4 > MAX_ROW:
        raise InputError(
            f"{path}: {name!r} has the shape {shape}; (images, channels, height, width) is "
            "expected, such as (70000, 1024, 14, 14)"
        )
    if not whole:
        raise InputError(f"{path}: {name!r} was not written to its end; make the file again")
    split = None if split is None else str(split)
    return FeatureFile(path, name, shape, dtype.newbyteorder("="), split)


def _is_whole(array: h5py.Dataset) -> bool:
    """Whether all of it is allocated in the file; what is not would be read as zeros."""
    if array.chunks is None:
        return bool(array.id.get_storage_size() == array.nbytes)
    sides = zip(array.shape, array.chunks, strict=True)
    return bool(array.id.get_num_chunks() == math.prod(-(-side // chunk) for side, chunk in sides))


def largest_of(rows: np.ndarray) -> np.ndarray:
    """(n,) the largest magnitude in each row; infinity is larger than all numbers, NaN than it.

    Without the sign, the bits of floats are in the order of the magnitudes. Comparing them is ten
    times as fast as `isfinite` on each number in half precision.
    """
    bits = rows.view(f"u{rows.itemsize}")
    largest: np.ndarray = (bits & np.iinfo(bits.dtype).max >> 1).max(axis=(1, 2, 3))
    return largest.view(rows.dtype)
