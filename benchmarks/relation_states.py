"""Accuracy of the relation network's reasoning alone: from the objects themselves, not an image.

    python benchmarks/relation_states.py --states STATES.npz --epochs 25 \\
        --out results/relation_states_h200.json  # on a GPU

RN's paper has such "state descriptions" as well, and reaches 96.4% on CLEVR with them. Everything
but the image is the preset `rn` and its recipe `fast`. A scene has at most ten objects, and so 100
pairs instead of 4,096: there is time for many epochs. The states are made first, in minutes, and
kept in STATES.npz.
"""

from __future__ import annotations

import argparse
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from macnet.clevr.scene import ATTRIBUTES, DIRECTIONS, MAX_OBJECTS, Scene, sample_scenes
from macnet.clevr.world import World, generate_questions
from macnet.data.batches import Batch, BatchSource
from macnet.data.endless import world_texts
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.models.objectives import answer_loss
from macnet.models.registry import find_preset
from macnet.training.loop import Schedule
from macnet.training.step import Learner
from record import keep

TRAIN, VAL, BLOCK, QUESTIONS = 70_000, 5_000, 250, 10
WORDS = 46  # of the longest question
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CHANNELS = 26  # of an object of `rn`: here attributes, presence, zeros, and two coordinates


def describe(scene: Scene) -> np.ndarray:
    """The objects of a scene, as a network sees them: (10, 26)."""
    states = np.zeros((MAX_OBJECTS, CHANNELS), np.float32)
    for state, thing in zip(states, scene.objects, strict=False):
        values = [
            getattr(thing, name) == value for name, known in ATTRIBUTES.items() for value in known
        ]
        state[: len(values) + 1] = [*values, True]
        for i, direction in enumerate(("right", "behind")):
            state[i - 2] = thing.x * DIRECTIONS[direction][0] + thing.y * DIRECTIONS[direction][1]
    return states


def make_block(split: str, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States (n, 10, 26), tokens (10 n, words), answers: a block's scenes with 10 questions."""
    vocabulary, world = Vocabulary.build(world_texts()), World(seed=0)
    seeds = range(number * BLOCK, (number + 1) * BLOCK)
    scenes = sample_scenes([random.Random(f"{split}/{i}") for i in seeds])
    asked = generate_questions(world, split, number, scenes)
    full = [(s, qs) for s, qs in zip(scenes, asked, strict=True) if len(qs) == QUESTIONS]
    tokens = np.zeros((len(full) * QUESTIONS, WORDS), np.uint8)
    answers = np.zeros(len(tokens), np.uint8)
    for i, question in enumerate(q for _, qs in full for q in qs):
        words = vocabulary.encode(question.text)
        tokens[i, : len(words)] = words
        answers[i] = vocabulary.answers.index(question.answer)
    return np.stack([describe(s) for s, _ in full]), tokens, answers


def make_states(file: Path) -> None:
    """Make the states of both splits, by all cores."""
    arrays: dict[str, np.ndarray] = {}
    with ProcessPoolExecutor() as pool:
        for split, count in (("train", TRAIN), ("val", VAL)):
            blocks = [*pool.map(partial(make_block, split), range(count // BLOCK))]
            for i, name in enumerate(("states", "tokens", "answers")):
                arrays[f"{split}_{name}"] = np.concatenate([block[i] for block in blocks])
    np.savez_compressed(file, **arrays)


class States(BatchSource):
    """Batches of the objects of scenes, with all questions about each."""

    def __init__(self, arrays: Any, split: str, scenes: int) -> None:
        self._all, self._tokens, self._answers = (
            torch.from_numpy(arrays[f"{split}_{name}"]).to(DEVICE)
            for name in ("states", "tokens", "answers")
        )
        self._scenes, self._order, self.position = scenes, iter(()), 0
        self.steps = len(self._all) // scenes

    def sample(self) -> tuple[Tensor, ...]:
        """The indices of the scenes of a batch: all of them once in an epoch."""
        if self.position % self.steps == 0:
            shuffled = torch.randperm(len(self._all), device=DEVICE)
            self._order = iter(shuffled[: self.steps * self._scenes].split(self._scenes))
        self.position += 1
        return (next(self._order),)

    def gather(self, sample: tuple[Tensor, ...]) -> Batch:
        """The scenes, and the questions about them."""
        (scenes,) = sample
        which = (scenes[:, None] * QUESTIONS + torch.arange(QUESTIONS, device=DEVICE)).flatten()
        tokens, answers = self._tokens[which].long(), self._answers[which].long()
        lengths = (tokens != 0).sum(1)
        return Batch(self._all[scenes], tokens, lengths, answers, answers, tokens, which)

    def close(self) -> None:
        """Nothing is open."""


class Given(nn.Module):
    """In the place of a CNN: what is seen are the objects."""

    cells = MAX_OBJECTS

    def forward(self, states: Tensor) -> Tensor:
        return states


def learn(arrays: Any, epochs: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Train `rn` on the states; its accuracy after each epoch."""
    torch.manual_seed(0)
    system, config = find_preset("rn")
    paper, fast = system.training.paper, system.training.fast
    recipe = replace(paper, **{**fast, "epochs": epochs, **changes})
    vocabulary = Vocabulary.build(world_texts())
    sizes = DataSpec(len(vocabulary.words), len(vocabulary.answers), 0, True, 3, 128, 128)
    network = system.build(config, sizes)
    network.image = Given()
    train, val = States(arrays, "train", recipe.images), States(arrays, "val", 100)
    schedule = Schedule(recipe, epochs * train.steps, train.steps)
    start = time.perf_counter()
    learner = Learner(network.to(DEVICE), partial(answer_loss, system), recipe, train, DEVICE)
    found: list[float] = []
    for step in range(schedule.steps):
        learner.step(step, schedule.rate(step))
        if (step + 1) % train.steps == 0:
            network_now = learner.ema_network()
            with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
                batches = (next(val) for _ in range(val.steps))
                scored = [answer_loss(system, network_now, batch) for batch in batches]
            correct = sum(float(sums.correct) for sums in scored)
            found.append(round(100 * correct / sum(float(sums.labelled) for sums in scored), 2))
            print(changes, len(found), found[-1], learner.meters(), flush=True)
    seen = schedule.steps * recipe.images * QUESTIONS
    seconds = time.perf_counter() - start
    return {"changes": changes, "questions_seen": seen, "seconds": seconds, "accuracy": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--weight-decay", type=float, default=0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not args.states.exists():
        make_states(args.states)
    if args.epochs:
        changes = {"weight_decay": args.weight_decay, "lr": args.lr}
        found = learn(np.load(args.states), args.epochs, changes)
        keep(args.out, "accuracy (%) of `rn` from the objects themselves, by epoch", **found)
