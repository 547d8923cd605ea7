"""Sets of the generated world for benchmarks to learn from."""

from __future__ import annotations

from pathlib import Path

import torch

from macnet.clevr.world import World
from macnet.data.dataset import Dataset
from macnet.data.drawn import pack_world
from macnet.data.stream import language
from macnet.data.vocab import Vocabulary
from macnet.training.data import Lessons


def drawn_lessons(
    side: int,
    train: int | None,
    val: int,
    *,
    cache: Path,
    device: torch.device | str,
    workers: int,
    seed: int = 1,
) -> Lessons:
    """So many square images to learn from, or the endless stream, and so many to validate on."""
    world, vocabulary = World(seed, width=side, height=side), Vocabulary.build(language())

    def fixed(split: str, images: int) -> Dataset:
        return pack_world(
            world,
            vocabulary,
            split=split,
            images=images,
            cache=cache,
            device=device,
            workers=workers,
        )

    return Lessons(world if train is None else fixed("train", train), fixed("val", val))
