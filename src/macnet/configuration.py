"""Configurations are frozen dataclasses: checks of fields, changes by name, comparisons."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from macnet.errors import InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")


SIZES, REPEATS = 65_536, 1_000
"""The largest dimension, and the largest number of layers, blocks or steps.

A file that asks for more is forged or mistyped; no memory would hold such a network.
"""


def check_count(name: str, value: object, most: int = SIZES) -> None:
    """Raise unless the value is a whole number from 1 to `most`."""
    if not (type(value) is int and 1 <= value <= most):
        raise InputError(f"{name} is {value!r:.40}; it must be a whole number from 1 to {most:,}")


def check_choice(name: str, hint: Any, value: object) -> None:
    """Raise unless the value is one that a field of type bool or Literal may have."""
    if hint is bool and type(value) is not bool:
        raise InputError(f"{name} is {value!r}; choose True or False")
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise InputError(f"{name} is {value!r}; choose one of {', '.join(get_args(hint))}")


def check_fields(config: DataclassInstance, repeated: Collection[str] = ()) -> None:
    """Check each field that is a number of something or a choice; `repeated` count parts."""
    for name, hint in get_type_hints(type(config)).items():
        if hint is int:
            check_count(name, getattr(config, name), REPEATS if name in repeated else SIZES)
        check_choice(name, hint, getattr(config, name))


def with_changes(config: Config, changes: Mapping[str, Any], within: str = "") -> Config:
    """A copy with other values in some fields; a nested configuration can be changed in part.

    Values are checked by the configuration itself.
    """
    known = [field.name for field in fields(config)]
    values = {}
    for name, value in changes.items():
        if name not in known:
            among = f"choose among {', '.join(known)}" if known else "this one has no fields"
            raise InputError(f"there is no field {within + name!r}; {among}")
        inner = getattr(config, name)
        if is_dataclass(inner) and not isinstance(inner, type) and isinstance(value, Mapping):
            value = with_changes(inner, value, f"{within}{name}.")
        if isinstance(inner, tuple):
            if not isinstance(value, list | tuple):
                raise InputError(f"{within}{name} is {value!r}; it must be a list")
            value = tuple(value)  # files know only lists
        values[name] = value
    return replace(config, **values)


def differences(one: Mapping[str, Any], other: Mapping[str, Any], within: str = "") -> list[str]:
    """Where two records differ, as sentences: "recipe.lr is 0.001 there and 0.0001 here"."""
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
