"""A ResNet-101 with random weights, and the same network written out literally."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from macnet.data.resnet import ResNet101

State = dict[str, Tensor]


def random_weights(stage: int, seed: int = 0) -> State:
    """Weights with which the signal neither dies nor explodes on its way through 30 blocks."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    with torch.device("meta"):
        shapes = {name: array.shape for name, array in ResNet101(stage).state_dict().items()}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 4:
            state[name] = noise * (2 / shape[1:].numel()) ** 0.5
        elif name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(7)
        elif name.endswith("running_var"):
            state[name] = 0.8 + 0.4 * noise.sigmoid()
        elif name.endswith("weight"):
            state[name] = (0.3 if "bn3" in name else 1.0) + 0.1 * noise
        else:
            state[name] = 0.1 * noise
    return state


def literal(state: State, x: Tensor, stage: int) -> Tensor:
    """The same network from the weights alone, with nothing of ours."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (
            state[f"{name}.{part}"][:, None, None]
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * weight + bias

    x = norm(F.conv2d(x, state["conv1.weight"], stride=2, padding=3), "bn1").relu()
    x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    for layer in range(1, stage + 1):
        block = 0
        while f"layer{layer}.{block}.conv1.weight" in state:
            name = f"layer{layer}.{block}"
            stride = 2 if layer > 1 and block == 0 else 1
            y = norm(F.conv2d(x, state[f"{name}.conv1.weight"]), f"{name}.bn1").relu()
            y = F.conv2d(y, state[f"{name}.conv2.weight"], stride=stride, padding=1)
            y = norm(y, f"{name}.bn2").relu()
            y = norm(F.conv2d(y, state[f"{name}.conv3.weight"]), f"{name}.bn3")
            if f"{name}.downsample.0.weight" in state:
                x = F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride)
                x = norm(x, f"{name}.downsample.1")
            x = (x + y).relu()
            block += 1
    return x
