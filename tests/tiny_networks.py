"""Tiny networks, and checkpoints of untrained ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from macnet.checkpoint import BEST, write_checkpoint
from macnet.configuration import with_changes
from macnet.data.block_encoder import world_texts
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.models.encoders import PixelBackbone
from macnet.models.registry import find_preset
from macnet.models.systems import inputs

MAC = {"d": 8, "p": 3, "embedding": 6, "widths": (4, 6, 8), "blocks": (0, 1, 1)}
OTHERS = {"lstm": {"units": 5}, "cnn-lstm": {"units": 5, "channels": 3, "hidden": 7}}
WIDTH, HEIGHT = 40, 24


class NarrowBackbone(PixelBackbone):
    """MAC's backbone, but for its widths."""

    def __init__(self, *, coordinates: bool) -> None:
        super().__init__((4, 6, 8), (0, 1, 1), coordinates)


def narrow(patch: pytest.MonkeyPatch) -> None:
    """Other systems than MAC, which have no option for it, see pixels with few channels."""
    patch.setattr(inputs, "PixelBackbone", NarrowBackbone)
    patch.setattr(inputs, "WIDTHS", (4, 6, 8))


def write_network(
    folder: Path,
    preset: str = "paper",
    model: dict[str, Any] | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    pixels: bool = True,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Path:
    """Write a checkpoint of an untrained network, as a run leaves it, and return its folder."""
    words = vocabulary or Vocabulary.build(world_texts())
    channels = 3 if pixels else 16
    data_spec = DataSpec(len(words), len(words.answers), 13, pixels, channels, HEIGHT, WIDTH)
    named = find_preset(preset)
    changes = {**(MAC if named.system.name == "mac" else OTHERS.get(preset, {})), **(model or {})}
    torch.manual_seed(seed)
    network = named.system.build(with_changes(named.config, changes), data_spec)
    weights = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in network.state_dict().items()
    }
    metadata = {
        "preset": preset,
        "model": changes,
        "data_spec": data_spec._asdict(),
        "vocabulary": words.to_record(),
        "data": {"val": {}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder / BEST, metadata, weights)
    return folder
