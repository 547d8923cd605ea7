"""ResNet-101 up to its third stage, from which the usual features of CLEVR's images come.

The layers have torchvision's names, so that its published weights load unchanged. As there, the
stride of a block is in its 3×3 convolution (He et al. have it in the first 1×1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macnet.errors import InputError, is_out_of_memory
from macnet.files import check_is_file

PUBLISHED = "https://download.pytorch.org/models/resnet101-63fe2227.pth"
BLOCKS = (3, 4, 23, 3)
EXPANSION = 4  # a block's output over its inner width
SIDE = 224  # of its input images, in pixels

Normalization = Literal["public", "imagenet"]
MEAN = (0.485, 0.456, 0.406)
# The public code has .224 where torchvision's networks were trained with .225. All feature files
# that people have carry this slip, so it is the default here too.
STD = {"public": (0.229, 0.224, 0.224), "imagenet": (0.229, 0.224, 0.225)}


class Bottleneck(nn.Module):
    """A residual block of 1×1, 3×3 and 1×1 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()  # which has no name in the weights
        if inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet101(nn.Module):
    """Images → the features after a stage: (N, 3, 224, 224) → (N, 1024, 14, 14) for the third."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.stages: list[nn.Sequential] = []  # not a ModuleList: they have names of their own
        inputs = 64
        for k, blocks in enumerate(BLOCKS[:stage]):
            width = 64 << k
            layer = nn.Sequential()
            for i in range(blocks):
                layer.append(Bottleneck(inputs, width, stride=2 if k and not i else 1))
                inputs = EXPANSION * width
            self.stages.append(layer)
            self.add_module(f"layer{k + 1}", layer)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, stride=2, padding=1)
        for layer in self.stages:
            x = layer(x)
        return x


def published_shapes() -> dict[str, torch.Size]:
    """The shapes of the 626 arrays in the published file by name, the classifier's two last."""
    with torch.device("meta"):
        network = ResNet101(len(BLOCKS))
        network.add_module("fc", nn.Linear(512 * EXPANSION, 1000))
    return {name: array.shape for name, array in network.state_dict().items()}


def load_resnet(weights: Path | None, stage: int) -> ResNet101:
    """The network with the weights of a file, or the published ones if None; for inference."""
    state = _download() if weights is None else _read(weights)
    where = PUBLISHED if weights is None else str(weights)
    with torch.device("meta"):
        network = ResNet101(stage)
    expected = {name: array.shape for name, array in network.state_dict().items()}
    # Files from before 2018 lack these counters, which only training uses.
    counters = {name: torch.tensor(0) for name in expected if name.endswith("num_batches_tracked")}
    state = counters | state
    _check_weights(where, state, expected)
    chosen = {
        name: state[name] if name in counters else state[name].float().contiguous()
        for name in expected
    }
    for name, array in chosen.items():
        if not array.isfinite().all():
            raise InputError(f"{where}: {name} holds values that are not finite")
    network.load_state_dict(chosen, assign=True)
    return network.requires_grad_(False).eval()


def fingerprint(network: ResNet101) -> str:
    """A hash of the weights, whatever the kind of file they came from."""
    digest = hashlib.sha256()
    for name, array in network.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            digest.update(name.encode())
            digest.update(array.cpu().numpy().tobytes())
    return digest.hexdigest()


def normalize(images: Tensor, normalization: Normalization) -> Tensor:
    """(N, H, W, 3) uint8 → (N, 3, H, W) float32, normalized for the network."""
    x = images.permute(0, 3, 1, 2).contiguous().float() / 255
    mean, std = torch.tensor([MEAN, STD[normalization]], device=x.device)[:, :, None, None]
    return x.sub_(mean).div_(std)


def _check_weights(
    where: str, state: Mapping[str, Any], expected: Mapping[str, torch.Size]
) -> None:
    missing = [name for name in expected if name not in state]
    if missing:
        raise InputError(
            f"{where}: these are no weights of a ResNet-101; {len(missing)} of its {len(expected)} "
            f"arrays are missing, first {missing[0]}"
        )
    published = published_shapes()
    # A deeper network has all the names of this one, and some more.
    strange = [name for name in state if name not in published]
    if strange:
        raise InputError(
            f"{where}: these are no weights of a ResNet-101, which has no {strange[0]!r:.80}"
        )
    for name, shape in expected.items():
        array = state[name]
        if not isinstance(array, Tensor) or array.shape != shape:
            found = tuple(array.shape) if isinstance(array, Tensor) else type(array).__name__
            raise InputError(f"{where}: {name} is {found} where {tuple(shape)} is expected")


def _read(path: Path) -> dict[str, Any]:
    check_is_file(path)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged pickles and archives raise many kinds
        if is_out_of_memory(error) or (isinstance(error, OSError) and error.filename is not None):
            raise
        raise InputError(
            f"{path}: it cannot be read as weights saved by torch or safetensors; is it damaged?"
        ) from None
    if not isinstance(state, Mapping):
        raise InputError(f"{path}: it holds no weights by name; a state_dict is wanted")
    return dict(state)


def _download() -> dict[str, Any]:
    try:
        # The hash it checks is the one in the file's name.
        return torch.hub.load_state_dict_from_url(
            PUBLISHED, map_location="cpu", check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"{PUBLISHED}: the published weights cannot be downloaded "
            f"({' '.join(str(error).split())}); give a file of them as `weights`"
        ) from None
