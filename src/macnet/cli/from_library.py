"""A command from a function of the library: flags from its signature, help from its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, field, make_dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import tyro


class Option(NamedTuple):
    """What the command line says of an argument, where it does not follow from the function."""

    flag: str | None = None
    """The name of its flag, without dashes."""
    metavar: str | None = None
    """The placeholder of its value in the help."""
    type: Any = None
    """The type that text is parsed as."""
    default: Any = MISSING
    """Its value if not given."""
    help: str | None = None
    """Its help."""


def make_command(
    function: Callable[..., Any],
    run: Callable[[dict[str, Any]], None],
    doc: str | None,
    translate: Callable[[str], str],
    options: Mapping[str, Option],
    hidden: Collection[str],
) -> type:
    """A class for the parser: what it makes of a command line calls `run` with the arguments.

    An argument that is not keyword-only has no flag. Those hidden are not there at all. Help that
    names `arguments` is made to name flags by `translate`.
    """
    hints, helps = get_type_hints(function), _helps(function)
    fields = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in hidden:
            continue
        option = options.get(name, Option())
        kind = option.type or _parsed_as(hints[name])
        default = parameter.default if option.default is MISSING else option.default
        told = tyro.conf.arg(
            name=option.flag,
            metavar=option.metavar or _metavar(kind),
            help=translate(option.help or helps.get(name, "")),
            help_behavior_hint="" if default in (None, ()) else None,  # the help says what is then
        )
        markers = [tyro.conf.FlagCreatePairsOff] if kind is bool else []
        if parameter.kind is not parameter.KEYWORD_ONLY:
            markers.append(tyro.conf.Positional)
        given = {} if default is parameter.empty else {"default": default}
        fields.append((name, Annotated[kind, told, *markers], field(**given)))
    call = {"__call__": lambda self: run(dict(vars(self))), "__doc__": doc}
    return make_dataclass("Command", fields, namespace=call, kw_only=True)


def _parsed_as(hint: Any) -> Any:
    """The type that the parser makes of text: of a path, a Path."""
    kinds = get_args(hint)
    if PathLike[str] in kinds:
        return Path | None if type(None) in kinds else Path
    return hint


def _metavar(kind: Any) -> str | None:
    """Without the None that stands for an argument that is not given."""
    names = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}
    (first, *others) = [k for k in get_args(kind) if k is not type(None)] or [kind]
    return None if others else names.get(first) or ("|".join(map(str, get_args(first))) or None)


def _helps(function: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each argument."""
    _, _, args = (inspect.getdoc(function) or "").partition("Args:\n")
    found = re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", args, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
