"""Options that several commands have: their types, and how what was given is understood."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from macnet.errors import InputError

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
Tokenising = Annotated[
    Literal["mac", "clevr-iep", "n2nmn"] | None,
    tyro.conf.arg(metavar="mac|clevr-iep|n2nmn", help_behavior_hint=""),
]

PLAIN = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
"""Marks a group of options, which is a box of `--help` and nothing to type."""


def read_size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
    if not match:
        raise InputError(
            f"--size is {text[:40]!r}; it must be two positive numbers below 10000, such as 480x320"
        )
    return int(match[1]), int(match[2])


def refuse_below_one(flag: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError(f"{flag} is {value}; it must be at least 1")


def refuse_given(options: Any, why: str, *, but: Collection[str] = ()) -> None:
    """Of a group of options, all but some must be as they are by default: they mean nothing now."""
    for field in fields(options):
        if field.name not in but and getattr(options, field.name) != field.default:
            raise InputError(f"--{field.name.replace('_', '-')} is given, but {why}")


def refuse_two_tokenisings(vocabulary: Path | None, tokenising: str | None) -> None:
    if vocabulary and tokenising:
        raise InputError(
            f"--tokenising is {tokenising}, but {vocabulary} says itself how questions become "
            "words; give one of the two"
        )


def choose_cache(given: Path | None) -> Path:
    """A folder for packs: where people want such things, if they do not say."""
    if given is not None:
        return given
    if "MACNET_CACHE" in os.environ:
        return Path(os.environ["MACNET_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "macnet"


def choose_workers(given: int | None, device: str) -> int:
    from macnet.workers import default_workers

    refuse_below_one("--workers", given)
    return default_workers(device) if given is None else given


def choose_share_of_workers(given: int | None) -> int:
    """For one of the processes of this machine that work together: its share of the cores."""
    if given is not None:
        return choose_workers(given, "cpu")
    return max(1, choose_workers(None, "cpu") // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def choose_device(name: str) -> str:
    import torch

    gpus = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if gpus else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if not match:
        raise InputError(f"--device is {name!r}; it must be auto, cpu, cuda or cuda:N")
    if name != "cpu" and int(match[1] or 0) >= gpus:
        raise InputError(f"--device is {name}, but this machine has {gpus} usable GPUs")
    return name
