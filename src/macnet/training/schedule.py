"""How the learning rate changes while a stage lasts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from macnet.training.recipes import Recipe

# The authors halve the rate after an epoch if the loss before it was below the second number and
# has fallen by less than the first, as long as the rate is above the third.
AUTHORS_RULE = ((0.015, 0.5, 2e-5), (0.008, 0.15, 1e-5), (0.003, 0.10, 5e-6))


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step."""

    recipe: Recipe
    steps: int
    """Of the stage."""
    steps_per_epoch: int

    def rate(self, step: int, losses: Sequence[float] = ()) -> float:
        """For the step after so many; `losses` are those of the epochs before it."""
        rising = round(self.recipe.warm_up * self.steps_per_epoch)
        if step < rising:
            return self.recipe.lr * (step + 1) / rising
        if self.recipe.schedule == "cosine":
            through = (step - rising) / max(1, self.steps - rising)
            return self.recipe.lr * (1 + math.cos(math.pi * through)) / 2
        if self.recipe.schedule == "authors":
            return self._halved(losses)
        return self.recipe.lr

    def _halved(self, losses: Sequence[float]) -> float:
        rate = self.recipe.lr
        for before, now in pairwise(losses):
            if any(
                before - now < fall and before < below and rate > above
                for fall, below, above in AUTHORS_RULE
            ):
                rate /= 2
        return rate
