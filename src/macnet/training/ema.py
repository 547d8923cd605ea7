"""The exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class WeightEMA:
    """The average of some weights as one flat tensor, so that an update takes few launches.

    A captured CUDA graph may hold an update: its rate is read from the device.
    """

    def __init__(self, weights: Sequence[Tensor], decay: float) -> None:
        self._views = [_flat_view(weight) for weight in weights]
        self._values = torch.cat(self._views)
        # Their latest values, side by side: to fill this is much faster than another `cat`.
        self._latest = torch.empty_like(self._values)
        self._parts = self._latest.split([*map(len, self._views)])
        self._rate = self._values.new_tensor(1 - decay)

    def set_decay(self, decay: float) -> None:
        """The decay of the next updates."""
        self._rate.fill_(1 - decay)

    def update(self) -> None:
        """Move the average towards the weights as they are now."""
        torch._foreach_copy_(self._parts, self._views)
        self._values.lerp_(self._latest, self._rate)

    def copy_to(self, averages: Sequence[Tensor]) -> None:
        """Write the average into tensors that have the shapes and strides of the weights."""
        views = [_flat_view(average) for average in averages]
        for view, part in zip(views, self._values.split([*map(len, views)]), strict=True):
            view.copy_(part)

    def copy_from(self, averages: Sequence[Tensor]) -> None:
        """Take the average from such tensors."""
        torch.cat([_flat_view(average) for average in averages], out=self._values)


def _flat_view(weight: Tensor) -> Tensor:
    """(numel,) in the order of memory, whether or not channels come last; without gradient."""
    return weight.detach().as_strided((weight.numel(),), (1,))
