"""What `macnet train` is to train, before its flags are read: a preset, changed step by step.

Which flags there are, and what `--help` shows as their defaults, follows from the preset. So the
few that decide about it are looked for first.
"""

from __future__ import annotations

import tomllib
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from macnet.configuration import changed
from macnet.disk import read_json, refuse_no_file
from macnet.errors import InputError
from macnet.models.config import FOLLOWS

if TYPE_CHECKING:
    from macnet.training.checkpoint import Trained

TABLES = ("model", "recipe")
FIRST = ("preset", "ablation", "recipe", "overrides", "from")
HIDDEN = {"MACConfig": FOLLOWS}
"""Fields without flags, by configuration."""
CONFIGURATIONS = ("macnet.models.", "macnet.training.")


class Chosen(NamedTuple):
    """What the flags of single fields then change further."""

    preset: str
    model: Any
    recipe: Any
    size: str | None = None
    """Of pictures, where a checkpoint says it."""


def choose(arguments: Sequence[str]) -> Chosen:
    """From a command line: preset or checkpoint, then the ablation, then the file."""
    from macnet.models.registry import find_preset
    from macnet.training.recipes import find_recipe

    given = _look_for(arguments)
    name, size = given["preset"] or "paper", None
    if given["from"]:
        trained = _from_checkpoint(Path(given["from"]), given)
        name, model = trained.about["preset"], trained.config
        size = f"{trained.fit.width}x{trained.fit.height}" if trained.fit.pixels else None
    else:
        model = find_preset(name).config
    if given["ablation"]:
        model = _ablated(given["ablation"], name)
    recipe = find_recipe(given["recipe"] or "paper", find_preset(name).system.name)
    if given["overrides"]:
        model, recipe = override(Path(given["overrides"]), model, recipe)
    return Chosen(name, model, recipe, size)


def _look_for(arguments: Sequence[str]) -> dict[str, str | None]:
    """Whatever is wrong with the others, or missing, is for the parser of all flags to say."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in FIRST:
        parser.add_argument(f"--{flag}", nargs="?")
    return vars(parser.parse_known_args(arguments)[0])


def _from_checkpoint(path: Path, given: Mapping[str, str | None]) -> Trained:
    from macnet.training.checkpoint import open_trained

    trained = open_trained(path)
    name = trained.about["preset"]
    if given["preset"] not in (None, name):
        raise InputError(
            f"--preset is {given['preset']}, but {path} is a checkpoint of another preset, {name}"
        )
    if given["ablation"]:
        raise InputError(f"--ablation is given, but {path} says itself what network it is of")
    return trained


def _ablated(row: str, base: str) -> Any:
    from macnet.models.presets import PRESETS, ablation

    if base not in PRESETS:
        raise InputError(
            f"--ablation is {row!r}, a change to MAC, but --preset is {base}; choose one of "
            f"{', '.join(PRESETS)}"
        )
    try:
        return ablation(row, base)
    except InputError as error:
        raise InputError(f"--ablation: {error}") from None


# --- the file --------------------------------------------------------------------------------


def override(path: Path, model: Any, recipe: Any) -> tuple[Any, Any]:
    """Both, as a file of overrides changes them."""
    tables = _read(path)
    for name, table in tables.items():
        if name not in TABLES:
            raise InputError(f"{path}: there is no table {name!r:.40}; choose model or recipe")
        if not isinstance(table, Mapping):
            raise InputError(f"{path}: {name} is {table!r:.40}; it must be a table of fields")
    try:
        return (
            changed(model, tables.get("model", {}), "model."),
            changed(recipe, tables.get("recipe", {}), "recipe."),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".json":
        content = read_json(path)
        if not isinstance(content, dict):
            raise InputError(f"{path}: it must hold the tables model and recipe")
        return content
    if path.suffix != ".toml":
        raise InputError(f"{path}: overrides are a .toml or a .json")
    refuse_no_file(path)
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not TOML ({error})") from None


# --- flags for the fields of a configuration --------------------------------------------------


class Flags(ConstructorRegistry):
    """Lets configurations be changed by flags, and names the flag of what they refuse."""

    def __init__(self) -> None:
        super().__init__()
        self._asking = False
        self.struct_rule(self._rule)

    def _rule(self, info: StructTypeInfo) -> StructConstructorSpec | None:
        config = info.default
        is_ours = is_dataclass(config) and type(config).__module__.startswith(CONFIGURATIONS)
        if not is_ours or self._asking:
            return None
        self._asking = True  # what the parser itself would make of it, with the help of each field
        try:
            usual = self.get_struct_spec(info)
        finally:
            self._asking = False
        assert isinstance(usual, StructConstructorSpec)
        hidden = HIDDEN.get(type(config).__name__, ())
        fields = tuple(field for field in usual.fields if field.name not in hidden)
        return StructConstructorSpec(partial(_changed_by_flags, config), fields)


def _changed_by_flags(config: Any, **values: Any) -> Any:
    try:
        return replace(config, **values)
    except InputError as error:
        is_named = str(error).startswith("recipe.")
        raise InputError(f"--{error}" if is_named else f"--model.{error}") from None
