"""Accuracy of the relation network's reasoning alone: from the objects themselves, not an image.

    python benchmarks/relation_states.py --cache CACHE --epochs 12 --out RUN.json  # on a GPU

This writes one run; results/relation_states_h200.json collects several, by their changes.

RN's paper has such "state descriptions" as well, and reaches 96.4% on CLEVR with them. Everything
but the image is the preset `rn` and its recipe `fast`. A scene has at most ten objects, and so 100
pairs instead of 4,096: there is time for many epochs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.scene import ATTRIBUTES, DIRECTIONS, MAX_OBJECTS, Scene, sample_scenes
from macnet.clevr.scene_array import object_mask, scenes_to_array
from macnet.clevr.world import World, generate_questions
from macnet.data.block_encoder import tokenize_question, world_texts
from macnet.data.dataset import Dataset
from macnet.data.pack_store import cached_pack, save_array
from macnet.data.question_arrays import QuestionArrays, TokenizedQuestion, collect
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.models.systems import relation_network
from macnet.models.systems.relation_network import RelationNetworkConfig
from macnet.training.log import read_log
from macnet.training.plan import make_plan
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from macnet.workers import default_workers, pool
from record import keep

WORLD = World(seed=0)
CHANNELS = 26  # of an object of `rn`: here attributes, presence, zeros, and two coordinates


def describe(scenes: list[Scene]) -> np.ndarray:
    """The objects of each scene, as features of a row of ten cells: (s, 1, 10, 26)."""
    array = scenes_to_array(scenes)
    there = object_mask(array)[..., None]
    attributes = [
        np.eye(len(values))[array["attributes"][..., i]]
        for i, values in enumerate(ATTRIBUTES.values())
    ]
    known = np.concatenate([*attributes, there], -1)
    zeros = np.zeros((*known.shape[:2], CHANNELS - 2 - known.shape[-1]))
    axes = np.array([DIRECTIONS[name][:2] for name in ("right", "behind")])
    places = array["poses"][..., :2] @ axes.T
    return (there * np.concatenate([known, zeros, places], -1)).astype(np.float16)[:, None]


def make_block(
    vocabulary: Vocabulary, split: str, number: int
) -> tuple[np.ndarray, list[TokenizedQuestion]]:
    """The states of a block's scenes, and the questions about them."""
    indices = range(number * IMAGES_PER_BLOCK, (number + 1) * IMAGES_PER_BLOCK)
    scenes = sample_scenes([random.Random(f"{split}/{i}") for i in indices])
    asked = generate_questions(WORLD, split, number, scenes)
    rows = [
        tokenize_question(question, vocabulary)._replace(image=i)
        for i, questions in zip(indices, asked, strict=True)
        for question in questions
    ]
    return describe(scenes), rows


def states(vocabulary: Vocabulary, split: str, scenes: int, cache: Path) -> Dataset:
    """So many scenes and their questions. What was packed before is opened."""

    def make(out: Path) -> None:
        with pool(default_workers("cpu")) as workers:
            numbers = range(scenes // IMAGES_PER_BLOCK)
            blocks = [*workers.map(partial(make_block, vocabulary, split), numbers)]
        save_array(out / "states.npy", np.concatenate([seen for seen, _ in blocks]))
        for name, column in vars(collect(row for _, rows in blocks for row in rows)).items():
            save_array(out / f"{name}.npy", column)

    recipe = {"split": split, "scenes": scenes, "vocabulary": vocabulary.to_record()}
    arrays = dict(cached_pack(cache, "states", recipe, make).arrays)
    seen, questions = arrays.pop("states"), QuestionArrays(**arrays)
    every = np.arange(len(questions), dtype=np.int32)
    metadata = {"questions": f"{split} of states", "origin": "generated"}
    return Dataset(seen, questions, questions.images, every, vocabulary, metadata)


class GivenObjects(nn.Module):
    """In the place of a CNN: what is seen are the objects."""

    cells = MAX_OBJECTS

    def __init__(self, config: RelationNetworkConfig, data_spec: DataSpec) -> None:
        super().__init__()

    def forward(self, states: Tensor) -> Tensor:
        # states: (N, 26, 1, 10) → (N, 10, 26)
        return states.flatten(2).transpose(1, 2)


if __name__ == "__main__":
    fast = make_plan("rn", recipe="fast").recipe
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=70_000)
    parser.add_argument("--val-scenes", type=int, default=5_000)
    parser.add_argument("--epochs", type=float, default=12)
    parser.add_argument("--weight-decay", type=float, default=fast.weight_decay)
    parser.add_argument("--lr", type=float, default=fast.lr)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    changes = {"epochs": args.epochs, "weight_decay": args.weight_decay, "lr": args.lr}
    vocabulary = Vocabulary.build(world_texts())
    training_data = TrainingData(
        states(vocabulary, "train", args.scenes, args.cache),
        states(vocabulary, "val", args.val_scenes, args.cache),
    )
    plan = make_plan("rn", recipe="fast", recipe_changes=changes)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(relation_network, "Objects", GivenObjects),
    ):
        run = Path(folder) / "run"
        Trainer(run, plan, training_data, device=device).train()
        validations = [line for line in read_log(run / "log.jsonl") if line["kind"] == "validation"]
    keep(
        args.out,
        "accuracy of `rn` from the objects themselves, by epoch",
        changes=changes,
        scenes=args.scenes,
        seconds=validations[-1]["seconds"],
        accuracy=[line["accuracy"] for line in validations],
    )
