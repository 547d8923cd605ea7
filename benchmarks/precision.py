"""Training in bfloat16 and in float32: the same networks, batches and seeds in both.

    python benchmarks/precision.py --out results/precision_h200.json

The task is CLEVR's questions about symbolic images: a 14×14 floor plan on which each object is a
one-hot of its attributes, so that trunk, words and steps are all used. Float32 is strict: no TF32.
Each seed has its own weights, batches and dropout masks.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.scene import ATTRIBUTES, HALF_FLOOR
from macnet.models.mac import MACNetwork
from macnet.models.presets import preset
from model import LONGEST, captured
from record import keep

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from scene_array import Data, G, make_block

GRID = 14
VALUES = [(name, value) for name, values in ATTRIBUTES.items() for value in values]


def spelled(text: str) -> list[str]:
    return re.findall(r"\w+|[,;]", text)


def encode(data: Data, words: dict[str, int], answers: dict[str, int]) -> tuple[Tensor, ...]:
    """Plans (N, C, 14, 14), questions (N, G, S), answers (N, G)."""
    plans = torch.zeros(len(data), len(VALUES), GRID, GRID)
    questions = torch.zeros(len(data), G, LONGEST, dtype=torch.int64)
    given = torch.zeros(len(data), G, dtype=torch.int64)
    for i, (scene, asked) in enumerate(data):
        for thing in scene.objects:
            y, x = (int((at / HALF_FLOOR + 1) / 2 * (GRID - 1e-6)) for at in (thing.y, thing.x))
            for channel, (name, value) in enumerate(VALUES):
                if getattr(thing, name) == value:
                    plans[i, channel, y, x] = 1
        for j, question in enumerate(asked):
            text = [words[word] for word in spelled(question.text)]
            questions[i, j, : len(text)] = torch.tensor(text)
            given[i, j] = answers[question.answer]
    return plans, questions, given


def learn(
    network: MACNetwork,
    train: tuple[Tensor, ...],
    val: tuple[Tensor, ...],
    low: bool,
    steps: int,
    every: int,
) -> tuple[list[float], list[float]]:
    """The mean loss, and the accuracy on scenes held out, after each `every` steps."""
    device = train[0].device
    precision = torch.autocast(device.type, torch.bfloat16) if low else nullcontext()
    adam = torch.optim.Adam(network.parameters(), 5e-4, capturable=device.type == "cuda")
    batch = [x[:64].clone() for x in train]
    loss = torch.zeros((), device=device)

    def answer(plans: Tensor, questions: Tensor) -> Tensor:
        with precision:
            return network(plans, questions.flatten(0, 1)).float()

    def step() -> None:
        adam.zero_grad()
        found = nn.functional.cross_entropy(answer(*batch[:2]), batch[2].flatten())
        found.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 8.0)
        adam.step()
        loss.copy_(found.detach())

    run: Callable[[], None] = step
    if device.type == "cuda":
        run = captured_afresh(network, adam, step)
    losses, accuracies, recent = [], [], []
    for i in range(1, steps + 1):
        chosen = torch.randint(len(train[0]), (64,)).to(device)
        for x, source in zip(batch, train, strict=True):
            torch.index_select(source, 0, chosen, out=x)
        run()
        recent.append(loss.clone())
        if i % every == 0:
            losses.append(torch.stack(recent[-every:]).mean().item())
            network.eval()
            with torch.no_grad():
                parts = zip(*(x.split(100) for x in val), strict=True)
                right = [(answer(a, b).argmax(-1) == c.flatten()).float() for a, b, c in parts]
            accuracies.append(torch.cat(right).mean().item())
            network.train()
    return losses, accuracies


def captured_afresh(
    network: MACNetwork, adam: torch.optim.Optimizer, step: Callable[[], None]
) -> Callable[[], None]:
    """The step as a CUDA graph, with nothing learned on the way."""
    start = {name: x.clone() for name, x in network.state_dict().items()}
    replay = captured(step)
    network.load_state_dict(start)
    for state in adam.state.values():
        for x in state.values():
            x.zero_()
    return replay


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--preset", default="paper")
    parser.add_argument(
        "--blocks", type=int, default=60, help=f"of {IMAGES_PER_BLOCK} scenes to train on"
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--d", type=int, default=128)
    parser.add_argument("--p", type=int, default=6)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with ProcessPoolExecutor() as pool:
        blocks = list(pool.map(make_block, ["train"] * args.blocks, range(args.blocks)))
        held_out = list(pool.map(make_block, ["val"] * 4, range(4)))
    made, unseen = ([one for block in many for one in block] for many in (blocks, held_out))
    asked = [question for _, questions in made + unseen for question in questions]
    words = sorted({word for question in asked for word in spelled(question.text)})
    words = {word: i for i, word in enumerate(words, 1)}
    answers = {answer: i for i, answer in enumerate(sorted({q.answer for q in asked}))}
    train, val = (
        tuple(x.to(args.device) for x in encode(some, words, answers)) for some in (made, unseen)
    )
    config = preset(args.preset, d=args.d, p=args.p, channels=len(VALUES))
    every = max(1, args.steps // 10)
    curves: dict[str, list] = {"float32": [], "bfloat16": []}
    for seed in range(args.seeds):
        for name, found in curves.items():
            torch.manual_seed(seed)
            network = MACNetwork(config, vocabulary=len(words) + 1, answers=len(answers))
            network.to(args.device)
            found.append(learn(network, train, val, name == "bfloat16", args.steps, every))
            print(seed, name, [round(accuracy, 3) for accuracy in found[-1][1]], flush=True)
    accuracies = {
        name: list(zip(*(a for _, a in runs), strict=True)) for name, runs in curves.items()
    }
    losses = {name: list(zip(*(a for a, _ in runs), strict=True)) for name, runs in curves.items()}
    # Each seed's pair began alike, so the differences of pairs say what the precision does.
    gaps = [
        [b - a for a, b in zip(full, low, strict=True)]
        for full, low in zip(accuracies["float32"], accuracies["bfloat16"], strict=True)
    ]
    keep(
        args.out,
        f"learning in bfloat16 and float32, {args.preset}, d={args.d}, p={args.p}",
        questions=len(made) * G,
        steps=list(range(every, args.steps + 1, every)),
        seeds=args.seeds,
        loss={name: [round(statistics.mean(x), 4) for x in each] for name, each in losses.items()},
        accuracy={
            name: [round(statistics.mean(x), 4) for x in each] for name, each in accuracies.items()
        },
        deviation_of_seeds={
            name: [round(statistics.stdev(x), 4) for x in each] if args.seeds > 1 else None
            for name, each in accuracies.items()
        },
        mean_difference=[round(statistics.mean(gap), 4) for gap in gaps],
        largest_difference_of_means=round(max(abs(statistics.mean(gap)) for gap in gaps), 4),
    )
