"""Tensors, and tuples of tensors, as tables: their last dimension is the number of columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Table = TypeVar("Table")  # a tensor, or a tuple (named or not, of tuples perhaps) of tensors


def narrow(table: Table, start: int, length: int) -> Table:
    """Some consecutive columns."""
    if isinstance(table, Tensor):
        return table.narrow(-1, start, length)
    return _like(table, (narrow(item, start, length) for item in _items(table)))


def split(table: Table, sizes: Iterable[int]) -> list[Table]:
    """Groups of consecutive columns, of these sizes."""
    parts, start = [], 0
    for size in sizes:
        parts.append(narrow(table, start, size))
        start += size
    return parts


def concatenate(parts: Sequence[Table]) -> Table:
    """The columns of several tables in one; the inverse of `split`."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts, dim=-1)  # type: ignore[call-overload, no-any-return]
    items = zip(*(_items(part) for part in parts), strict=True)
    return _like(parts[0], (concatenate(item) for item in items))


def _items(table: Any) -> tuple[Any, ...]:
    assert isinstance(table, tuple)
    return table


def _like(template: Table, items: Iterable[Any]) -> Table:
    """A tuple of the same type, named or not."""
    kind: Any = type(template)
    return kind(*items) if hasattr(kind, "_fields") else kind(items)  # type: ignore[no-any-return]
