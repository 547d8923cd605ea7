"""Files that are there whole or not at all."""

from __future__ import annotations

import json
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


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: this is a folder, not a file") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON, or cut short ({error})") from None
