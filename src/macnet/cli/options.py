"""Options that several commands have: their types, and how what was given is understood."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from macnet.errors import InputError

NumObjects = Annotated[tuple[int, int], tyro.conf.arg(metavar="MIN MAX")]
Families = Annotated[
    tuple[str, ...], tyro.conf.arg(metavar="GROUP [GROUP ...]", help_behavior_hint="")
]
Data = Annotated[Path, tyro.conf.arg(metavar="DATA")]
Out = Annotated[Path, tyro.conf.arg(metavar="OUT")]
Size = Annotated[str, tyro.conf.arg(metavar="WIDTHxHEIGHT")]
Device = Annotated[str, tyro.conf.arg(metavar="auto|cpu|cuda")]
# What is not given has no default to show: the help says what then happens.
Workers = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Number = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Somewhere = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]
Tokenizer = Annotated[
    Literal["mac", "clevr-iep", "n2nmn"] | None,
    tyro.conf.arg(metavar="mac|clevr-iep|n2nmn", help_behavior_hint=""),
]

PLAIN = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
"""Marks a group of options, which is a box of `--help` and nothing to type."""


def read_size(text: str) -> tuple[int, int]:
    """Width and height of "480x320"."""
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
    if not match:
        raise InputError(
            f"--size is {text[:40]!r}; it must be two positive numbers below 10000, such as 480x320"
        )
    return int(match[1]), int(match[2])


def check_positive(flag: str, value: int | None) -> None:
    """Raise if a number is given that is below one."""
    if value is not None and value < 1:
        raise InputError(f"{flag} is {value}; it must be at least 1")


def check_not_given(options: Any, why: str, *, but: Collection[str] = ()) -> None:
    """Of a group of options, all but some must be as they are by default: they mean nothing now."""
    for field in fields(options):
        if field.name not in but and getattr(options, field.name) != field.default:
            raise InputError(f"--{field.name.replace('_', '-')} is given, but {why}")
