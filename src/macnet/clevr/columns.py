"""Tensors, and tuples of tensors, as tables: their last dimension is the number of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Table = TypeVar("Table")  # a tensor, or a tuple of tables, named or not


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
