"""What to run on, where nobody says: the device, the number of processes, the cache folder.

And memory: what a CPU keeps, and how arrays get to a GPU and back while the host goes on.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from macnet.errors import InputError
from macnet.workers import default_workers

# Of glibc's `mallopt`. As much free memory as this is kept at the end of the heap, and blocks up to
# this size are taken from the heap: there are versions that accept no more than 32 MiB.
TRIM_THRESHOLD, MMAP_THRESHOLD = (-1, 1 << 30), (-3, 32 << 20)


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


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, and use it again, where glibc manages it.

    Otherwise tensors of some megabytes go back to the system as they are freed, and the next ones
    are given page after page. That was a quarter of the time of a small network's step.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for option, size in (TRIM_THRESHOLD, MMAP_THRESHOLD):
            libc.mallopt(option, size)


def with_device_index(device: torch.device | str) -> torch.device:
    """The device with the index that "cuda" has in this thread; in another it may differ."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to a GPU, without waiting for it; a CPU uses its memory as it is."""
    host = torch.from_numpy(array)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


class Download:
    """A tensor on its way to the host, which need not wait for it."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = tensor
        if tensor.is_cuda:
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.current_stream(tensor.device).record_event()

    @property
    def is_done(self) -> bool:
        """Whether the values have arrived."""
        return self._event is None or self._event.query()

    def wait(self) -> Tensor:
        """The values on the host, once they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
