"""Does bfloat16 learn as float32 does, further on? The example's tables, on a CPU.

    python benchmarks/precision_table.py --out results/precision_table.json

`precision.py` has the GPU's kernels, but only the first part of learning. Here are plain products,
rounded to bfloat16 by autocast all the same, and networks that get well beyond guessing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from macnet.models.config import NO_DROPOUT
from macnet.models.presets import preset
from record import keep

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import scene_table


def learn(seed: int, low: bool, steps: int) -> tuple[list[float], list[float], float]:
    """Loss and accuracy of each 250 steps of training, and the accuracy on scenes held out."""
    torch.set_num_threads(1)
    scenes, unseen = scene_table.make("train", 40), scene_table.make("held out", 2)
    asked = [question for _, questions in scenes + unseen for question in questions]
    words = ["", *sorted({word for q in asked for word in scene_table.tokens(q.text)})]
    known = sorted({q.answer for q in asked})
    train, val = (scene_table.encode(some, words, known) for some in (scenes, unseen))

    torch.manual_seed(seed)
    small = {"d": 64, "p": 4, "embedding": 64, "embedding_low": -1.0, "lstm": "d/2"}
    config = preset("paper", **small, dropout=NO_DROPOUT)
    network = scene_table.TableNetwork(config, len(words), len(known))
    adam = torch.optim.Adam(network.parameters(), lr=4e-3)
    falling = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.01, steps)
    precision = torch.autocast("cpu", torch.bfloat16) if low else nullcontext()
    seen, losses, accuracies = [], [], []
    for step in range(1, steps + 1):
        chosen = torch.randint(len(train[0]), (12,))
        tables, questions, answers = (x[chosen] for x in train)
        with precision:
            logits = network(tables, questions)[0].float()
        loss = nn.functional.cross_entropy(logits, answers.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        falling.step()
        right = (logits.argmax(-1) == answers.flatten()).float().mean()
        seen.append(torch.stack([loss.detach(), right]))
        if step % 250 == 0:
            mean = torch.stack(seen[-250:]).mean(0).tolist()
            losses.append(mean[0])
            accuracies.append(mean[1])
    network.eval()
    with torch.no_grad(), precision:
        given = network(*val[:2])[0].argmax(-1)
    return losses, accuracies, (given == val[2].flatten()).float().mean().item()


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
