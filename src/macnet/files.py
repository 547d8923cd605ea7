"""Atomic writes, folder locks, and JSON files."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from macnet.errors import InputError


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing under a temporary name; rename it once it is complete.

    The temporary name is always the same, so that whatever a killed process leaves behind is
    overwritten by the next one.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        # A failed write names no file or the temporary one, which means nothing to the user.
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def fsync(path: Path) -> None:
    """Flush a file to disk, so that it survives a power cut."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder; the kernel releases the lock when the process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another run is at work here; wait for its end") from None
        yield
    finally:
        os.close(handle)


def check_is_file(path: Path) -> None:
    """Raise unless there is a file at that path."""
    if path.is_dir():
        raise InputError(f"{path}: this is a folder, not a file")
    if not path.exists():
        raise InputError(f"{path}: there is no such file")


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    check_is_file(path)
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON, or cut short ({error})") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically and flush it to disk."""
    with atomic_file(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON, atomically."""
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
