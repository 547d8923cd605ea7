"""Accuracy of the network that comes with the package.

    python benchmarks/shipped.py --out results/shipped.json \\
        --real ../shared/reference/clevr_val100 --originals ../shared/reference/clevr_train32

On a small set of the generated world, which a test asks again; on real CLEVR questions; and on
original CLEVR images without questions, about which the questions are asked here. And how long
`macnet ask` takes, start-up included.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import macnet
from macnet.checkpoint import SHIPPED
from macnet.clevr.questions import QuestionGenerator
from macnet.clevr.release import read_scenes
from macnet.clevr.world import World
from macnet.data.dataset import Dataset
from macnet.data.generated import pack_generated
from macnet.data.pack import pack_split
from macnet.data.splits import find_split
from macnet.data.vocab import Vocabulary
from macnet.evaluation.accuracy import Proportion, measure
from macnet.evaluation.predict import Predictor
from macnet.explain.model import Model
from record import keep

IMAGES, SPLIT, SEED = 50, "test", 2  # of another world than the one it learned from
SIZE = 128


def small_set(vocabulary: Vocabulary, cache: Path) -> Dataset:
    world = World(SEED, width=SIZE, height=SIZE)
    return pack_generated(
        world, vocabulary, split=SPLIT, images=IMAGES, cache=cache, device="cpu", workers=0
    )


def sets(vocabulary: Vocabulary, cache: Path, real: Path | None) -> Iterator[tuple[str, Dataset]]:
    yield f"the first {IMAGES} images of {SPLIT} of world {SEED}", small_set(vocabulary, cache)
    if real is not None:
        split = find_split(real, "val")
        yield real.name, pack_split(split, cache, vocabulary, size=(SIZE, SIZE))


def about_originals(model: Model, data: Path) -> dict[str, Any]:
    """Ten questions about each image of a training split, answered one by one."""
    scenes = read_scenes(data / "scenes" / "CLEVR_train_scenes.json")
    asker, right, asked = QuestionGenerator(random.Random(0)), 0, 0
    for name, scene in scenes.items():
        for question in asker.generate(scene, 10):
            answer = model.ask(data / "images" / "train" / name, question.text).answer
            right += answer == question.answer
            asked += 1
    return {"images": len(scenes), "overall": Proportion(right, asked).to_record()}


def seconds_of_asking(folder: Path) -> list[float]:
    """Of five commands, after one that has drawn the picture and warmed the disk's cache."""
    ask = [sys.executable, "-m", "macnet", "ask"]
    question, scene = "How many things are left of the small brown cube?", folder / "scene.png"
    subprocess.run([*ask, question, "--seed", "58", "--save", scene], check=True)
    took = []
    for _ in range(5):
        start = time.monotonic()
        subprocess.run([*ask, scene, question], check=True, stdout=subprocess.DEVNULL)
        took.append(round(time.monotonic() - start, 2))
    return sorted(took)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--originals", type=Path)
    options = parser.parse_args()
    model = macnet.load()
    trained = model.trained
    measured: dict[str, Any] = {}
    with TemporaryDirectory() as cache:
        asking = seconds_of_asking(Path(cache))
        for name, dataset in sets(trained.vocabulary, Path(cache), options.real):
            start = time.monotonic()
            with Predictor(dataset) as answering:
                results = measure(dataset, *answering(trained.system, model.network))
            record = results.to_record()
            measured[name] = {
                "seconds": round(time.monotonic() - start, 1),
                **{key: record[key] for key in ("origin", "overall", "groups")},
            }
    if options.originals is not None:
        measured[options.originals.name] = about_originals(model, options.originals)
    what = "the shipped weights, in half precision, asked on a CPU in float32"
    size = SHIPPED.stat().st_size
    keep(options.out, what, bytes=size, seconds_of_asking=asking, measured=measured)


if __name__ == "__main__":
    main()
