"""What `macnet train` is to train, before its flags are read: a preset, changed step by step.

Which flags there are, and what `--help` shows as their defaults, follows from the preset. So the
few that decide about it are looked for first.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from macnet.errors import InputError

if TYPE_CHECKING:
    from macnet.training.plan import TrainingPlan

FIRST = ("preset", "ablation", "recipe", "overrides", "from")
CONFIGURATIONS = "macnet.models."


def choose(arguments: Sequence[str]) -> TrainingPlan:
    """The plan of a command line, which flags for single fields then change further."""
    from macnet.checkpoint import load_trained
    from macnet.training.plan import make_plan

    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in FIRST:
        parser.add_argument(f"--{flag}", nargs="?")
    # Whatever is wrong with the others, or missing, is for the parser of all flags to say.
    given = {name: v for name, v in vars(parser.parse_known_args(arguments)[0]).items() if v}
    start = given.pop("from", None)
    return make_plan(**given, start=None if start is None else load_trained(Path(start)))


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
        hidden = _data_fields(config)
        fields = tuple(field for field in usual.fields if field.name not in hidden)
        return StructConstructorSpec(partial(_changed_by_flags, config), fields)


def _data_fields(config: Any) -> tuple[str, ...]:
    """Fields without flags, because they follow from the data."""
    from macnet.models.registry import PRESETS

    kinds = {type(preset.config): preset.system.data_fields for preset in PRESETS.values()}
    return kinds.get(type(config), ())


def _changed_by_flags(config: Any, **values: Any) -> Any:
    try:
        return replace(config, **values)
    except InputError as error:
        name, _, rest = str(error).partition(" ")
        name = name.strip("`")
        within = "" if name.startswith("recipe.") else "model."
        raise InputError(f"`{within}{name}` {rest}") from None
