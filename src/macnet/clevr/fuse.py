"""Run elementwise torch code as one kernel where that pays, and as it is written elsewhere.

Compiling takes two minutes or so, and then gains a factor of four or five on CUDA: right for an
endless stream of pictures, wrong for a few hundred. So whoever renders says which.
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
def compiled(wanted: bool) -> Iterator[None]:
    """Within, `fused` functions are compiled, if wanted."""
    token = _compiling.set(wanted)
    try:
        yield
    finally:
        _compiling.reset(token)


def fused(function: F) -> F:
    """Mark a function of tensors that may be compiled into one kernel.

    Its last argument must be a tensor as long as its results: of nothing, there is no kernel.
    """

    @functools.cache
    def kernel() -> F:
        return torch.compile(function, dynamic=True)  # type: ignore[return-value]

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        # Within another such function, it is compiled into that.
        if torch.compiler.is_compiling() or not _compiling.get() or not args[-1].numel():
            return function(*args)
        return kernel()(*args)

    return run  # type: ignore[return-value]
