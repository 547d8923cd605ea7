"""Questions per second of training the other systems of table 1, beside their plain forms.

    python benchmarks/systems.py --out results/systems_speed_h200.json  # on a GPU

A step is all of it, as `macnet train` does it with 64 images × 10 questions in bfloat16: networks,
loss, backward pass and Adam, captured in a CUDA graph. Inputs are random 1024×14×14 features, or
128×128 pixels; questions have the lengths of generated ones, padded to the longest of CLEVR. The
plain form is `literal`, as published: an image for each question, every pair written out, torch's
own LSTM and GRU over padded questions, without a CUDA graph, in bfloat16 too, but for LSTM and GRU.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from macnet.data.batches import Batch
from macnet.data.spec import DataSpec
from macnet.models import gru, lstm
from macnet.models.objectives import answer_loss
from macnet.models.registry import find_preset
from macnet.training.step import Learner
from model import ANSWERS, KINDS, VOCABULARY, gpu_milliseconds, random_batch, where_time_goes
from record import keep

IMAGES, QUESTIONS = 64, 10
FEATURES = DataSpec(VOCABULARY, ANSWERS, 13, pixels=False, channels=1024, height=14, width=14)
PIXELS = DataSpec(VOCABULARY, ANSWERS, 13, pixels=True, channels=3, height=128, width=128)
NETWORKS = {
    "features": ["lstm", "cnn-lstm", "sa-mlp", "film", "rn"],
    "pixels": ["cnn-lstm", "sa-mlp", "rn", "rn-pixels", "film", "film-pixels"],
}


KERNELS = {  # by parts of their names; the first that matches counts
    "LSTM or GRU": ("_step", "_multiply", "_add_products"),
    "pairs": ("_layer", "_add_pairs", "_last_backward", "_sum_pairs"),
    "modulation and pooling": ("_modulate", "_pool", "_measure_map"),
    **{kind: parts for kind, parts in KINDS.items() if kind in ("optimizer", "convolution")},
    "products": KINDS["products"],
}


class OneBatch:
    """A source of batches that are all the same."""

    steps = None

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def sample(self) -> tuple[Tensor, ...]:
        """Nothing has to be copied to the device."""
        return ()

    def gather(self, sampled: tuple[Tensor, ...]) -> Batch:
        """The batch."""
        return self.batch

    def close(self) -> None:
        """Nothing is open."""


def measure(name: str, spec: DataSpec, batch: Batch, logs: Path | None) -> dict[str, Any]:
    """The speed of a preset's training, and of its plain form."""
    system, config = find_preset(name)
    torch.manual_seed(0)
    changes: Any = {"images": IMAGES, "questions": QUESTIONS, "precision": "bfloat16"}
    recipe = replace(system.training.paper, shift=0, rotation=0, **changes)
    network = system.build(config, spec).cuda()
    source: Any = OneBatch(batch)
    make = partial(Learner, recipe=recipe, source=source, device=torch.device("cuda"))
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in network.parameters())}
    if hasattr(network, "literal"):
        plain = replace(system, forward=lambda net, b: net.literal(b.images, b.questions))
        no_kernels = {"can_use_triton": lambda device, dtype: False}
        with mock.patch.multiple(gru, **no_kernels), mock.patch.multiple(lstm, **no_kernels):
            learner = make(network, partial(answer_loss, plain), capture=False)
            found["plain_milliseconds"] = gpu_milliseconds(lambda: learner.step(0, 1e-4), 5)
        del learner
        torch.cuda.empty_cache()
    file = logs and logs / f"kernels_{name}_{'pixels' if spec.pixels else 'features'}.txt"
    found |= time_training(make(network, partial(answer_loss, system)), file, KERNELS)
    if "plain_milliseconds" in found:
        count = IMAGES * QUESTIONS
        found["plain_questions_per_second"] = count / found["plain_milliseconds"] * 1e3
        found["times_the_plain"] = found["plain_milliseconds"] / found["milliseconds"]
    return rounded(found)


def time_training(
    learner: Learner, file: Path | None, kernels: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """The speed of captured steps, their memory, and their kernels by kind; a list to the file."""
    torch.cuda.reset_peak_memory_stats()
    for _ in range(5):  # the graph is captured
        learner.step(0, 1e-4)
    fast = gpu_milliseconds(lambda: learner.step(0, 1e-4), 20)
    return {
        "milliseconds": fast,
        "questions_per_second": IMAGES * QUESTIONS / fast * 1e3,
        "memory_gigabytes": torch.cuda.max_memory_allocated() / 1e9,
        "milliseconds_of_kernels": where_time_goes(lambda: learner.step(0, 1e-4), file, kernels),
    }


def rounded(found: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers with as many digits as they deserve."""
    return {
        key: round(value, 2 if value < 1e3 else None) if isinstance(value, float) else value
        for key, value in found.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", help="some of them only")
    parser.add_argument("--logs", type=Path, help="folder for the list of kernels")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    features, tokens, answers = random_batch(IMAGES, QUESTIONS, "cuda", torch.bfloat16)
    lengths, index = (tokens != 0).sum(1), torch.arange(len(tokens), device="cuda")
    pixels = torch.randint(0, 256, (IMAGES, 128, 128, 3), dtype=torch.uint8, device="cuda")
    numbers: dict[str, dict[str, Any]] = {}
    for kind, spec, images in (("features", FEATURES, features), ("pixels", PIXELS, pixels)):
        batch = Batch(images, tokens, lengths, answers, answers, index, index)
        for name in NETWORKS[kind]:
            if not args.presets or name in args.presets:
                numbers.setdefault(name, {})[kind] = measure(name, spec, batch, args.logs)
                print(name, kind, numbers[name][kind], flush=True)
    keep(
        args.out,
        f"questions/s of training, {IMAGES} images × {QUESTIONS} questions, bfloat16",
        words_per_question=round((tokens != 0).sum().item() / len(tokens), 2),
        **numbers,
    )
