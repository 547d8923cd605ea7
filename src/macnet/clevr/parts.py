"""Part files of a world that is being generated, and the released files they are joined into."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from macnet.errors import InputError
from macnet.files import atomic_file


def write_part(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records to a part file, a line each, after a line with their hash."""
    lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
    content = "".join(lines).encode()
    with atomic_file(path) as file:
        file.write(_hash(content) + b"\n" + content)


def read_part(path: Path) -> list[bytes]:
    """The records of a part file, as lines of JSON."""
    expected, _, content = path.read_bytes().partition(b"\n")
    if expected != _hash(content):
        raise InputError(f"{path}: it is damaged; run the same again, which replaces it")
    return content.splitlines()


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def is_part(path: Path) -> bool:
    """Whether a part file exists and is intact."""
    try:
        read_part(path)
    except (FileNotFoundError, InputError):
        return False
    return True


def _opening(info: Mapping[str, Any], key: str) -> bytes:
    return f'{{"info":{json.dumps(info)},"{key}":['.encode()


_CLOSING = b"]}\n"


def join_parts(path: Path, info: Mapping[str, Any], key: str, parts: Sequence[Path]) -> None:
    """Write a released file from its parts, which together may not fit into memory."""
    count = 0
    with atomic_file(path) as file:
        file.write(_opening(info, key))
        for part in parts:
            for line in read_part(part):
                file.write(b",\n" if count else b"\n")
                if key == "questions":
                    # The number of questions in the blocks before is known only here.
                    line = b'{"question_index":%d,' % count + line.removeprefix(b"{")
                file.write(line)
                count += 1
        file.write(b"\n" + _CLOSING)


class _Numbered(Struct):
    image_index: int
    question_index: int | None = None


_NUMBERED = Decoder(_Numbered)


def count_records(path: Path, info: Mapping[str, Any], key: str) -> int | None:
    """The number of records in a file of `join_parts`; None if it does not exist or is incomplete.

    It must have its beginning and end, and between them lines of JSON, numbered without a gap.
    """
    count, comma = 0, True
    try:
        with path.open("rb") as file:
            if file.readline() != _opening(info, key) + b"\n":
                return None
            for line in file:
                if line == _CLOSING and not (count and comma):
                    return None if file.read(1) else count
                record = _NUMBERED.decode(line.removesuffix(b"\n").removesuffix(b","))
                number = record.image_index if key == "scenes" else record.question_index
                if number != count or not comma:
                    return None
                count, comma = count + 1, line.endswith(b",\n")
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return None
