"""Where the shipped network's places are in its pictures, and whether it needs to look there.

    python benchmarks/looks.py --out results/looks.json

Places: where attention is on one visited object, away from others and the border, how far is its
centre of mass from the middle of the object's mask, if place i is centred on pixel 8i, or on the
middle of the i-th of 16 stretches? Need: how many answers are right if some steps look everywhere
alike, at the mean of the knowledge base.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.program import Facts
from macnet.clevr.table import to_scenes
from macnet.clevr.visits import visits
from macnet.clevr.world import Stream, World
from macnet.data.stream import Encoder
from macnet.explain.model import SHIPPED
from macnet.explain.pointing import in_parts, side_by_side, watchable
from macnet.training.checkpoint import open_trained
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


def offsets(attention: np.ndarray, mask: np.ndarray, visited: set[int]) -> Iterator[np.ndarray]:
    """Of the steps (p, 16, 16) that look at one object: from its middle to 8i, across and down."""
    there = [thing for thing in range(mask.max() + 1) if (mask == thing).any()]
    middles = {thing: np.argwhere(mask == thing).mean(0) for thing in there}
    for places in attention:
        row, column = np.unravel_index(places.argmax(), places.shape)
        around = slice(row - 2, row + 3), slice(column - 2, column + 3)
        if not (2 <= row < 14 and 2 <= column < 14) or places[around].sum() < LEAST:
            continue
        # Judged from halfway between the two conventions, which favours neither.
        peak = STRIDE * np.array([row, column]) + CENTRES["8i + 3.5"] / 2
        apart = {thing: np.hypot(*(middle - peak)) for thing, middle in middles.items()}
        nearest, *others = sorted(apart, key=lambda thing: apart[thing])
        if nearest in visited and apart[nearest] < NEAR and all(apart[o] > FAR for o in others):
            light = (places[around] - np.median(places)).clip(0)
            index = np.mgrid[around].reshape(2, -1)
            yield (STRIDE * index @ light.ravel() / light.sum() - middles[nearest])[::-1]


def look_everywhere(network: Any, steps: Collection[int]) -> None:
    """Whatever these steps want to look at."""
    begin = type(network.reasoner.cells[0].read).begin

    def evenly(knowledge: Any, c: Tensor) -> Any:
        attend, mean = (
            begin(network.reasoner.cells[0].read, knowledge, c),
            knowledge.elements.mean(1),
        )

        def step(i: int, m_prev: Tensor) -> tuple[Tensor, Tensor]:
            r, rv = attend(i, m_prev)
            if i + 1 not in steps:
                return r, rv
            return mean.repeat_interleave(len(r) // len(mean), 0), torch.full_like(
                rv, 1 / rv.shape[1]
            )

        return step

    network.reasoner.cells[0].read.begin = evenly


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--images", type=int, default=250)
    options = parser.parse_args()
    trained = open_trained(SHIPPED)
    network: Any = watchable(trained)
    found: list[np.ndarray] = []
    right, asked = dict.fromkeys(EVEN, 0), 0
    world = World(SEED, width=SIZE, height=SIZE)
    encoder = Encoder.of(world, trained.vocabulary)
    with Stream(world, split="val", workers=1) as stream, torch.inference_mode():
        for part in in_parts(stream, options.images):
            tokens, real = side_by_side(part, encoder)
            question, knowledge = network.question(tokens), network.image(part.images)
            about = [(n, q) for n, of_image in enumerate(part.questions) for q in of_image]
            ids = [trained.vocabulary.answers.index(q.answer) for _, q in about]
            for name, steps in EVEN.items():
                look_everywhere(network, steps)
                memory, trace = network.reasoner(question, knowledge)
                answers = network.output(question.q, memory).argmax(1)[real]
                right[name] += int((answers == torch.tensor(ids)).sum())
                if name == "none":
                    attention = torch.stack([step.knowledge for step in trace], 1)
                    maps = attention.unflatten(2, (16, 16)).numpy()[real]
            asked += len(about)
            facts = [Facts(scene) for scene in to_scenes(part.scenes)]
            for (n, q), of_question in zip(about, maps, strict=True):
                seen = visits(q.program, facts[n])
                visited = {*seen.referents, *seen.members}
                found += offsets(of_question, part.objects[n].numpy(), visited)
    apart = np.stack(found)
    keep(
        options.out,
        "where the shipped network's places are, and whether it needs to look there",
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
        right_if_these_steps_look_everywhere={name: n / asked for name, n in right.items()},
    )


if __name__ == "__main__":  # workers are spawned, and import this file again
    main()
