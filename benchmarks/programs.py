"""Questions per second of training PG+EE and N2NMN, beside their recursive forms.

    python benchmarks/programs.py --out results/programs_speed_h200.json  # on a GPU

A step is all of it, as `macnet train` does it with 64 images × 10 questions in bfloat16: networks,
loss, backward pass and Adam, captured in a CUDA graph. Inputs are random 1024×14×14 features, or
128×128 pixels; programs are those of generated questions, words are random, in questions as long.
Executors run the true programs (N2NMN's with the generator, which attends to the words for it);
generators learn to write them. The recursive form of an executor runs one module after another, one
question after another; that of a generator is torch's own LSTM in float32. Neither is captured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from macnet.clevr.program import to_prefix
from macnet.data.batches import Batch
from macnet.data.question_arrays import program_ids
from macnet.data.spec import DataSpec
from macnet.models import lstm
from macnet.models.objectives import LossSums, answer_sums
from macnet.models.registry import find_preset
from macnet.models.systems import layout_generator, n2nmn, pg_ee
from macnet.models.systems.execution_engine import ExecutionEngine
from macnet.models.systems.layouts import layouts_of
from macnet.models.systems.neural_modules import Executor
from macnet.models.systems.programs import token_log_probs
from macnet.training.step import Learner
from model import generate_questions, gpu_milliseconds, random_batch
from record import keep
from systems import FEATURES, IMAGES, PIXELS, QUESTIONS, OneBatch, rounded, time_training

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # where N2NMN's modules are recursive
from n2nmn_loops import run_layout

KERNELS = {  # by parts of their names; the first that matches counts
    "LSTM": ("_step",),
    "attention to words": ("_score",),
    "products": ("gemm", "nvjet", "cublas", "cutlass", "splitK"),
    "modules": ("convolve", "combine", "split", "pass_relu", "sum_scenes"),
    "gradients of weights": ("sum_chunk", "sum_bias"),
    "optimizer": ("multi_tensor", "FusedAdam", "foreach"),
    "convolution": ("xmma_fprop", "xmma_wgrad", "xmma_dgrad", "cudnn", "conv", "implicit"),
}


def generate_programs(images: int, questions: int) -> Tensor:
    """(B, L): the programs of generated questions."""
    asked = generate_questions(images, questions)
    programs = [list(program_ids(to_prefix(question.program))) for question in asked]
    longest = max(map(len, programs))
    return torch.tensor([program + [0] * (longest - len(program)) for program in programs])


def execute(system: Any, network: Any, batch: Batch) -> LossSums:
    """PG+EE's executor alone, on the true programs."""
    return answer_sums(network.executor(batch.images, batch.programs), batch)


def write_layouts(system: Any, network: Any, batch: Batch) -> LossSums:
    """N2NMN's generator alone."""
    layouts = layouts_of(batch.programs, network.config.training_steps)
    writing = network.generator.follow(network.generator.read(batch.questions), layouts, None)
    count = torch.ones_like(layouts[:, 0]).sum()
    return LossSums(-token_log_probs(writing.logits, layouts).sum(), count, count, count)


def run_layouts(
    modules: Executor, images: Tensor, txt: Tensor, layouts: Tensor
) -> tuple[Tensor, Tensor]:
    """N2NMN's executor, one question after another."""
    each = len(txt) // len(images)
    rows = enumerate(zip(txt, layouts.tolist(), strict=True))
    logits = [
        run_layout(modules, images[b // each].float(), t.float(), row) for b, (t, row) in rows
    ]
    return torch.stack(logits), txt


RECURSIVE = {
    "executor": (
        mock.patch.object(ExecutionEngine, "forward", ExecutionEngine.literal),
        mock.patch.object(Executor, "forward", run_layouts),
    ),
    "generator": (
        mock.patch.object(lstm, "can_use_triton", return_value=False),
        mock.patch.object(layout_generator, "can_use_triton", return_value=False),
    ),
}
PARTS: dict[str, dict[str, tuple[Callable[..., LossSums], str | None]]] = {
    "pg-ee": {
        "generator": (pg_ee.learn_programs, "generator"),
        "executor": (execute, "executor"),
        "joint stage": (pg_ee.learn_jointly, None),
    },
    "n2nmn": {
        "generator": (write_layouts, "generator"),
        "executor": (n2nmn.clone, "executor"),
        "policy search": (n2nmn.policy_search, None),
    },
}


def measure(
    preset: str, part: str, spec: DataSpec, batch: Batch, logs: Path | None, recursive: bool
) -> dict[str, Any]:
    """The speed of training a part of a system, and of its recursive form."""
    system, config = find_preset(preset)
    objective, form = PARTS[preset][part]
    torch.manual_seed(0)
    changes: Any = {"images": IMAGES, "questions": QUESTIONS, "precision": "bfloat16"}
    recipe = replace(system.training.paper, **changes)
    network = system.build(config, spec).cuda()
    source: Any = OneBatch(batch)

    def make(network: nn.Module, **options: bool) -> Learner:
        loss = partial(objective, system)
        return Learner(network, loss, recipe, source, torch.device("cuda"), **options)

    found: dict[str, Any] = {}
    if form and recursive:
        with ExitStack() as stack:
            for patch in RECURSIVE[form]:
                stack.enter_context(patch)
            learner = make(deepcopy(network), capture=False)
            slow = gpu_milliseconds(lambda: learner.step(0, 1e-4), 2)
        found["recursive_questions_per_second"] = IMAGES * QUESTIONS / slow * 1e3
        del learner
        torch.cuda.empty_cache()
    kind = "pixels" if spec.pixels else "features"
    file = logs and logs / f"kernels_{preset}_{part.replace(' ', '_')}_{kind}.txt"
    found |= time_training(make(network), file, KERNELS)
    if form and recursive:
        found["times_the_recursive"] = slow / found["milliseconds"]
    return rounded(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=Path, help="folder for the lists of kernels")
    parser.add_argument("--only", nargs="+", help="parts of the names of what to measure")
    parser.add_argument("--no-recursive", action="store_true", help="leave out the slow forms")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    features, tokens, answers = random_batch(IMAGES, QUESTIONS, "cuda", torch.bfloat16)
    programs = generate_programs(IMAGES, QUESTIONS).cuda()
    lengths, index = (tokens != 0).sum(1), torch.arange(len(tokens), device="cuda")
    pixels = torch.randint(0, 256, (IMAGES, 128, 128, 3), dtype=torch.uint8, device="cuda")
    numbers: dict[str, Any] = {}
    for kind, spec, images in (("features", FEATURES, features), ("pixels", PIXELS, pixels)):
        batch = Batch(images, tokens, lengths, answers, answers, programs, index)
        for preset, parts in PARTS.items():
            for part in parts:
                name = f"{preset}, {part}, {kind}"
                wanted = not args.only or any(word in name for word in args.only)
                if wanted and not (part == "generator" and kind == "pixels"):
                    rest = args.logs, not args.no_recursive
                    numbers[name] = measure(preset, part, spec, batch, *rest)
                    print(name, numbers[name], flush=True)
    keep(
        args.out,
        f"questions/s of training, {IMAGES} images × {QUESTIONS} questions, bfloat16",
        functions_per_program=round((programs != 0).sum().item() / len(programs), 2),
        **numbers,
    )
