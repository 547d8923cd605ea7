"""Questions per second of the network, and of the equations as printed, in one run.

    python benchmarks/model.py --out results/model_speed_h200.json  # on a GPU: training
    python benchmarks/model.py --device cpu --images 8 --out results/model_speed_cpu.json

On a GPU this measures training, on a CPU inference. A training step is all of it: image encoder on
1024×14×14 features, question encoder, p steps, output unit, loss, backward pass, clipping, Adam and
the moving average of the weights, under bfloat16 autocast, captured in a CUDA graph, as training
does. The questions have the lengths of generated ones, which are CLEVR's, and are padded to the
longest of CLEVR. "Literal" is the equations as printed, step by step, a knowledge base for each
question (but the image encoder once per image, to its advantage), without a CUDA graph.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from macnet.clevr.questions import Question, QuestionGenerator
from macnet.clevr.scene import sample_scenes
from macnet.models.config import MACConfig
from macnet.models.mac import MACNetwork
from macnet.models.presets import preset
from record import keep

VOCABULARY, ANSWERS = 90, 28
LONGEST = 46  # words of the longest question in CLEVR
PEAK = 788e12  # operations/s of the H200 in bfloat16: random 8192³ products through torch.matmul


def random_batch(
    images: int, questions: int, device: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Random features, words and answers; the questions have the lengths of generated ones."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(images, 1024, 14, 14, generator=generator).relu_()
    count, asked = images * questions, generate_questions(images, questions)
    lengths = torch.tensor([len(re.findall(r"\w+|[,;]", question.text)) for question in asked])
    tokens = torch.randint(1, VOCABULARY, (count, LONGEST), generator=generator)
    tokens[torch.arange(LONGEST) >= lengths[:, None]] = 0
    answers = torch.randint(0, ANSWERS, (count,), generator=generator)
    return features.to(device, dtype), tokens.to(device), answers.to(device)


def generate_questions(images: int, questions: int) -> list[Question]:
    """So many questions about each of so many scenes, the same each time."""
    asker = QuestionGenerator(random.Random(1))
    scenes = sample_scenes([random.Random(i) for i in range(images)])
    return [question for scene in scenes for question in asker.generate(scene, questions)]


def training_step(
    network: MACNetwork, answer: Callable[[Tensor, Tensor], Tensor], batch: tuple[Tensor, ...]
) -> Callable[[], Tensor]:
    """One optimisation step on a fixed batch."""
    features, tokens, answers = batch
    weights = list(network.parameters())
    adam = torch.optim.Adam(weights, lr=1e-4, fused=True, capturable=True)
    average = [weight.detach().clone() for weight in weights]
    update_average = get_ema_multi_avg_fn(0.999)

    def step() -> Tensor:
        adam.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(answer(features, tokens), answers)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 8.0)
        adam.step()
        update_average(average, [weight.detach() for weight in weights], 1)
        return loss

    return step


def captured(step: Callable[[], object]) -> Callable[[], None]:
    """Replay the step as a CUDA graph; the step must be kept alive by the caller."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(
        graph, capture_error_mode="thread_local"
    ):  # another thread may generate data meanwhile
        step()
    return graph.replay


def gpu_milliseconds(run: Callable[[], object], repeats: int) -> float:
    """The median of `repeats` runs, after as many to warm up."""
    times = []
    for _ in range(2 * repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[repeats:])


KINDS = {  # of kernels, by parts of their names; the first that matches counts
    "LSTM": ("_lstm", "_step"),
    "attention": ("_attention",),
    "optimizer": ("multi_tensor", "FusedAdam", "foreach"),
    "convolution": ("xmma_fprop", "xmma_wgrad", "xmma_dgrad", "cudnn", "conv", "implicit"),
    "interaction": ("_multiply", "_add_elu", "_score"),
    "products": ("gemm", "nvjet", "cublas", "cutlass", "splitK"),
}


