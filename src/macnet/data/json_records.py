"""JSON files of records: decoded with msgspec, and what is wrong with them said with its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Raw, ValidationError
from msgspec.json import Decoder

from macnet.errors import InputError
from macnet.files import check_is_file

T = TypeVar("T")


def decode_file(path: Path, decoder: Decoder[T], expected: str, key: str) -> T:
    """The content of a file of questions.

    `expected` says what a file of another kind lacks; every question has `key`.
    """
    check_is_file(path)
    content = path.read_bytes()
    if not content:
        raise InputError(f"{path}: the file is empty")
    try:
        return decoder.decode(content)
    except ValidationError:
        raise InputError(f"{path}: {expected}") from None
    except (ValueError, RecursionError) as error:
        at = re.search(r"(.*) \(byte (\d+)\)", str(error))
        end = int(at[2]) if at else len(content)
        why = at[1].removeprefix("JSON is malformed: ") if at else error
        begun = content.count(f'"{key}"'.encode(), 0, end)
        raise InputError(
            f"{path}: not JSON, or cut short at byte {end:,} ({why}), some {begun:,} questions "
            "from its beginning; fetch or make the file again"
        ) from None


def decode_records(
    path: Path, raw: Sequence[Raw], decode: Callable[[Raw], T], labels: Sequence[str]
) -> list[T]:
    """The questions of a file: at least one, each with the same of these labels as the first."""
    if not raw:
        raise InputError(f"{path}: it holds no questions")
    records: list[T] = []
    try:
        for json in raw:
            record = decode(json)
            for label in labels:
                missing = getattr(record, label) is None
                if records and missing is not (getattr(records[0], label) is None):
                    has, others = ("none", "one") if missing else ("one", "none")
                    raise ValueError(
                        f'of "{label}" it has {has}, those before it have {others}; a split is '
                        "labelled throughout or not at all"
                    )
            records.append(record)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: question {len(records)}: {describe(error)}") from None
    return records


def describe(error: Exception) -> str:
    """What msgspec found wrong with a record, in plain words: the place in it, then the fault."""
    what, _, place = str(error).partition(" - at `$")
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        return f'it has no "{missing[1]}"'
    what = what.replace("Invalid enum value", "unknown word").replace("Expected", "expected")
    what = "".join(filter(str.isprintable, what))[:120]  # a wrong word may be of any length
    place = place.strip("`.")
    return (f'"{place}": ' if place else "") + what.replace("`", "")
