"""Who renders: PyTorch's functions, on any device, or Triton kernels of our own, on CUDA."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Literal, get_args

import torch

from macnet.errors import InputError

Backend = Literal["torch", "triton"]

MIN_TRITON = (3, 4)  # the first that compiles the kernels
MIN_CAPABILITY = (7, 0)  # of GPUs that Triton compiles for


def fastest_backend(device: torch.device, quality: str = "fast") -> Backend:
    """Triton's kernels where they can be compiled and render in this quality, else torch."""
    if _missing_for_triton(device, quality) or not _can_compile(device):
        return "torch"
    return "triton"


def check_backend(backend: str, device: torch.device, quality: str = "fast") -> None:
    """Raise `InputError` if a backend does not exist, or cannot render in this quality here."""
    if backend not in get_args(Backend):
        choices = ", ".join(get_args(Backend))
        raise InputError(f"`backend` is {backend!r}; it must be one of {choices}")
    if backend == "triton" and (missing := _missing_for_triton(device, quality)):
        raise InputError(f"`backend` 'triton' {missing}; use the backend 'torch'")


def _missing_for_triton(device: torch.device, quality: str) -> str | None:
    if quality != "fast":
        return f"cannot render in {quality} quality"
    if device.type != "cuda":
        return f"needs a CUDA device, but `device` is {str(device)!r}"
    if not torch.cuda.is_available():
        return "needs a CUDA device, but there is none"
    if importlib.util.find_spec("triton") is None:
        return "needs Triton, which is not installed"
    import triton

    needed = ".".join(map(str, MIN_TRITON))
    is_older = tuple(int(part) for part in triton.__version__.split(".")[:2]) < MIN_TRITON
    return f"needs Triton {needed} or later, but this is {triton.__version__}" if is_older else None


def _can_compile(device: torch.device) -> bool:
    """Whether Triton supports the GPU, and finds what it makes its launchers with.

    That is a C compiler, and Python's headers, which many systems have in a package of their own.
    An explicit choice of the backend is not refused for this: Triton's own error says more.
    """
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return False
    given = os.environ.get("CC")
    compilers = ("gcc", "clang") if given is None else (given,)
    return any(map(shutil.which, compilers)) and _python_header().is_file()


def _python_header() -> Path:
    """Where Triton looks for Python.h."""
    scheme = sysconfig.get_default_scheme()
    # Debian's Python names a scheme for packages installed by hand, which has no headers.
    scheme = "posix_prefix" if scheme == "posix_local" else scheme
    return Path(sysconfig.get_path("include", scheme)) / "Python.h"
