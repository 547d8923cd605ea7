"""Where the time of a training step goes: its parts, each alone, and its kernels.

    python benchmarks/step.py --out results/step_h200.json --kernels results/step_kernels_h200.txt

The step is that of `macnet train`, on a batch of the endless world that stays on the device. Each
of its parts is also captured as a CUDA graph of its own: forwards, and with its backward pass. In
the step, parts that do not depend on each other run side by side, so that the parts take longer in
all. With several `--images`, batches of several sizes are measured.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from macnet.clevr.world import World
from macnet.data.batches import Batch, BatchSource
from macnet.data.block_encoder import world_texts
from macnet.data.endless import EndlessBatches
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.models.encoders import EncodedQuestion, KnowledgeBase
from macnet.models.objectives import answer_loss
from macnet.models.recipe import Recipe
from macnet.training.ema import WeightEMA
from macnet.training.plan import make_plan
from macnet.training.step import EAGER_STEPS, Learner, make_optimizer
from macnet.training.warm_up import RepeatedBatch
from model import captured, gpu_milliseconds, where_time_goes
from record import keep
from training import busy

REPEATS = 100


def build_learner(
    preset: str, vocabulary: Vocabulary, batch: Batch, source: BatchSource
) -> Learner:
    """A network that learns by the recipe `fast` from a source of such batches."""
    images, height, width, _ = batch.images.shape
    spec = DataSpec(len(vocabulary), len(vocabulary.answers), 0, True, 3, height, width)
    plan = make_plan(preset, recipe="fast", recipe_changes={"images": images})
    network = plan.system.build(plan.system.resolve(plan.model, spec), spec).cuda()
    objective = partial(answer_loss, plan.system)
    return Learner(network, objective, plan.recipe, source, torch.device("cuda"))


def both_ways(forward: Callable[[], Sequence[Tensor]], leaves: Iterable[Tensor]) -> dict[str, Any]:
    """Milliseconds of a part forwards, and forwards and backwards."""
    leaves = list(leaves)

    def compute() -> Sequence[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            return forward()

    def learn() -> None:
        results = compute()
        torch.autograd.backward(results, [torch.ones_like(result) for result in results])
        for leaf in leaves:
            leaf.grad = None

    return {
        name: round(gpu_milliseconds(captured(run), REPEATS), 3)
        for name, run in (("forwards", compute), ("forwards_and_backwards", learn))
    }


def optimization(network: nn.Module, recipe: Recipe) -> Callable[[], None]:
    """What follows the backward pass: clipping, the optimizer, the average of weights."""
    weights = dict(network.named_parameters())
    for weight in weights.values():
        weight.grad = torch.randn_like(weight)
    optimizer = make_optimizer(weights, recipe)
    assert optimizer is not None
    ema = WeightEMA([*weights.values()], recipe.ema)

    def step() -> None:
        nn.utils.clip_grad_norm_(weights.values(), recipe.clip)
        optimizer.step()
        ema.update()

    return step


def parts(network: Any, batch: Batch, recipe: Recipe) -> dict[str, Any]:
    """Milliseconds of each part of a step of MAC."""
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        question, elements = network.question(batch.questions), network.image(batch.images).elements
    elements, q, words = (
        given.detach().requires_grad_() for given in (elements, question.q, question.words)
    )

    def reason() -> tuple[Tensor]:
        asked = EncodedQuestion(q, words, question.is_pad)
        memory, _ = network.reasoner(asked, KnowledgeBase(elements))
        return (network.output(q, memory),)

    core = [*network.reasoner.parameters(), *network.output.parameters(), elements, q, words]
    return {
        "image_encoder": both_ways(
            lambda: (network.image(batch.images).elements,), network.image.parameters()
        ),
        "question_encoder": both_ways(
            lambda: network.question(batch.questions)[:2], network.question.parameters()
        ),
        "controls_reasoner_and_output": both_ways(reason, core),
        "clipping_optimizer_and_ema": round(
            gpu_milliseconds(captured(optimization(network, recipe)), REPEATS), 3
        ),
    }


def measure(images: int, args: argparse.Namespace) -> dict[str, Any]:
    """A step on so many images, its parts and its kernels."""
    world, vocabulary = World(seed=1, width=128, height=128), Vocabulary.build(world_texts())
    settings: dict[str, Any] = {"device": "cuda", "workers": args.workers}
    with EndlessBatches(world, vocabulary, images=images, **settings) as batches:
        batch = Batch(*(tensor.clone() for tensor in next(batches)))
    learner = build_learner(args.preset, vocabulary, batch, RepeatedBatch(batch))
    step = partial(learner.step, 0, 1e-4)
    for _ in range(EAGER_STEPS + 1):  # the last is captured
        step()
    milliseconds = gpu_milliseconds(step, REPEATS)
    found = {
        "images": images,
        "milliseconds": round(milliseconds, 3),
        "questions_per_second": round(len(batch.answers) / milliseconds * 1e3),
        "share_of_time_in_which_the_gpu_is_busy": round(busy(learner, REPEATS), 3),
        "milliseconds_of_kernels": where_time_goes(step, args.kernels),
        "milliseconds_of_parts": parts(learner.network, batch, learner.recipe),
    }
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[64])
    parser.add_argument("--preset", default="pixels")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 1))
    parser.add_argument("--kernels", type=Path, help="file for the list of kernels")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [measure(images, args) for images in args.images]
    keep(args.out, "milliseconds of a training step from pixels, 128×128", rows=rows)


if __name__ == "__main__":
    main()
