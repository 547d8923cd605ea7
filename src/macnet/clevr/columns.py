"""Tensors, and tuples of tensors, as tables: their last dimension is the number of columns.

Formulas are functions of tables, and on a CPU they are run on a block of columns at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Table = TypeVar("Table")  # a tensor, or a tuple of tables, named or not
F = TypeVar("F", bound=Callable[..., Any])

# Columns that are processed at once on a CPU, by each of its threads: so few that a formula's
# tensors stay in the caches, and enough for torch to use all threads.
BLOCK_SIZE = 32_768


def narrow(table: Table, start: int, length: int) -> Table:
    """Some consecutive columns."""
    found: Table = _map(lambda tensors: tensors[0].narrow(-1, start, length), [table])
    return found


def split(table: Table, sizes: Iterable[int]) -> list[Table]:
    """Groups of consecutive columns, of these sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(narrow(table, start, size))
        start += size
    return parts


def concatenate(parts: Sequence[Table]) -> Table:
    """One table with the columns of several; the inverse of `split`."""
    found: Table = _map(lambda tensors: torch.cat(tensors, dim=-1), parts)
    return found


def _map(function: Callable[[list[Tensor]], Tensor], tables: Sequence[Any]) -> Any:
    """Apply a function to the tensors at the same place in several tables."""
    first = tables[0]
    if isinstance(first, Tensor):
        return function(list(tables))
    items = [_map(function, place) for place in zip(*tables, strict=True)]
    return type(first)(*items) if hasattr(first, "_fields") else tuple(items)


def columnwise(count: int) -> Callable[[F], F]:
    """Decorator of a function whose result has as many columns as its last `count` arguments.

    These are tables, and column i of the result may depend on their column i alone. On a CPU they
    are processed in blocks of columns.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any) -> Any:
            if args[-1].device.type == "cpu":
                return _run_in_blocks(function, args[:-count], args[-count:])
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
