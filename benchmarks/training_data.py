"""Training data from the generated world, for benchmarks."""

from __future__ import annotations

from pathlib import Path

import torch

from macnet.clevr.world import World
from macnet.data.block_encoder import world_texts
from macnet.data.dataset import Dataset
from macnet.data.generated import pack_generated
from macnet.data.vocab import Vocabulary
from macnet.training.training_data import TrainingData


def generated_training_data(
    side: int,
    train: int | None,
    val: int,
    *,
    cache: Path,
    device: torch.device | str,
    workers: int,
    seed: int = 1,
) -> TrainingData:
    """So many square images to train on, or the endless world, and so many to validate on."""
    world, vocabulary = World(seed, width=side, height=side), Vocabulary.build(world_texts())

    def fixed(split: str, images: int) -> Dataset:
        return pack_generated(
            world,
            vocabulary,
            split=split,
            images=images,
            cache=cache,
            device=device,
            workers=workers,
        )

    return TrainingData(world if train is None else fixed("train", train), fixed("val", val))
