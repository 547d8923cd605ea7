"""Questions per second of training as users run it, beside the bare step, in one run.

    python benchmarks/training.py --cache CACHE --out results/training_speed_h200.json
    python benchmarks/training.py --cache CACHE --stream --workers 15 --out …

MAC is trained from pixels by the fast recipe. The bare step is that of benchmarks/model.py, always
on the same batch. "Training" is the median over the lines of a run's log; "in all" counts
validations and checkpoints too, from the first step to the last. The GPU is busy while any kernel
or copy runs, as the profiler has it over some steps in the middle.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from macnet.data.batches import Batch
from macnet.evaluation.predict import Predictor
from macnet.models.objectives import answer_loss
from macnet.training.log import read_log
from macnet.training.plan import TrainingPlan, make_plan
from macnet.training.step import Learner
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from model import captured, gpu_milliseconds, training_step
from record import keep
from training_data import generated_training_data

DEVICE = torch.device("cuda")


def bare(plan: TrainingPlan, training_data: TrainingData, batch: Batch) -> float:
    """Questions/s of the step alone."""
    network = plan.system.build(plan.model, training_data.data_spec()).cuda()
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
    training_data = generated_training_data(
        128,
        None if args.stream else args.images,
        args.val_images,
        cache=args.cache,
        device=DEVICE,
        workers=args.workers,
        seed=args.seed,
    )
    made = time.perf_counter() - began
    plan = make_plan(
        preset=args.preset,
        model={"d": args.d, "p": args.p},
        recipe="fast",
        recipe_changes={"epochs": args.epochs, "validate_every": 1},
    )
    recipe = plan.recipe
    options = {"device": DEVICE, "workers": args.workers}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        Trainer(run, plan, training_data, **options).train()
        log = read_log(run / "log.jsonl")
    lines = [line for line in log if line["kind"] == "train"]
    training = statistics.median(line["questions_per_second"] for line in lines[len(lines) // 4 :])

    source = training_data.open(recipe, None, seed=0, position=0, **options)
    with closing(source):
        batch = source.gather(source.sample())
        network = plan.system.build(plan.model, training_data.data_spec()).cuda()
        learner = Learner(network, partial(answer_loss, plan.system), recipe, source, DEVICE)
        for n in range(50):
            learner.step(n, 1e-4)
        share = busy(learner, 200)
    step = bare(plan, training_data, Batch(*(tensor.clone() for tensor in batch)))

    predictor = Predictor(training_data.val, device=DEVICE, precision="bfloat16")
    times = []
    for _ in range(3):
        start = time.perf_counter()
        predictor(plan.system, network)
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
        evaluation_questions_per_second=round(len(training_data.val) / min(times)),
        seconds_to_draw_the_set=None if args.stream else round(made, 1),
        memory_gigabytes=round(torch.cuda.max_memory_allocated() / 1e9, 2),
        validation=[line["accuracy"] for line in log if line["kind"] == "validation"],
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
    parser.add_argument("--stream", action="store_true", help="train on the endless world")
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
