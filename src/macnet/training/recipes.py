"""How networks learn, as data: recipes, and the stages of systems that learn in several.

A system has its published recipe, called "paper", with values of the authors' code, or ours, where
none is published; "fast" changes it for a modern GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_type_hints

from macnet.configuration import refuse_no_choice
from macnet.data.dataset import Subset
from macnet.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network learns; the defaults are for MAC.

    The paper's (Appendix A) are batches of 64, Adam at 1e-4 and the average of 0.999. It clips
    gradients and stops early, and does not say at what: 8 and the 25 epochs are of the authors'
    code and its README, the patience is ours.
    """

    images: int = 64
    """N: images in a batch, over all processes; no more than there are, unless 64 or less."""
    questions: int = 1
    """G: questions about each of them; ten is as many as CLEVR has, and fastest."""
    epochs: float = 25
    """The longest that is learned: times through the questions (of an endless world, 700,000)."""
    patience: int = 5
    """Early stopping: validations in a row without a better accuracy; 0 learns to the end."""
    validate: float = 1
    """Epochs between validations."""

    shift: int = 0
    """Pictures are moved by up to so many pixels, each time they are seen."""
    jitter: float = 0
    """And their brightness and contrast are changed, by up to this share."""

    optimiser: Literal["adam", "adamw", "muon"] = "adam"
    """With adamw, weight decay is decoupled from the gradient; muon makes steps orthogonal."""
    lr: float = 1e-4
    """Learning rate; where it changes, the highest."""
    schedule: Literal["constant", "authors", "cosine"] = "constant"
    """How the rate changes: the authors halve it when the loss stalls; cosine falls to zero."""
    warm_up: float = 0
    """Epochs in which the learning rate rises to its height."""
    weight_decay: float = 0
    """How strongly weights are drawn to zero."""
    clip: float = 8
    """The largest norm of all gradients together; 0 does not clip."""
    average: float = 0.999
    """Decay of the moving average of the weights, which is what is evaluated; 0 has none."""
    average_warm_up: bool = False
    """Let the average forget faster at first: (1 + t)/(10 + t) after t steps."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of products, where that is safe; weights are float32 either way."""
    trains: tuple[str, ...] = ()
    """Parts whose weights learn, such as question or reasoner; all if none is named."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            refuse_no_choice(f"recipe.{name}", hint, value)
            if hint in (int, float):
                low, strictly = LOWEST.get(name, (0, False))
                number = isinstance(value, int if hint is int else int | float)
                if not number or type(value) is bool or not low <= value <= MOST:
                    kind = "a whole number" if hint is int else "a number"
                    raise InputError(
                        f"recipe.{name} is {value!r:.40}; it must be {kind} from {low} to {MOST:,}"
                    )
                if strictly and value == low:
                    raise InputError(f"recipe.{name} is {value!r}; it must be above {low}")
        if self.jitter > 1:
            raise InputError(f"recipe.jitter is {self.jitter}; it must be 1 at most")
        if self.average >= 1:
            raise InputError(f"recipe.average is {self.average}; it must be below 1")


MOST = 1_000_000_000
"""Of any number: what is computed with it stays one."""

LOWEST: Mapping[str, tuple[float, bool]] = {
    "images": (1, False),
    "questions": (1, False),
    "epochs": (0, True),
    "validate": (0, True),
}
"""The lowest value of a number, and whether even that is too low; 0 for all others."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a training: which parts learn, on what, by which objective, starting from what."""

    name: str
    objective: str = "answers"
    """One of `objectives.OBJECTIVES`."""
    begins: Literal["best", "last"] = "best"
    """Which weights of the stage before it goes on with; the first has none before it."""
    subset: Subset | None = None
    """Of the training questions, where not all are used."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """To the recipe of the run."""


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """How a system is trained: its recipe, and its stages."""

    recipe: Recipe = Recipe()
    stages: tuple[Stage, ...] = (Stage(name="training"),)


_CLEVR_IEP = Teaching(recipe=Recipe(lr=5e-4, clip=0, average=0, epochs=33))

TEACHINGS: Mapping[str, Teaching] = {
    # Once through is all there is to a prior, whatever the recipe.
    "q-type": Teaching(
        stages=(
            Stage(
                name="counting",
                objective="counts",
                changes={"epochs": 1, "validate": 1, "average": 0},
            ),
        )
    ),
    "lstm": _CLEVR_IEP,
    "cnn-lstm": _CLEVR_IEP,
    "mac": Teaching(),
}
"""By system, as published where it is published."""

RECIPES: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "fast": {
        "images": 64,
        "questions": 10,
        "epochs": 30,
        "patience": 0,
        "optimiser": "muon",
        "lr": 3e-3,
        "schedule": "cosine",
        "warm_up": 0.3,
        "average_warm_up": True,
        "precision": "bfloat16",
    },
}
"""What each changes in a system's published recipe."""


def find_recipe(name: str, system: str) -> Recipe:
    if name not in RECIPES:
        raise InputError(f"--recipe is {name!r}; choose one of {', '.join(RECIPES)}")
    return replace(TEACHINGS[system].recipe, **RECIPES[name])


def of_stage(recipe: Recipe, stage: Stage) -> Recipe:
    return replace(recipe, **stage.changes)
