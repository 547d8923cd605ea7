"""Functions of tensors that can be compiled into one kernel, and run eagerly by default.

Compiling takes about two minutes and makes rendering on CUDA four to five times faster: it pays
for an endless stream of images but not for a few hundred, so callers of the renderer choose.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from macnet.clevr.columns import concatenate, narrow

F = TypeVar("F", bound=Callable[..., Any])

# Columns that are processed at once on a CPU, by each of its threads: so few that a formula's
# tensors stay in the caches, and enough for torch to use all threads.
BLOCK_SIZE = 32_768

_compiling: ContextVar[bool] = ContextVar("compiling", default=False)


@contextmanager
def compiled(enabled: bool) -> Iterator[None]:
    """A context in which `fused` functions are compiled, if enabled."""
    token = _compiling.set(enabled)
    try:
        yield
    finally:
        _compiling.reset(token)


def fused(columnwise: int = 0) -> Callable[[F], F]:
    """Decorator of a function of tensors that may be compiled into one kernel.

    Its last argument must be a tensor as long as its results: empty ones are not compiled.

    Column i of the result may depend on column i alone of the last `columnwise` arguments: tensors,
    or tuples of tensors, with the same last dimension as the result. On a CPU they are processed in
    blocks of columns.
    """

    def decorate(function: F) -> F:
        @functools.cache
        def kernel() -> F:
            return torch.compile(function, dynamic=True)  # type: ignore[return-value]

        @functools.wraps(function)
        def run(*args: Any) -> Any:
            # Called by another fused function, it becomes a part of that function's kernel.
            if torch.compiler.is_compiling():
                return function(*args)
            if _compiling.get() and args[-1].numel():
                return kernel()(*args)
            if columnwise and args[-1].device.type == "cpu":
                return _run_in_blocks(function, args[:-columnwise], args[-columnwise:])
            return function(*args)

        return run  # type: ignore[return-value]

    return decorate


def _run_in_blocks(
    function: Callable[..., Any], tables: tuple[Any, ...], columns: tuple[Any, ...]
) -> Any:
    size = BLOCK_SIZE * torch.get_num_threads()
    count = columns[-1].shape[-1]
    if count <= size:
        return function(*tables, *columns)
    # Blocks of about equal size; of a multiple of 32 columns, so that the same numbers as without
    # blocks are left over when torch computes 32 at a time: it may round those differently.
    size = 32 * math.ceil(count / math.ceil(count / size) / 32)
    starts = range(0, count, size)
    return concatenate(
        [function(*tables, *narrow(columns, i, min(size, count - i))) for i in starts]
    )
