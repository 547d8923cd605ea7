"""Milliseconds of batch normalisation and what follows it, by kernels and by torch, on a GPU.

    python benchmarks/batch_norm.py --out results/batch_norm_h200.json

The layers are the eleven of MAC from pixels, for 64 images of 128×128 in bfloat16, in training:
forwards and backwards, as a CUDA graph. It holds eight of a kind, first all of them forwards and
then all backwards, so that the maps are no longer in a cache. Both graphs are replayed by turns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from macnet.models.norm import ACTIVATIONS, Activation, BatchNorm2d
from model import captured, gpu_milliseconds
from record import keep

IMAGES = 64
COPIES = 8
TURNS, REPEATS = 5, 20


class Layer(NamedTuple):
    """A kind of layer: its maps, what follows, and how many of them the network has."""

    channels: int
    side: int
    activation: Activation
    residual: bool
    number: int

    @property
    def label(self) -> str:
        """Rows and channels of its maps, and what follows."""
        rows = IMAGES * self.side**2
        return f"{rows} x {self.channels}, {self.activation}{' of a sum' * self.residual}"

    @property
    def gigabytes(self) -> float:
        """What its kernels read and write: eight maps, or eleven."""
        values = IMAGES * self.side**2 * self.channels
        return (11 if self.residual else 8) * 2 * values / 1e9


LAYERS = (
    Layer(64, 64, "relu", False, 1),
    Layer(128, 32, "relu", False, 2),
    Layer(128, 32, "relu", True, 1),
    Layer(256, 16, "relu", False, 3),
    Layer(256, 16, "relu", True, 2),
    Layer(384, 16, "elu", False, 2),
)


def by_torch(norm: nn.Module, x: Tensor, activation: Activation, residual: Tensor | None) -> Tensor:
    """Each step by a function of its own."""
    y = norm(x)
    return ACTIVATIONS[activation](y if residual is None else y + residual)


def passes(layer: Layer, *, fused: bool) -> Callable[[], object]:
    """A forward and a backward pass of COPIES such layers."""
    shape = IMAGES, layer.channels, layer.side, layer.side
    norm = (BatchNorm2d if fused else nn.BatchNorm2d)(layer.channels).cuda()

    def maps() -> Tensor:
        made = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return made.contiguous(memory_format=torch.channels_last)

    inputs = [maps().requires_grad_() for _ in range(COPIES)]
    added = [maps().requires_grad_() if layer.residual else None for _ in range(COPIES)]
    down = [maps() for _ in range(COPIES)]

    def run() -> list[tuple[Tensor, ...]]:
        outputs = [
            norm(x, layer.activation, r) if fused else by_torch(norm, x, layer.activation, r)
            for x, r in zip(inputs, added, strict=True)
        ]
        gradients = []
        for x, r, y, dy in reversed([*zip(inputs, added, outputs, down, strict=True)]):
            of = [x, *norm.parameters()] + ([] if r is None else [r])
            gradients.append(torch.autograd.grad(y, of, dy))
        return gradients

    return run


def measure(layer: Layer) -> dict[str, float]:
    """Milliseconds of one such layer in both forms, and what the kernels make of the memory."""
    runs = {form: passes(layer, fused=form == "kernels") for form in ("kernels", "torch")}
    replays = {form: captured(run) for form, run in runs.items()}
    times: dict[str, list[float]] = {form: [] for form in replays}
    for _ in range(TURNS):
        for form, replay in replays.items():
            times[form].append(gpu_milliseconds(replay, REPEATS) / COPIES)
    ms = {form: statistics.median(each) for form, each in times.items()}
    return {
        **{form: round(value, 4) for form, value in ms.items()},
        "ratio": round(ms["torch"] / ms["kernels"], 2),
        "terabytes_per_second": round(layer.gigabytes / ms["kernels"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    found = {layer: measure(layer) for layer in LAYERS}
    total = {
        form: sum(layer.number * ms[form] for layer, ms in found.items())
        for form in ("kernels", "torch")
    }
    keep(
        args.out,
        f"milliseconds of a layer of batch normalisation, {IMAGES} images, forwards and backwards",
        layers={layer.label: {"number": layer.number, **ms} for layer, ms in found.items()},
        all_layers={form: round(ms, 3) for form, ms in total.items()},
        ratio=round(total["torch"] / total["kernels"], 2),
    )


if __name__ == "__main__":
    main()
