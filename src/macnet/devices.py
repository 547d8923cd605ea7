"""What to run on, where nobody says: the device, the number of processes, the cache folder."""

from __future__ import annotations

import os
import re
from os import PathLike
from pathlib import Path

import torch

from macnet.errors import InputError
from macnet.workers import default_workers


def choose_cache(given: str | PathLike[str] | None) -> Path:
    """The folder for packed arrays: that given, $MACNET_CACHE, or the user's cache folder."""
    if given is not None:
        return Path(given)
    if "MACNET_CACHE" in os.environ:
        return Path(os.environ["MACNET_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "macnet"


def choose_workers(given: int | None, device: str) -> int:
    """The number of processes: that given, or as many as are sensible for the device."""
    if given is not None and given < 1:
        raise InputError(f"`workers` is {given}; it must be at least 1")
    return default_workers(device) if given is None else given


def choose_share_of_workers(given: int | None) -> int:
    """For one of the processes of this machine that work together: its share of the cores."""
    if given is not None:
        return choose_workers(given, "cpu")
    return max(1, choose_workers(None, "cpu") // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def choose_device(name: str) -> str:
    """The device of that name, if it is there; "auto" is a GPU if there is one."""
    gpus = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if gpus else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if not match:
        raise InputError(f"`device` is {name!r}; it must be auto, cpu, cuda or cuda:N")
    if name != "cpu" and int(match[1] or 0) >= gpus:
        raise InputError(f"`device` is {name}, but this machine has {gpus} usable GPUs")
    return name
