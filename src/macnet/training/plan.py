"""What is trained and how: a preset or a checkpoint, then the changes to it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from macnet.checkpoint import TrainedNetwork
from macnet.configuration import with_changes
from macnet.errors import InputError
from macnet.files import check_is_file, read_json
from macnet.models.recipe import Recipe
from macnet.models.registry import find_preset
from macnet.models.system import Stage, System


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What is trained and how. With the same data, equal plans give equal networks."""

    preset: str
    model: Any
    """A configuration of the preset's system."""
    recipe: Recipe
    seed: int = 0
    start: TrainedNetwork | None = None
    """The network whose weights training starts from; random weights if None."""

    @property
    def system(self) -> System:
        """The system of the preset."""
        return find_preset(self.preset).system

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of training, in order."""
        return self.system.training.find_stages(self.recipe)

    @property
    def row(self) -> str | None:
        """The label in the paper's tables 1 and 2, or None."""
        return self.system.find_row(self.model, self.programs)

    @property
    def programs(self) -> int:
        """The number of questions whose programs the network has learned from; 0 stands for all."""
        if self.start is None:
            return self.recipe.programs
        before = self.start.programs
        if not any(stage.uses_programs for stage in self.stages):
            return before
        # What the network that it starts from has learned, it still knows.
        return max(before, self.recipe.programs) if before and self.recipe.programs else 0

    def to_record(self) -> dict[str, Any]:
        """The plan as JSON, for the metadata of a run."""
        return {
            "preset": self.preset,
            "system": self.system.name,
            "model": asdict(self.model),
            "recipe": asdict(self.recipe),
            "stages": [stage.to_record() for stage in self.stages],
            "seed": self.seed,
            "start": self.start and str(self.start.path.resolve()),
        }


def make_plan(
    preset: str | None = None,
    ablation: str | None = None,
    model: Any = None,
    recipe: str | Recipe = "paper",
    recipe_changes: Mapping[str, Any] | None = None,
    overrides: str | PathLike[str] | None = None,
    *,
    seed: int = 0,
    start: TrainedNetwork | None = None,
) -> TrainingPlan:
    """The plan for the arguments of `train` that have these names."""
    if not 0 <= seed < 1 << 32:
        raise InputError(f"`seed` is {seed}; it must be a whole number from 0, below 2^32")
    of_start = None if start is None else start.metadata["preset"]
    preset = preset or of_start or "paper"
    system, config = find_preset(preset)
    if start is not None:
        if preset != of_start:
            raise InputError(
                f"`preset` is {preset}, but {start.path} is a checkpoint of another preset, "
                f"{of_start}"
            )
        if ablation is not None:
            raise InputError(f"`ablation` is given, but {start.path} has a network of its own")
        config = start.config
    if ablation is not None:
        config = system.ablate(config, ablation)
    if isinstance(recipe, str):
        name, recipe = recipe, system.training.find_recipe(recipe)
        if name == "humans" and start is None:
            raise InputError(
                "`recipe` is humans, which fine-tunes a trained network; give it as `start`"
            )
    if overrides is not None:
        config, recipe = apply_overrides(Path(overrides), config, recipe)
    if isinstance(model, Mapping):
        config = with_changes(config, model, "model.")
    elif model is not None and type(model) is not type(config):
        raise InputError(
            f"`model` is {model!r:.40}; `preset` is {preset}, of a {type(config).__name__}"
        )
    elif model is not None:
        config = model
    recipe = with_changes(recipe, recipe_changes or {}, "recipe.")
    stages = system.training.find_stages(recipe)
    if recipe.programs and not any(stage.uses_programs for stage in stages):
        named = ", ".join(stage.name for stage in stages)
        raise InputError(
            f"`recipe.programs` is {recipe.programs}, but {preset} does not learn from programs in "
            f"the stage{'s' * (len(stages) > 1)} {named}; leave it out"
        )
    if recipe.guide and system.trace is None:
        raise InputError(
            f"`recipe.guide` is {recipe.guide}, but {preset} does not reason in steps of attention "
            "that could be guided; leave it out"
        )
    for stage in stages:
        if recipe.trainable and "trainable" in stage.changes:
            raise InputError(
                f"`recipe.trainable` is {', '.join(recipe.trainable)}, but the stage {stage.name} "
                f"of {preset} always trains {', '.join(stage.changes['trainable'])}; leave it out, "
                "or choose others as `recipe.stages`"
            )
    return TrainingPlan(preset=preset, model=config, recipe=recipe, seed=seed, start=start)


# --- a file of overrides ---------------------------------------------------------------------


def apply_overrides(path: Path, model: Any, recipe: Recipe) -> tuple[Any, Recipe]:
    """Both configurations, as a .toml or .json with tables "model" and "recipe" changes them."""
    tables = _read_tables(path)
    for name, table in tables.items():
        if name not in ("model", "recipe"):
            raise InputError(f"{path}: there is no table {name!r:.40}; choose model or recipe")
        if not isinstance(table, Mapping):
            raise InputError(f"{path}: {name} is {table!r:.40}; it must be a table of fields")
    try:
        model = with_changes(model, tables.get("model", {}), "model.")
        return model, with_changes(recipe, tables.get("recipe", {}), "recipe.")
    except InputError as error:
        message = str(error).replace("`", "")  # what is in a file is no argument
        raise InputError(f"{path}: {message}") from None


def _read_tables(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".json":
        content = read_json(path)
        if not isinstance(content, dict):
            raise InputError(f"{path}: it must hold the tables model and recipe")
        return content
    if path.suffix != ".toml":
        raise InputError(f"{path}: overrides are a .toml or a .json")
    check_is_file(path)
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not TOML ({error})") from None
