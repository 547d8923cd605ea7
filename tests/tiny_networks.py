"""Networks of a few random weights, as files that are ready to be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from macnet.configuration import changed
from macnet.data.stream import language
from macnet.data.vocab import Vocabulary
from macnet.models.registry import Fit, find_preset
from macnet.training.checkpoint import BEST, write_checkpoint

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
    """As a run leaves it. It has learned nothing, but it answers."""
    words = vocabulary or Vocabulary.build(language())
    channels = 3 if pixels else 16
    fit = Fit(len(words), len(words.answers), pixels, channels, HEIGHT, WIDTH)
    named = find_preset(preset)
    changes = {**(MAC if named.system.name == "mac" else OTHERS.get(preset, {})), **(model or {})}
    torch.manual_seed(seed)
    network = named.system.build(changed(named.config, changes), fit)
    weights = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in network.state_dict().items()
    }
    about = {
        "preset": preset,
        "model": changes,
        "fit": fit._asdict(),
        "vocabulary": words.to_record(),
        "data": {"val": {}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(folder / BEST, about, weights)
    return folder
