"""How the learning rate changes while a stage lasts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from macnet.training.recipes import Recipe

# The authors halve the rate after an epoch if the loss before it was below the second number and
# has fallen by less than the first, as long as the rate is above the third.
AUTHORS_RULE = ((0.015, 0.5, 2e-5), (0.008, 0.15, 1e-5), (0.003, 0.10, 5e-6))


@dataclass
class Schedule:
    """The learning rate of each step. All it remembers is in `losses`."""

    recipe: Recipe
    steps: int
    """Of the stage."""
    steps_per_epoch: int
    losses: list[float] = field(default_factory=list)
    """Of the epochs so far."""

    def rate(self, step: int) -> float:
        """For the step after so many."""
        rising = round(self.recipe.warm_up * self.steps_per_epoch)
        if step < rising:
            return self.recipe.lr * (step + 1) / rising
        if self.recipe.schedule == "cosine":
            through = (step - rising) / max(1, self.steps - rising)
            return self.recipe.lr * (1 + math.cos(math.pi * through)) / 2
        if self.recipe.schedule == "authors":
            return self._halved()
        return self.recipe.lr

    def after_epoch(self, loss: float) -> None:
        self.losses.append(loss)

    def _halved(self) -> float:
        rate = self.recipe.lr
        for before, now in zip(self.losses, self.losses[1:], strict=False):
            if any(
                before - now < fall and before < below and rate > above
                for fall, below, above in AUTHORS_RULE
            ):
                rate /= 2
        return rate
