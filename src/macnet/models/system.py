"""What a system is: one entry holds all that training, evaluation, `ask` and the tables need."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

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


class ModuleTrace(NamedTuple):
    """A module of a program that was executed for one question."""

    name: str
    """Its name, such as "filter_color[red]" or "Find"."""
    inputs: tuple[int, ...]
    """The modules it takes the outputs of, by their places in the program."""
    words: Tensor | None
    """(S,): its attention to the words of the question, if it has one; it sums to one."""
    map: Tensor | None
    """(L,): where in the image its output is, not negative, with a sum of one; None if nowhere."""


@dataclass(frozen=True, kw_only=True)
class ProgramWriting:
    """How a system that answers by writing a program and executing it is evaluated and shown."""

    forward: Callable[[Any, Batch], tuple[Tensor, Tensor]]
    """Logits (B, answers), and (B,) bool: whether the program that was written is the true one."""
    trace: Callable[[Any, Tensor, Tensor], tuple[Tensor, list[ModuleTrace]]]
    """Logits (1, answers) and the modules, in order of execution, for one image and question."""
    modules: Callable[[Sequence[str]], list[str]]
    """The names of the modules of a CLEVR program in prefix form, in order of execution."""
    map_title: str
    """What the maps of modules show, for pictures, such as "attention"."""


def uniform_answer_loss(config: Any, data_spec: DataSpec) -> float:
    """The cross-entropy of an answer that is guessed uniformly."""
    return math.log(max(2, data_spec.answers))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of training: by which objective, on what data, and how the recipe differs."""

    name: str
    objective: Objective = answer_loss
    start_from: Literal["best", "last"] = "best"
    """Which weights of the previous stage this one starts from."""
    uses_programs: bool = False
    """Whether it learns from programs, of as many questions as the recipe says."""
    learns_policy: bool = False
    """Whether it learns by REINFORCE, from the cost of what is sampled."""
    selects_by: Literal["answers", "programs"] = "answers"
    """The accuracy at validation by which the best network is chosen."""
    uniform_loss: Callable[[Any, DataSpec], float] = uniform_answer_loss
    """The objective of a uniform guess, for a configuration; training far above it has diverged."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the recipe of the run."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """What numbers of the recipe are multiplied by, such as the learning rate."""

    def recipe(self, base: Recipe) -> Recipe:
        """The recipe of this stage in a run with that recipe."""
        made: dict[str, Any]
        made = {name: getattr(base, name) * factor for name, factor in self.factors.items()}
        if self.uses_programs and base.programs:  # few questions are about as many images
            made |= {"images": base.images * base.questions, "questions": 1}
        if self.learns_policy:
            made |= {"lr": base.policy_lr or base.lr, "epochs": base.policy_epochs or base.epochs}
            if base.optimizer == "muon":  # whose steps are as long where a gradient is only noise
                made["optimizer"] = "adam"
        return replace(base, **made, **self.changes)

    def subset(self, base: Recipe, seed: int) -> Subset | None:
        """The training questions that are used in a run with that recipe; all if None."""
        if not (self.uses_programs and base.programs):
            return None
        return Subset("question", count=base.programs, seed=seed)

    def to_record(self) -> dict[str, Any]:
        """The stage as JSON, for the metadata of a run."""
        return {
            "name": self.name,
            "objective": self.objective.__name__,
            "start_from": self.start_from,
            "changes": dict(self.changes),
            "factors": dict(self.factors),
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

    def find_stages(self, recipe: Recipe) -> tuple[Stage, ...]:
        """The stages that a recipe names, in the order in which they are published."""
        known = [stage.name for stage in self.stages]
        for name in recipe.stages:
            if name not in known:
                raise InputError(f"`recipe.stages` is {name!r}; choose among {', '.join(known)}")
        return tuple(s for s in self.stages if not recipe.stages or s.name in recipe.stages)

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
    programs: ProgramWriting | None = None
    """How its programs are evaluated and shown, if it writes any."""
    program_rows: Mapping[int, str] = field(default_factory=dict)
    """Its row in table 1 by the number of questions whose programs it learned from."""
    ablations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Changes to a configuration, by the labels of the paper's table 2."""
    data_fields: tuple[str, ...] = ()
    """Fields of its configuration that follow from the data, so that nobody chooses them."""
    resolve: Callable[[Any, DataSpec], Any] = lambda config, data_spec: config
    """The configuration with these fields filled in."""
    published_features: tuple[int, int, int] | None = None
    """Channels, height and width of the features it was published with, if not those of others."""
    table_row: Callable[[Any], str | None] | None = None
    """The row of table 1 or 2 that a configuration is; by default only the published one is."""

    def __post_init__(self) -> None:
        for table, rows in (
            (TABLE_1, [self.table1_row, *self.program_rows.values()]),
            (TABLE_2, self.ablations),
        ):
            for row in rows:
                if row not in (None, *table):
                    raise ValueError(f"{self.name}: the paper has no row {row!r}")
        if [*self.variants] != [*self.presets][1:]:
            raise ValueError(f"{self.name}: `variants` must describe each preset after the first")

    @property
    def label(self) -> str:
        """What reports call it: its row in the paper's table 1, else its name."""
        return self.table1_row or self.name

    def label_with(self, programs: int) -> str:
        """The same, if it learned from the programs of so many questions; 0 stands for all."""
        if not programs:
            return self.label
        return self.program_rows.get(programs, f"{self.name} ({programs:,} programs)")

    @property
    def summaries(self) -> dict[str, str]:
        """One line on each preset."""
        return {next(iter(self.presets)): self.description.split("\n")[0], **self.variants}

    def deviation(self, data_spec: DataSpec) -> str | None:
        """A sentence on how its input differs from the published features, if it does."""
        own = None if data_spec.pixels else data_spec[-3:]
        if self.published_features in (None, own):
            return None
        published = "x".join(map(str, self.published_features or ()))
        kind = "pixels" if own is None else f"features of {'x'.join(map(str, own))}"
        return f"{self.label} was published with features of {published}; here it has {kind}."

    def find_row(self, config: Any, programs: int = 0) -> str | None:
        """The label of a configuration in the paper's tables 1 and 2, or None.

        `programs`: the number of questions whose programs were learned from; 0 stands for all.
        """
        if self.table_row is not None:
            return self.table_row(config)
        if config != next(iter(self.presets.values())):
            return None
        return self.program_rows.get(programs) if programs else self.table1_row

    def ablate(self, config: Any, row: str) -> Any:
        """The configuration as a row of table 2 changes it; -, -> and * do for −, → and ·."""
        if not self.ablations:
            raise InputError(f"`ablation` is {row!r}, but the paper ablates only MAC")
        return with_changes(config, self.ablations[find_label(row, self.ablations)])
