"""What the persistent LSTM kernel saves of a whole training step, on an H100 or H200.

    python benchmarks/lstm_persistent.py --out results/lstm_persistent_h200.json

Each preset's training step (see `model.py`) is captured twice as a CUDA graph: with the LSTM in one
launch per pass (kernels/lstm_persistent.py), and with one launch per word (kernels/lstm.py). The
graphs are replayed by turns, and the medians compared. `pixels` has an LSTM of 192 units, for which
there is only the second form.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch

from macnet.models.kernels import lstm
from macnet.models.mac import MACNetwork
from macnet.models.presets import preset
from model import ANSWERS, VOCABULARY, captured, gpu_milliseconds, random_batch, training_step
from record import keep

PRESETS = ("paper", "reference", "pixels")
IMAGES, QUESTIONS, SIDE = 64, 10, 128
TURNS, REPEATS = 5, 30


def measure(name: str) -> dict[str, object]:
    """Milliseconds of a training step of a preset, with each form of the LSTM."""
    images, questions, answers = random_batch(IMAGES, QUESTIONS, "cuda", torch.bfloat16)
    if name == "pixels":
        size = (IMAGES, SIDE, SIDE, 3)
        images = torch.randint(0, 256, size, dtype=torch.uint8, device="cuda")
    network = MACNetwork(preset(name), vocabulary=VOCABULARY, answers=ANSWERS).cuda()
    persistent, steps, replays = lstm.persistent, [], {}
    for form, module in (("persistent", persistent), ("launch_per_word", None)):
        lstm.persistent = module
        steps.append(training_step(network, network, (images, questions, answers)))
        replays[form] = captured(steps[-1])  # the step owns memory that its graph uses
    lstm.persistent = persistent
    times: dict[str, list[float]] = {form: [] for form in replays}
    for _ in range(TURNS):
        for form, replay in replays.items():
            times[form].append(gpu_milliseconds(replay, REPEATS))
    medians = {form: round(statistics.median(ms), 3) for form, ms in times.items()}
    saved = 1 - medians["persistent"] / medians["launch_per_word"]
    return {"milliseconds": medians, "saved_percent": round(100 * saved, 1), "all": times}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if lstm.persistent is None:
        raise SystemExit("this release of Triton is not one that lstm_persistent.py supports")
    torch.manual_seed(0)
    keep(
        args.out,
        f"a training step, {IMAGES} images × {QUESTIONS}, by the form of the LSTM's kernels",
        **{name: measure(name) for name in PRESETS},
    )