def where_time_goes(
    run: Callable[[], object],
    names: Path | None,
    kinds: Mapping[str, tuple[str, ...]] = KINDS,
) -> dict[str, float]:
    """Milliseconds of the kernels of a step, by kind. Kernels may overlap."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            run()
        torch.cuda.synchronize()
    spent: Counter[str] = Counter()
    lines = []
    for event in profiler.key_averages():
        kind = next(
            (kind for kind, parts in kinds.items() if any(part in event.key for part in parts)),
            "elementwise and the rest",
        )
        spent[kind] += event.self_device_time_total / 5e3
        lines.append((event.self_device_time_total / 5e3, event.count // 5, event.key[:150]))
    if names:
        names.write_text("\n".join(f"{t:.4f} ms {n:5d} × {k}" for t, n, k in sorted(lines)[::-1]))
    return {kind: round(ms, 3) for kind, ms in spent.most_common() if ms > 0.0005}


def floor_milliseconds(config: MACConfig, images: int, tokens: Tensor) -> float:
    """The time of the matrix products of a training step alone, at the peak rate of the GPU."""
    d, p, b = config.d, config.p, len(tokens)
    cells, words = images * 196, int((tokens != 0).sum())
    image = cells * 9 * (2 * 1024 * d + 3 * d * d)  # features need no gradient
    units = d if config.lstm == "d" else d // 2
    lstm = 3 * words * 2 * 4 * units * (config.embedding + units)
    read = 2 * b * 196 * d + b * 4 * d * d  # folded: attention, and a handful of d×d
    if config.read == "reference":
        read = b * 196 * 2 * d * d + cells * 2 * d * d
    core = 3 * p * (read + b * 5 * d * d + 2 * words * d)
    return 2 * (image + lstm + core) / PEAK * 1e3


def on_gpu(
    names: list[str], images: int, questions: int, d: int, p: int, logs: Path | None
) -> dict[str, dict[str, Any]]:
    """Training speed, by preset."""
    found = {}
    count = images * questions
    for name in names:
        config = preset(name, d=d, p=p)
        batch = random_batch(images, questions, "cuda", torch.bfloat16)
        network = MACNetwork(config, vocabulary=VOCABULARY, answers=ANSWERS).cuda()
        literal = gpu_milliseconds(training_step(network, network.literal, batch), 5)
        step = training_step(network, network, batch)
        torch.cuda.reset_peak_memory_stats()
        eager = gpu_milliseconds(step, 10)
        replay = captured(step)
        fast = gpu_milliseconds(replay, 50)
        floor = floor_milliseconds(config, images, batch[1])
        found[name] = {
            "questions_per_second": round(count / fast * 1e3),
            "milliseconds": round(fast, 3),
            "milliseconds_without_graph": round(eager, 2),
            "literal_eager_questions_per_second": round(count / literal * 1e3),
            "literal_eager_milliseconds": round(literal, 1),
            "times_the_literal": round(literal / fast, 1),
            "floor_milliseconds": round(floor, 2),
            "times_the_floor": round(fast / floor, 2),
            "memory_gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 2),
            "milliseconds_of_kernels": where_time_goes(
                replay, logs and logs / f"kernels_{name}.txt"
            ),
        }
        print(name, found[name], flush=True)
        del network, step, replay
        torch.cuda.empty_cache()
    return found


def on_cpu(
    names: list[str], images: int, questions: int, d: int, p: int
) -> dict[str, dict[str, float]]:
    """Inference speed, by preset."""
    found = {}
    for name in names:
        network = MACNetwork(preset(name, d=d, p=p), vocabulary=VOCABULARY, answers=ANSWERS).eval()
        features, tokens, _ = random_batch(images, questions, "cpu", torch.float32)
        seconds = {}
        with torch.inference_mode():
            for form, answer in ("fast", network), ("literal", network.literal):
                times = []
                for _ in range(4):
                    start = time.perf_counter()
                    answer(features, tokens)
                    times.append(time.perf_counter() - start)
                seconds[form] = min(times)
        count = images * questions
        found[name] = {
            "questions_per_second": round(count / seconds["fast"], 1),
            "literal_questions_per_second": round(count / seconds["literal"], 1),
            "times_the_literal": round(seconds["literal"] / seconds["fast"], 1),
        }
        print(name, found[name], flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--presets", nargs="+", default=["paper", "reference"])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--questions", type=int, default=10, help="of each image")
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--p", type=int, default=12)
    parser.add_argument("--logs", type=Path, help="folder for the list of kernels")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    size = (args.presets, args.images, args.questions, args.d, args.p)
    torch.manual_seed(0)
    numbers = on_cpu(*size) if args.device == "cpu" else on_gpu(*size, args.logs)
    what = "inference" if args.device == "cpu" else "training"
    keep(
        args.out,
        f"questions/s of {what}, d={args.d}, p={args.p}, {args.images} images × {args.questions}",
        longest_question=LONGEST,
        **numbers,
    )
