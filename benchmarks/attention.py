"""Where the cells of the shipped network are in its images, and whether it needs its attention.

    python benchmarks/attention.py --out results/looks.json

Cells: where attention is on one referenced object, away from others and the border, how far is its
center of mass from the center of the object's mask, if cell i is centered on pixel 8i, or on the
center of the i-th of 16 stretches? Need: the accuracy if some steps attend uniformly, and so read
the mean of the knowledge base.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macnet.checkpoint import load_trained
from macnet.clevr.program import SceneIndex
from macnet.clevr.references import referenced_objects
from macnet.clevr.scene_array import array_to_scenes
from macnet.clevr.stream import Stream
from macnet.clevr.world import World
from macnet.data.block_encoder import BlockEncoder
from macnet.explain.pointing import pad_block, split_blocks
from record import keep

SIZE, STRIDE, SEED = 128, 8, 5
NEAR, FAR = 14, 26  # pixels: of the object that a peak is on, and of any other
LEAST = 0.05  # of attention, around the peak
CENTRES = {"8i": 0.0, "8i + 3.5": (STRIDE - 1) / 2}
EVEN = {
    "none": (),
    **{f"{i}": (i,) for i in range(1, 13)},
    "1-10": range(1, 11),
    "all": range(1, 13),
}


def offsets(attention: np.ndarray, mask: np.ndarray, referenced: set[int]) -> Iterator[np.ndarray]:
    """Of steps (p, 16, 16) that attend to one object: from its center to 8i, across and down."""
    there = [thing for thing in range(mask.max() + 1) if (mask == thing).any()]
    middles = {thing: np.argwhere(mask == thing).mean(0) for thing in there}
    for cells in attention:
        row, column = np.unravel_index(cells.argmax(), cells.shape)
        around = slice(row - 2, row + 3), slice(column - 2, column + 3)
        if not (2 <= row < 14 and 2 <= column < 14) or cells[around].sum() < LEAST:
            continue
        # Judged from halfway between the two conventions, which favours neither.
        peak = STRIDE * np.array([row, column]) + CENTRES["8i + 3.5"] / 2
        apart = {thing: np.hypot(*(middle - peak)) for thing, middle in middles.items()}
        nearest, *others = sorted(apart, key=lambda thing: apart[thing])
        if nearest in referenced and apart[nearest] < NEAR and all(apart[o] > FAR for o in others):
            light = (cells[around] - np.median(cells)).clip(0)
            index = np.mgrid[around].reshape(2, -1)
            yield (STRIDE * index @ light.ravel() / light.sum() - middles[nearest])[::-1]


def attend_uniformly(network: Any, steps: Collection[int]) -> None:
    """Replace the attention of these steps by a uniform one."""
    read = network.reasoner.cells[0].read
    prepare = type(read).prepare

    def uniform(knowledge: Any, c: Tensor) -> Any:
        attend, mean = prepare(read, knowledge, c), knowledge.elements.mean(1)

        def step(i: int, m_prev: Tensor) -> tuple[Tensor, Tensor]:
            r, rv = attend(i, m_prev)
            if i + 1 not in steps:
                return r, rv
            r = mean.repeat_interleave(len(r) // len(mean), 0)
            return r, torch.full_like(rv, 1 / rv.shape[1])

        return step

    read.prepare = uniform


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--images", type=int, default=250)
    options = parser.parse_args()
    trained = load_trained()
    network: Any = trained.network()
    found: list[np.ndarray] = []
    right, asked = dict.fromkeys(EVEN, 0), 0
    world = World(SEED, width=SIZE, height=SIZE)
    encoder = BlockEncoder.for_world(world, trained.vocabulary)
    with Stream(world, split="val", workers=1) as stream, torch.inference_mode():
        for block in split_blocks(stream, options.images):
            tokens, real = pad_block(block, encoder)
            question, knowledge = network.question(tokens), network.image(block.images)
            metadata = [(n, q) for n, of_image in enumerate(block.questions) for q in of_image]
            ids = [trained.vocabulary.answers.index(q.answer) for _, q in metadata]
            for name, steps in EVEN.items():
                attend_uniformly(network, steps)
                memory, trace = network.reasoner(question, knowledge)
                answers = network.output(question.q, memory).argmax(1)[real]
                right[name] += int((answers == torch.tensor(ids)).sum())
                if name == "none":
                    attention = torch.stack([step.knowledge for step in trace], 1)
                    maps = attention.unflatten(2, (16, 16)).numpy()[real]
            asked += len(metadata)
            facts = [SceneIndex(scene) for scene in array_to_scenes(block.scenes)]
            for (n, q), of_question in zip(metadata, maps, strict=True):
                seen = referenced_objects(q.program, facts[n])
                referenced = {*seen.unique_objects, *seen.counted_objects}
                found += offsets(of_question, block.objects[n].numpy(), referenced)
    apart = np.stack(found)
    keep(
        options.out,
        "where the cells of the shipped network are, and whether it needs its attention",
        seed=SEED,
        images=options.images,
        questions=asked,
        looks_at_one_object=len(apart),
        pixels_from_the_middle_of_the_object={
            name: {
                "across": (apart[:, 0] + more).mean(),
                "down": (apart[:, 1] + more).mean(),
                "standard_errors": (apart.std(0) / len(apart) ** 0.5).tolist(),
            }
            for name, more in CENTRES.items()
        },
        right_if_these_steps_attend_uniformly={name: n / asked for name, n in right.items()},
    )


if __name__ == "__main__":  # workers are spawned, and import this file again
    main()
