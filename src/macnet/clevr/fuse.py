"""Functions of tensors that can be compiled into one kernel, and run eagerly by default.

Compiling takes about two minutes and makes rendering on CUDA four to five times faster: it pays
for an endless stream of images but not for a few hundred, so callers of the renderer choose.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

_compiling: ContextVar[bool] = ContextVar("compiling", default=False)


@contextmanager
def compiled(enabled: bool) -> Iterator[None]:
    """A context in which `fused` functions are compiled, if enabled."""
    token = _compiling.set(enabled)
    try:
        yield
    finally:
        _compiling.reset(token)


def fused(function: F) -> F:
    """Decorator of a function of tensors that may be compiled into one kernel.

    Its last argument must be a tensor as long as its results: empty ones are not compiled.
    """

    @functools.cache
    def kernel() -> F:
        return torch.compile(function, dynamic=True)  # type: ignore[return-value]

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        # Called by another fused function, it becomes a part of that function's kernel.
        if torch.compiler.is_compiling() or not _compiling.get() or not args[-1].numel():
            return function(*args)
        return kernel()(*args)

    return run  # type: ignore[return-value]
