"""Training in bfloat16 and in float32 on the tables of the example, on a CPU.

    python benchmarks/precision_table.py --out results/precision_table.json

`precision.py` has the GPU's kernels, but only the first part of training. Here are plain products,
rounded to bfloat16 by autocast all the same, and networks that get well beyond guessing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from macnet.models.mac import StepTrace
from record import keep

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import scene_table


class Rounded(scene_table.TableNetwork):
    """The example's network in bfloat16."""

    def forward(self, tables: Tensor, questions: Tensor) -> tuple[Tensor, list[StepTrace]]:
        with torch.autocast("cpu", torch.bfloat16):
            logits, steps = super().forward(tables, questions)
        return logits.float(), steps


def learn(seed: int, low: bool, steps: int) -> tuple[list[float], list[float], float]:
    """Loss and accuracy of each 250 steps of training, and the accuracy on scenes held out."""
    torch.set_num_threads(1)
    scenes, unseen = scene_table.make("train", 40), scene_table.make("held out", 2)
    words, answers = scene_table.known(scenes + unseen)
    train, val = (scene_table.encode(some, words, answers) for some in (scenes, unseen))
    torch.manual_seed(seed)
    kind = Rounded if low else scene_table.TableNetwork
    network = kind(scene_table.CONFIG, len(words), len(answers))
    losses, accuracies = zip(*scene_table.train(network, train, steps), strict=True)
    with torch.no_grad():
        given = network.eval()(*val[:2])[0].argmax(-1)
    return list(losses), list(accuracies), (given == val[2].flatten()).float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    seeds = list(range(args.seeds))
    runs = {}
    with ProcessPoolExecutor(2) as pool:
        for name, low in ("float32", False), ("bfloat16", True):
            runs[name] = pool.map(learn, seeds, [low] * args.seeds, [args.steps] * args.seeds)
        runs = {name: list(results) for name, results in runs.items()}
    means = {
        name: [[round(statistics.mean(x), 4) for x in zip(*curves, strict=True)] for curves in both]
        for name, both in ((n, list(zip(*r, strict=True))[:2]) for n, r in runs.items())
    }
    keep(
        args.out,
        "learning in bfloat16 and float32 on a CPU, paper, d=64, p=4, scenes as tables",
        seeds=args.seeds,
        steps=list(range(250, args.steps + 1, 250)),
        loss={name: both[0] for name, both in means.items()},
        accuracy={name: both[1] for name, both in means.items()},
        held_out={name: [round(held_out, 4) for *_, held_out in r] for name, r in runs.items()},
    )
