"""The first images of a generated world as a dataset, without pictures and JSON in between.

if __name__ == "__main__":  # workers are spawned, and import this file again
    world, vocabulary = World(seed=1, width=128, height=128), Vocabulary.build(language())
    val = pack_world(
        world, vocabulary, split="val", images=15_000, cache=CACHE, device="cuda", workers=15
    )
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from macnet.clevr.questions import BLOCK, Question
from macnet.clevr.world import Stream, World
from macnet.data.dataset import Dataset
from macnet.data.packed import create_array, pack, save_array, write_rows
from macnet.data.questions import Questions, Row, collect
from macnet.data.stream import Encoder, row_of
from macnet.data.vocab import Tally, Vocabulary
from macnet.errors import InputError
from macnet.progress import progress
from macnet.workers import one_thread


def pack_world(
    world: World,
    vocabulary: Vocabulary,
    *,
    split: str,
    images: int,
    cache: Path,
    device: torch.device | str,
    workers: int,
) -> Dataset:
    """So many images of a split and their questions. What was packed before is opened.

    It is what `macnet generate` and `macnet pack` would give, but that here test splits have
    answers too, and that a few pixels may be lighter or darker by a shade: a picture is promised to
    be the same only in the same company.
    """
    if images < 1:
        raise InputError(f"{images} images of {split!r} are asked for; one is the least")
    Encoder.of(world, vocabulary)  # which refuses a vocabulary that lacks words of the world

    def make(out: Path) -> Mapping[str, Any]:
        pictures = out / "pictures.npy"
        shape = images, world.height, world.width, 3
        start = create_array(pictures, shape, np.dtype(np.uint8))
        rows: list[Row] = []
        encode = partial(_encoded, vocabulary)
        with (
            one_thread(),  # others would fight with the workers for a CPU's cores, and all lose
            progress("drawing", "images", images) as advance,
            Stream(world, split=split, device=device, workers=workers, encode=encode) as stream,
        ):
            for block in islice(stream, -(-images // BLOCK)):
                first = BLOCK * block.number
                seen = block.images[: images - first]
                write_rows(pictures, start, first, seen.cpu().numpy())
                for image, asked in enumerate(block.questions[: len(seen)], start=first):
                    rows += (row._replace(image=image) for row in asked)
                advance(len(seen))
        for name, column in vars(collect(rows)).items():
            save_array(out / f"{name}.npy", column)
        return {}

    recipe = {
        "world": asdict(world),
        "split": split,
        "count": images,
        "vocabulary": vocabulary.to_record(),
    }
    made = pack(cache, "world", recipe, make)
    columns = Questions(**{name: a for name, a in made.arrays.items() if name != "pictures"})
    about = {
        "questions": f"{split} of the generated world {world.seed}",
        "images": f"the first {images:,}",
        "world": asdict(world),
        "packs": [made.folder.name],
        "words": str(Tally(len(columns))),
        "origin": "generated",
        "left out": 0,
    }
    chosen = np.arange(len(columns), dtype=np.int32)
    return Dataset(made.arrays["pictures"], columns, columns.images, chosen, vocabulary, about)


def _encoded(vocabulary: Vocabulary, asked: list[list[Question]]) -> list[list[Row]]:
    """In a worker: of a block's questions, what is kept of them."""
    return [[row_of(question, vocabulary) for question in of_image] for of_image in asked]
