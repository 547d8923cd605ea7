"""Configurations are frozen dataclasses; here they are checked, changed by name, and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from macnet.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")


SIZES, REPEATS = 65_536, 1_000
"""The most that a dimension may be, and a number of layers, blocks or steps.

A file that asks for more is forged, or a typing error: a network is not begun that no memory holds.
"""


def refuse_no_count(name: str, value: object, most: int = SIZES) -> None:
    if not (type(value) is int and 1 <= value <= most):
        raise InputError(f"{name} is {value!r:.40}; it must be a whole number from 1 to {most:,}")


def refuse_no_choice(name: str, hint: Any, value: object) -> None:
    """Where a field's type leaves a choice, yes or no among them, it must be one of these."""
    if hint is bool and type(value) is not bool:
        raise InputError(f"{name} is {value!r}; choose True or False")
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise InputError(f"{name} is {value!r}; choose one of {', '.join(get_args(hint))}")


def changed(config: Config, changes: Mapping[str, Any], within: str = "") -> Config:
    """With other values in some fields; those of a nested configuration can be changed in part.

    Whatever a field does not take, its configuration refuses itself.
    """
    known = [field.name for field in fields(config)]
    values = {}
    for name, value in changes.items():
        if name not in known:
            among = f"choose among {', '.join(known)}" if known else "this one has no fields"
            raise InputError(f"there is no field {within + name!r}; {among}")
        inner = getattr(config, name)
        if is_dataclass(inner) and not isinstance(inner, type) and isinstance(value, Mapping):
            value = changed(inner, value, f"{within}{name}.")
        if isinstance(inner, tuple):
            if not isinstance(value, list | tuple):
                raise InputError(f"{within}{name} is {value!r}; it must be a list")
            value = tuple(value)  # files know only lists
        values[name] = value
    return replace(config, **values)


def differences(one: Mapping[str, Any], other: Mapping[str, Any], within: str = "") -> list[str]:
    """Where two records say different things: "recipe.lr is 0.001 there and 0.0001 here"."""
    found = []
    for name in [*one, *(name for name in other if name not in one)]:
        a, b = one.get(name), other.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{within}{name}.")
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            numbered = ({str(i): value for i, value in enumerate(entries)} for entries in (a, b))
            found += differences(next(numbered), next(numbered), f"{within}{name}.")
        elif isinstance(a, list) and isinstance(b, list):
            found.append(f"{within}{name} has {len(a)} entries there and {len(b)} here")
        elif a != b:
            found.append(f"{within}{name} is {a!r:.60} there and {b!r:.60} here")
    return found
