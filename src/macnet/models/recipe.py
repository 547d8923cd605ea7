"""How a network is trained, as data: optimizer, schedule, batches, early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from macnet.configuration import check_choice
from macnet.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained; the defaults are for MAC.

    From the paper (Appendix A): batches of 64, Adam at 1e-4, an average of weights with decay
    0.999. It clips gradients and stops early, but does not say at what values: 8 and 25 epochs are
    from the authors' code and its README, the patience is ours.
    """

    images: int = 64
    """N: the number of images in a batch, over all processes."""
    questions: int = 1
    """G: the number of questions about each image of a batch; 10, CLEVR's number, is fastest."""
    epochs: float = 25
    """The maximum number of epochs (of an endless world, 700,000 questions are one)."""
    patience: int = 5
    """Early stopping: the number of validations without improvement; 0 trains to the end."""
    validate_every: float = 1
    """Epochs between validations."""

    shift: int = 0
    """Augmentation: the maximum random shift of images, in pixels."""
    rotation: float = 0
    """Augmentation: the maximum random rotation of images, each way, in degrees."""
    jitter: float = 0
    """Augmentation: the maximum random change of brightness and contrast, as a share."""

    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """adamw decouples weight decay from the gradient; muon makes steps of matrices orthogonal."""
    lr: float = 1e-4
    """The learning rate; where a schedule changes it, its maximum."""
    schedule: Literal["constant", "authors", "cosine", "doubling"] = "constant"
    """The learning rate's: authors halves it when the loss stalls; cosine falls to zero; doubling
    starts at a hundredth of its maximum and doubles every 20 epochs."""
    warmup: float = 0
    """Epochs in which the learning rate rises linearly from zero to that of the schedule."""
    weight_decay: float = 0
    """The coefficient of weight decay."""
    clip: float = 8
    """The maximum norm of all gradients together; 0 does not clip."""
    clip_each: bool = False
    """Let the gradient of each weight have that norm at most, instead of all together."""
    ema: float = 0.999
    """The decay of the moving average of the weights, which is evaluated; 0 has no average."""
    ema_warmup: bool = False
    """Let the decay of the average be at most (1 + t)/(10 + t) after t steps."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """The precision of matrix products under autocast; weights are always float32."""
    guide: float = 0
    """The weight of a loss that guides attention to the objects that the program of a question
    refers to; it needs the endless generated world, where objects are known."""
    trainable: tuple[str, ...] = ()
    """The parts of the network that are trained, such as question or reasoner; all if empty."""
    stages: tuple[str, ...] = ()
    """The stages of training by name, for systems that have several; all if empty."""
    programs: int = 0
    """The number of questions whose programs are learned from, chosen by the seed; 0 is all."""
    policy_lr: float = 0
    """The learning rate of stages that learn by REINFORCE; 0 stands for that of the others."""
    policy_epochs: float = 0
    """The maximum number of epochs of stages that learn by REINFORCE; 0 is that of the others."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value = getattr(self, name)
            check_choice(f"`recipe.{name}`", hint, value)
            if hint in (int, float):
                low = 1 if name in ("images", "questions") else 0
                number = isinstance(value, int if hint is int else int | float)
                if not number or type(value) is bool or not low <= value <= MOST:
                    kind = "a whole number" if hint is int else "a number"
                    valid = f"it must be {kind} from {low} to {MOST:,}"
                    raise InputError(f"`recipe.{name}` is {value!r:.40}; {valid}")
                if value == 0 and name in ("epochs", "validate_every"):
                    raise InputError(f"`recipe.{name}` is {value!r}; it must be above 0")
        if self.jitter > 1:
            raise InputError(f"`recipe.jitter` is {self.jitter}; it must be 1 at most")
        if self.rotation > 180:
            raise InputError(f"`recipe.rotation` is {self.rotation}; it must be 180 at most")
        if self.ema >= 1:
            raise InputError(f"`recipe.ema` is {self.ema}; it must be below 1")


MOST = 1_000_000_000
"""The maximum of any number: what is computed with it stays finite."""

FAST: Mapping[str, Any] = {
    "questions": 10,
    "epochs": 30,
    "patience": 0,
    "optimizer": "muon",
    "lr": 3e-3,
    "schedule": "cosine",
    "warmup": 0.3,
    "ema_warmup": True,
    "precision": "bfloat16",
}
"""What the recipe "fast" changes in a published recipe."""

FAST_WITH_EMA: Mapping[str, Any] = {**FAST, "clip": 8, "ema": 0.999}
"""The same for a system that was published without clipping and without an average of weights."""
