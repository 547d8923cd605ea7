"""What a system is: one entry holds all that training, evaluation, `ask` and the tables need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor, nn

from macnet.configuration import with_changes
from macnet.data.batches import Batch
from macnet.data.dataset import Subset
from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.mac import StepTrace
from macnet.models.objectives import Objective, answer_loss
from macnet.models.recipe import FAST, Recipe
from macnet.paper import TABLE_1, TABLE_2, find_label

Trace = Callable[[Any, Tensor, Tensor], tuple[Tensor, list[StepTrace]]]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of training: which parameters are trained, on what data, by which objective."""

    name: str
    objective: Objective = answer_loss
    start_from: Literal["best", "last"] = "best"
    """Which weights of the previous stage this one starts from."""
    subset: Subset | None = None
    """The training questions that are used; all if None."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the recipe of the run."""

    def recipe(self, base: Recipe) -> Recipe:
        """The recipe of this stage in a run with that recipe."""
        return replace(base, **self.changes)

    def to_record(self) -> dict[str, Any]:
        """The stage as JSON, for the metadata of a run."""
        return {
            "name": self.name,
            "objective": self.objective.__name__,
            "start_from": self.start_from,
            "subset": self.subset and vars(self.subset).copy(),
            "changes": dict(self.changes),
        }


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """How a system is trained: its recipes and its stages."""

    paper: Recipe = field(default_factory=Recipe)
    """The recipe as published, with values of the authors' code, or ours, where none is."""
    fast: Mapping[str, Any] = field(default_factory=lambda: FAST)
    """What the recipe "fast" changes in it for a modern GPU."""
    humans: Mapping[str, Any] | None = None
    """What the published fine-tuning on CLEVR-Humans changes in it; None if none is published."""
    stages: tuple[Stage, ...] = (Stage(name="training"),)

    def find_recipe(self, name: str) -> Recipe:
        """The recipe of that name: "paper", "fast", or "humans" for fine-tuning."""
        recipes = {"paper": {}, "fast": self.fast, "humans": self.humans}
        if name not in recipes:
            raise InputError(f"`recipe` is {name!r}; choose paper, fast or humans")
        changes = recipes[name]
        if changes is None:
            raise InputError(
                "`recipe` is humans, but no fine-tuning on CLEVR-Humans is published for this "
                "system; give paper, and the parts to train as `recipe.trainable`"
            )
        return replace(self.paper, **changes)


def forward_vqa(network: nn.Module, batch: Batch) -> Tensor:
    """Logits (B, answers) of a network that takes images and questions."""
    logits: Tensor = network(batch.images, batch.questions)
    return logits


def forward_question_type(network: nn.Module, batch: Batch) -> Tensor:
    """Logits (B, answers) of a network that takes only the types of questions."""
    logits: Tensor = network(batch.types)
    return logits


@dataclass(frozen=True, kw_only=True)
class System:
    """A way to answer questions about images, such as a row of the paper's table 1."""

    name: str
    table1_row: str | None = None
    """Its row in the paper's table 1; None if the paper does not have it."""
    description: str
    """What it does, and the paper it is from, in at most five lines; the first stands alone."""
    build: Callable[[Any, DataSpec], nn.Module]
    """The network for a configuration and the sizes of the data."""
    presets: Mapping[str, Any]
    """Its configurations, frozen dataclasses, by name; the first is the published one."""
    variants: Mapping[str, str] = field(default_factory=dict)
    """What each preset after the first is, in one line."""
    training: TrainingSpec = TrainingSpec()
    forward: Callable[[nn.Module, Batch], Tensor] = forward_vqa
    """Logits (B, answers) for a batch."""
    needs_question_types: bool = False
    """Whether it takes the types of questions, and so cannot be asked about a new image."""
    trace: Trace | None = None
    """Logits and reasoning steps for images and questions, if it reasons in steps."""
    ablations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes to a configuration, by the labels of the paper's table 2."""
    data_fields: tuple[str, ...] = ()
    """Fields of its configuration that follow from the data, so that nobody chooses them."""
    resolve: Callable[[Any, DataSpec], Any] = lambda config, data_spec: config
    """The configuration with these fields filled in."""
    table_row: Callable[[Any], str | None] | None = None
    """The row of table 1 or 2 that a configuration is; by default only the published one is."""

    def __post_init__(self) -> None:
        for table, rows in ((TABLE_1, [self.table1_row]), (TABLE_2, self.ablations)):
            for row in rows:
                if row not in (None, *table):
                    raise ValueError(f"{self.name}: the paper has no row {row!r}")
        if [*self.variants] != [*self.presets][1:]:
            raise ValueError(f"{self.name}: `variants` must describe each preset after the first")

    @property
    def label(self) -> str:
        """What reports call it: its row in the paper's table 1, else its name."""
        return self.table1_row or self.name

    @property
    def summaries(self) -> dict[str, str]:
        """One line on each preset."""
        return {next(iter(self.presets)): self.description.split("\n")[0], **self.variants}

    def find_row(self, config: Any) -> str | None:
        """The label of a configuration in the paper's tables 1 and 2, or None."""
        if self.table_row is not None:
            return self.table_row(config)
        return self.table1_row if config == next(iter(self.presets.values())) else None

    def ablate(self, config: Any, row: str) -> Any:
        """The configuration as a row of table 2 changes it; -, -> and * do for −, → and ·."""
        if not self.ablations:
            raise InputError(f"`ablation` is {row!r}, but the paper ablates only MAC")
        return with_changes(config, self.ablations[find_label(row, self.ablations)])
