"""Files that are there whole or not at all, and folders that one process has to itself."""

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
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file under another name, and give it its own once it is complete.

    The other name is always the same, so that a run which was killed leaves nothing behind that
    the next one does not write over.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        # A failed write does not say where, and nobody knows the other name.
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def to_disk(path: Path) -> None:
    """Wait until what was written to a file would outlast a power cut."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder; the kernel lets go of it when this process ends, however it ends."""
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


def refuse_no_file(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path}: this is a folder, not a file")
    if not path.exists():
        raise InputError(f"{path}: there is no such file")


def read_json(path: Path) -> Any:
    refuse_no_file(path)
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON, or cut short ({error})") from None


def write_safely(path: Path, content: bytes) -> None:
    """Whole or not at all, and so that it would outlast a power cut."""
    with whole_file(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """In lines that people can read, safely."""
    write_safely(path, json.dumps(content, indent=1).encode() + b"\n")
