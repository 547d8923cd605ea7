"""Packs: folders of memory-mapped arrays, made once and then opened within a second.

A pack is named by a hash of its recipe, which holds the fingerprints of its sources and every
option. So a changed source, or another option, means another pack, and an existing one is valid. It
is complete or not there, however many processes need it at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import math
import mmap
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from macnet.errors import InputError, is_out_of_resources
from macnet.files import fsync, read_json

FORMAT = 3  # raise it when the same recipe would give other arrays
METADATA = "about.json"
MAP_NORESERVE = 0x4000  # of Linux; Python has no name for it before 3.13


@dataclass(frozen=True)
class Pack:
    """A folder of arrays."""

    folder: Path
    arrays: Mapping[str, np.ndarray]
    metadata: Mapping[str, Any]
    """What `make` returned, the arrays' shapes and types, and the recipe."""


def fingerprint(files: Iterable[Path], folder: Path | None = None) -> str:
    """A hash of the names (below a folder), sizes and times of change of files.

    Their content is not read: of 70,000 images that would take minutes.
    """
    lines, prefix = [], f"{folder}/"
    for file in files:
        status, name = file.stat(), str(file).removeprefix(prefix) if folder else file.name
        lines.append(f"{name}\t{status.st_size}\t{status.st_mtime_ns}\n")
    return _hash("".join(sorted(lines)))


def cached_pack(
    cache: Path,
    kind: str,
    recipe: Mapping[str, Any],
    make: Callable[[Path], Mapping[str, Any] | None],
) -> Pack:
    """Open the pack of this recipe; if there is none, let `make` write its arrays to a folder.

    `make` may return metadata of them. Of several processes that want the same pack one makes it,
    and the others wait.
    """
    recipe = {"format": FORMAT, "kind": kind, **recipe}
    name = f"{kind}-{_hash(json.dumps(recipe, sort_keys=True))}"
    folder = cache / name
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        with _locked(cache / f".{name}.lock"):
            if not folder.exists():  # or somebody else made it meanwhile
                _make(folder, recipe, make)
    return open_pack(folder)


def open_pack(folder: Path) -> Pack:
    """Open a pack, after a check that it is as it was written."""
    try:
        metadata = read_json(folder / METADATA)
        if metadata.pop("checksum") != _checksum(metadata):
            raise ValueError(f"{METADATA} is not as it was written")
        arrays = {
            name: _open_array(folder / f"{name}.npy", tuple(shape), np.dtype(dtype))
            for name, (*shape, dtype) in metadata["arrays"].items()
        }
    except (InputError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        if is_out_of_resources(error):
            raise
        raise InputError(
            f"{folder}: it is damaged ({error}); remove it, and it is made again"
        ) from None
    return Pack(folder, arrays, metadata)


def create_array(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Create a .npy file with space for all of its rows; returns the offset of the first in bytes.

    The space is allocated at once: a disk that is too small fails now and with an error, where a
    memory-mapped file would end the process later, by a signal.
    """
    header, size = _layout(shape, dtype)
    start = len(header)
    with path.open("wb") as file:
        file.write(header)
        file.flush()
        os.posix_fallocate(file.fileno(), start, max(size, 1))
        os.ftruncate(file.fileno(), start + size)
    return start


def save_array(path: Path, array: np.ndarray) -> None:
    """Like `np.save`, but a full disk is an OSError with its errno."""
    start = create_array(path, array.shape, array.dtype)
    if array.size:
        write_rows(path, start, 0, array)


def write_rows(path: Path, start: int, first: int, rows: np.ndarray) -> None:
    """Write rows to their place in an array file; processes may write different ones at once."""
    file = os.open(path, os.O_WRONLY)
    try:
        data = np.ascontiguousarray(rows).data.cast("B")
        place = start + first * rows[0].nbytes
        while data:
            written = os.pwrite(file, data, place)
            data, place = data[written:], place + written
    finally:
        os.close(file)


def _open_array(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    header, size = _layout(shape, dtype)
    with path.open("rb") as file:
        if file.read(len(header)) != header or path.stat().st_size != len(header) + size:
            raise ValueError(f"{path.name} is not as it was written")
        # Copied on write: nobody writes, but torch warns of arrays that it could not write to. No
        # memory is reserved for that, or 28 GB of features would open only where as much is free.
        flags = mmap.MAP_PRIVATE | (MAP_NORESERVE if sys.platform == "linux" else 0)
        try:
            content = mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
    return np.frombuffer(content, dtype, math.prod(shape), len(header)).reshape(shape)


def _layout(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[bytes, int]:
    """The header of a .npy file, and the number of bytes that follow."""
    header = io.BytesIO()
    metadata = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, metadata)
    return header.getvalue(), dtype.itemsize * math.prod(shape)


def _checksum(metadata: Mapping[str, Any]) -> str:
    return _hash(json.dumps(metadata, sort_keys=True))


def _make(
    folder: Path, recipe: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any] | None]
) -> None:
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
    try:
        part.mkdir()
        metadata = dict(make(part) or {})
        arrays = {path.stem: np.load(path, "r") for path in sorted(part.glob("*.npy"))}
        metadata["arrays"] = {name: [*a.shape, a.dtype.str] for name, a in arrays.items()}
        metadata["recipe"] = recipe
        metadata["checksum"] = _checksum(metadata)
        (part / METADATA).write_text(json.dumps(metadata, indent=1) + "\n")
        for path in part.iterdir():
            fsync(path)  # or a power cut could leave zeros under the right name
        part.replace(folder)
    except BaseException as error:
        shutil.rmtree(part, ignore_errors=True)
        # A failed write may not name a file, and the user does not know the temporary name.
        if isinstance(error, OSError) and str(part) in str(error.filename or part):
            raise OSError(error.errno, error.strerror, str(folder)) from error
        raise


def _sweep(cache: Path) -> None:
    """Remove the partial packs of processes that were killed: they may be large."""
    for part in cache.glob(".*.part"):
        with part.with_suffix(".lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # it is being made
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock; the kernel releases it when the process ends, however it ends."""
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"{path.parent}: waiting for another process that packs the same", file=sys.stderr
            )
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
