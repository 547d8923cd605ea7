"""The first images of a generated world as a dataset, without files of images and JSON.

if __name__ == "__main__":  # workers are spawned, and import this file again
    world, vocabulary = World(seed=1, width=128, height=128), Vocabulary.build(world_texts())
    val = pack_generated(
        world, vocabulary, split="val", images=15_000, cache=CACHE, device="cuda", workers=15
    )
"""

from __future__ import annotations

from dataclasses import fields
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.scene_array import SCENE_DTYPE
from macnet.clevr.stream import Stream
from macnet.clevr.world import World
from macnet.data.block_encoder import BlockEncoder
from macnet.data.dataset import Dataset
from macnet.data.formats import CLEVR
from macnet.data.pack_store import cached_pack, create_array, save_array, write_rows
from macnet.data.question_arrays import QuestionArrays, from_table
from macnet.data.scenes import open_scenes, save_scenes
from macnet.data.vocab import OOVCounter, Vocabulary
from macnet.errors import InputError
from macnet.progress import progress
from macnet.workers import one_thread

VERSION = 2  # of its packs; from 2 on they have scenes


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
    a few pixels may differ by one level: an image is the same to the bit only if the same backend
    renders it, and PyTorch's functions only together with the same others.
    """
    if images < 1:
        raise InputError(f"{images} images of {split!r} are asked for; one is the least")
    encoder = BlockEncoder.for_world(world, vocabulary)

    def make(out: Path) -> None:
        pixels = out / "pixels.npy"
        shape = images, world.height, world.width, 3
        start = create_array(pixels, shape, np.dtype(np.uint8))
        scenes = np.zeros(images, SCENE_DTYPE)
        tables: list[np.ndarray] = []
        families: list[int] = []
        counts: list[int] = []  # of the questions about each image
        with (
            one_thread(),  # others would fight with the workers for a CPU's cores, and all lose
            progress("rendering", "images", images) as advance,
            Stream(
                world, split=split, device=device, workers=workers, encode=encoder.with_families
            ) as stream,
        ):
            for block in islice(stream, -(-images // IMAGES_PER_BLOCK)):
                first = IMAGES_PER_BLOCK * block.number
                seen = block.images[: images - first]
                write_rows(pixels, start, first, seen.cpu().numpy())
                scenes[first : first + len(seen)] = block.scenes[: len(seen)]
                table, families_by_image = block.questions
                wanted = families_by_image[: len(seen)]
                counts += map(len, wanted)
                families += chain.from_iterable(wanted)
                tables.append(table[: sum(map(len, wanted))])
                advance(len(seen))
        if not families:
            raise InputError(
                f"no question of the chosen families fits any of the {images:,} images; choose "
                "others, or more objects"
            )
        columns = from_table(
            np.concatenate(tables),
            encoder.words,
            np.repeat(np.arange(images), counts),
            np.array(families),
        )
        for name, column in vars(columns).items():
            save_array(out / f"{name}.npy", column)
        save_scenes(out, scenes)

    recipe = {
        "version": VERSION,
        "world": world.to_record(),
        "split": split,
        "count": images,
        "vocabulary": vocabulary.to_record(),
    }
    made = cached_pack(cache, "world", recipe, make)
    columns = QuestionArrays(
        **{field.name: made.arrays[field.name] for field in fields(QuestionArrays)}
    )
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
    pixels, scenes = made.arrays["pixels"], open_scenes(made)
    return Dataset(
        pixels, columns, columns.images, every, vocabulary, metadata, CLEVR, scenes=scenes
    )
