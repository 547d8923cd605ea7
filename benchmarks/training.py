"""Questions per second of training as users run it, beside the bare step, in one run.

    python benchmarks/training.py --cache CACHE --out results/training_speed_h200.json
    python benchmarks/training.py --cache CACHE --stream --compile --workers 15 --out …

MAC learns from pixels by the fast recipe. The bare step is that of benchmarks/model.py on one batch
that stays. "Training" is the median over the lines of a run's record; "in all" counts validations
and saving too, from the first step to the last. Busy is the GPU while any kernel or copy runs, by
whoever started it, as the profiler has it over some steps in the middle.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from lessons import drawn_lessons
from macnet.configuration import changed
from macnet.data.batches import Batch
from macnet.evaluation.answering import Answering
from macnet.models.registry import find_preset
from macnet.training.data import Lessons
from macnet.training.objectives import OBJECTIVES
from macnet.training.recipes import find_recipe
from macnet.training.record import read_record
from macnet.training.step import Learner
from macnet.training.trainer import Plan, Trainer
from model import captured, gpu_milliseconds, training_step
from record import keep

DEVICE = torch.device("cuda")


def bare(plan: Plan, lessons: Lessons, batch: Batch) -> float:
    """Questions/s of the step alone."""
    network = plan.system.build(plan.model, lessons.fit()).cuda()
    step = training_step(network, network, (batch.images, batch.questions, batch.answers))
    return len(batch.answers) / gpu_milliseconds(captured(step), 100) * 1e3


def busy(learner: Learner, steps: int) -> float:
    """The share of time in which anything runs on the GPU."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for n in range(steps):
            learner.step(n, 1e-4)
        torch.cuda.synchronize()
        wall = (time.perf_counter() - start) * 1e6
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    covered, until = 0.0, -1.0
    for first, last in spans:
        covered += max(0.0, last - max(first, until))
        until = max(until, last)
    return covered / wall


def main(args: argparse.Namespace) -> None:
    began = time.perf_counter()
    lessons = drawn_lessons(
        128,
        None if args.stream else args.images,
        args.val_images,
        cache=args.cache,
        device=DEVICE,
        workers=args.workers,
        seed=args.seed,
    )
    made = time.perf_counter() - began
    preset = find_preset(args.preset)
    recipe = changed(find_recipe("fast", "mac"), {"epochs": args.epochs, "validate": 1})
    model = changed(preset.config, {"d": args.d, "p": args.p})
    plan = Plan(preset=args.preset, model=model, recipe=recipe)
    options = {"device": DEVICE, "workers": args.workers, "compile": args.compile}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        Trainer(run, plan, lessons, **options).train()
        record = read_record(run / "log.jsonl")
    lines = [line for line in record if line["kind"] == "train"]
    training = statistics.median(line["questions_per_second"] for line in lines[len(lines) // 4 :])

    source = lessons.open(recipe, None, seed=0, position=0, **options)
    with closing(source):
        batch = source.gather(source.draw())
        network = plan.system.build(plan.model, lessons.fit()).cuda()
        learner = Learner(plan.system, network, OBJECTIVES["answers"], recipe, source, DEVICE)
        for n in range(50):
            learner.step(n, 1e-4)
        share = busy(learner, 200)
    step = bare(plan, lessons, Batch(*(tensor.clone() for tensor in batch)))

    answering = Answering(lessons.val, device=DEVICE, precision="bfloat16")
    times = []
    for _ in range(3):
        start = time.perf_counter()
        answering(plan.system, network)
        times.append(time.perf_counter() - start)
    keep(
        args.out,
        f"training {args.preset}, d={args.d}, p={args.p}, from pixels of 128×128: "
        + ("the endless stream" if args.stream else f"{args.images:,} images"),
        batch=[recipe.images, recipe.questions],
        bare_questions_per_second=round(step),
        training_questions_per_second=round(training),
        loop_costs=round(1 - training / step, 4),
        in_all_questions_per_second=round(lines[-1]["questions"] / lines[-1]["seconds"]),
        gpu_busy=round(share, 4),
        evaluation_questions_per_second=round(len(lessons.val) / min(times)),
        seconds_to_draw_the_set=None if args.stream else round(made, 1),
        memory_gigabytes=round(torch.cuda.max_memory_allocated() / 1e9, 2),
        validation=[line["accuracy"] for line in record if line["kind"] == "validation"],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--p", type=int, default=12)
    parser.add_argument("--images", type=int, default=70_000)
    parser.add_argument("--val-images", type=int, default=5_000)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stream", action="store_true", help="learn from the endless stream")
    parser.add_argument("--compile", action="store_true", help="its drawing")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
