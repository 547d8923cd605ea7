"""The first images of a generated world as a dataset, without files of images and JSON.

if __name__ == "__main__":  # workers are spawned, and import this file again
    world, vocabulary = World(seed=1, width=128, height=128), Vocabulary.build(world_texts())
    val = pack_generated(
        world, vocabulary, split="val", images=15_000, cache=CACHE, device="cuda", workers=15
    )
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from macnet.clevr.questions import IMAGES_PER_BLOCK, Question
from macnet.clevr.world import Stream, World
from macnet.data.dataset import Dataset
from macnet.data.endless import BlockEncoder, tokenize_question
from macnet.data.formats import CLEVR
from macnet.data.pack_store import cached_pack, create_array, save_array, write_rows
from macnet.data.question_arrays import QuestionArrays, TokenizedQuestion, collect
from macnet.data.vocab import OOVCounter, Vocabulary
from macnet.errors import InputError
from macnet.progress import progress
from macnet.workers import one_thread


def pack_generated(
    world: World,
    vocabulary: Vocabulary,
    *,
    split: str,
    images: int,
    cache: Path,
    device: torch.device | str,
    workers: int,
) -> Dataset:
    """The first images of a split and their questions. What was packed before is opened.

    It is what `generate` and `pack` would give, except that test splits have answers too, and that
    a few pixels may differ by one level: an image is the same to the bit only if it is rendered
    together with the same others.
    """
    if images < 1:
        raise InputError(f"{images} images of {split!r} are asked for; one is the least")
    BlockEncoder.for_world(world, vocabulary)  # raises an error if the vocabulary lacks words

    def make(out: Path) -> None:
        pixels = out / "pixels.npy"
        shape = images, world.height, world.width, 3
        start = create_array(pixels, shape, np.dtype(np.uint8))
        rows: list[TokenizedQuestion] = []
        encode = partial(_encode, vocabulary)
        with (
            one_thread(),  # others would fight with the workers for a CPU's cores, and all lose
            progress("rendering", "images", images) as advance,
            Stream(world, split=split, device=device, workers=workers, encode=encode) as stream,
        ):
            for block in islice(stream, -(-images // IMAGES_PER_BLOCK)):
                first = IMAGES_PER_BLOCK * block.number
                seen = block.images[: images - first]
                write_rows(pixels, start, first, seen.cpu().numpy())
                for image, asked in enumerate(block.questions[: len(seen)], start=first):
                    rows += (row._replace(image=image) for row in asked)
                advance(len(seen))
        for name, column in vars(collect(rows)).items():
            save_array(out / f"{name}.npy", column)

    recipe = {
        "world": world.to_record(),
        "split": split,
        "count": images,
        "vocabulary": vocabulary.to_record(),
    }
    made = cached_pack(cache, "world", recipe, make)
    columns = QuestionArrays(**{name: a for name, a in made.arrays.items() if name != "pixels"})
    metadata = {
        "questions": f"{split} of the generated {world}",
        "images": f"the first {images:,}",
        "world": world.to_record(),
        "packs": [made.folder.name],
        "words": str(OOVCounter(len(columns))),
        "origin": "generated",
        "left_out": 0,
        "format": CLEVR.name,
    }
    every = np.arange(len(columns), dtype=np.int32)
    return Dataset(made.arrays["pixels"], columns, columns.images, every, vocabulary, metadata)


def _encode(
    vocabulary: Vocabulary, questions_by_image: list[list[Question]]
) -> list[list[TokenizedQuestion]]:
    """The questions of a block, encoded in a worker."""
    return [[tokenize_question(q, vocabulary) for q in asked] for asked in questions_by_image]
