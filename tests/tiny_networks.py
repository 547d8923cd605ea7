"""Checkpoints of tiny untrained networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from macnet.checkpoint import BEST, write_checkpoint
from macnet.configuration import with_changes
from macnet.data.endless import world_texts
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.models.registry import find_preset

MAC = {"d": 8, "p": 3, "embedding": 6, "widths": (4, 6, 8), "blocks": (0, 1, 1)}
OTHERS = {"lstm": {"units": 5}, "cnn-lstm": {"units": 5, "channels": 3, "hidden": 7}}
WIDTH, HEIGHT = 40, 24


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
