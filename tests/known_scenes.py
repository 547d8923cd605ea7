"""A dataset whose scenes are known, for new questions about them."""

from __future__ import annotations

import random

import numpy as np

from macnet.clevr.scene import sample_scenes
from macnet.clevr.scene_array import scenes_to_array
from macnet.data.block_encoder import world_texts
from macnet.data.dataset import Dataset
from macnet.data.question_arrays import TYPES, UNKNOWN, TokenizedQuestion, collect, program_ids
from macnet.data.vocab import ANSWERS, Vocabulary

VOCABULARY = Vocabulary.build(world_texts())
EXIST = program_ids(["exist", "scene"])


def scenes_dataset(
    images: int,
    unasked: int = 0,
    features: bool = False,
    families: tuple[int, ...] = (UNKNOWN,),
    num_objects: tuple[int, int] = (3, 10),
) -> Dataset:
    """Two own questions about each image but the last `unasked` ones, in an order of their own.

    Every number of an image is that of its row, up to 200.
    """
    rng = np.random.default_rng(images)
    scenes = sample_scenes(
        [random.Random(f"known {i}") for i in range(images)], num_objects=num_objects
    )
    rows = rng.permutation(np.repeat(np.arange(images - unasked), 2))
    words = VOCABULARY.encode("Are there any other things?")
    yes, exist = ANSWERS.index("yes"), TYPES.index("exist")
    asked = [
        TokenizedQuestion(words, yes, EXIST, int(row), families[i % len(families)], exist)
        for i, row in enumerate(rows)
    ]
    shape = (images, 3, 2, 5) if features else (images, 16, 24, 3)
    numbers = np.broadcast_to(np.arange(images)[:, None, None, None] % 200, shape)
    return Dataset(
        numbers.astype(np.float16 if features else np.uint8),
        collect(asked),
        rows.astype(np.int32),
        np.arange(len(rows), dtype=np.int32),
        VOCABULARY,
        {"questions": "known scenes", "origin": "generated", "left_out": 0, "words": "all known"},
        scenes=scenes_to_array(scenes),
    )
