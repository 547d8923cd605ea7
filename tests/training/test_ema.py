"""The moving average of the weights against the formula, in every layout of memory."""

from __future__ import annotations

import torch

from macnet.training.ema import WeightEMA


def test_the_average_is_that_of_each_weight() -> None:
    torch.manual_seed(0)
    weights = [
        torch.randn(3, 4, 2, 2).to(memory_format=torch.channels_last),
        torch.randn(()),
        torch.randn(10)[3:8],
        torch.randn(5, 6),
        torch.randn(7, 2, 3),
    ]
    wanted = [weight.double() for weight in weights]
    averages = [torch.empty_like(weight) for weight in weights]
    ema = WeightEMA(weights, 0.9)
    for decay in (0.9, 0.2, 0.75):
        ema.set_decay(decay)
        for weight in weights:
            weight.copy_(torch.randn(weight.shape))
        ema.update()
        wanted = [decay * a + (1 - decay) * w for a, w in zip(wanted, weights, strict=True)]
        ema.copy_to(averages)
        for average, value in zip(averages, wanted, strict=True):
            torch.testing.assert_close(average.double(), value, rtol=0, atol=1e-6)
    other = WeightEMA(weights, 0.75)
    other.copy_from(averages)
    found = [torch.empty_like(weight) for weight in weights]
    for of in (ema, other):
        of.update()
        of.copy_to(found if of is other else averages)
    assert all(map(torch.equal, found, averages))
