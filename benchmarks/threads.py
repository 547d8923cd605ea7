"""How many questions a CPU answers on a busy machine, by torch's threads and how they wait.

    python benchmarks/threads.py --out results/threads_cpu.json

Each row is a fresh process that asks the shipped network one question after another, first so,
then beside as many busy loops as there are cores. Other work on the machine counts in both, so
compare within one run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

import macnet
from macnet.explain import model as asking
from record import keep

QUESTION = "How many objects are either large cubes or small cylinders?"
ALL = os.cpu_count() or 1
ROWS: dict[str, tuple[int, dict[str, str]]] = {
    "as it is": (0, {}),
    "one thread": (1, {}),
    "all threads": (ALL, {}),
    "all threads, OMP_WAIT_POLICY=passive": (ALL, {"OMP_WAIT_POLICY": "passive"}),
    "all threads, GOMP_SPINCOUNT=1000": (ALL, {"GOMP_SPINCOUNT": "1000"}),
}


def measure(threads: int, seconds: float) -> dict[str, float]:
    """With so many threads, or those that `ask` itself chooses."""
    model = macnet.load()
    scene = np.random.default_rng(0).integers(0, 256, (320, 480, 3), dtype=np.uint8)
    chosen = patch.object(asking, "one_thread", nullcontext) if threads else nullcontext()
    torch.set_num_threads(threads or os.cpu_count() or 1)
    with chosen:
        model.ask(scene, QUESTION)
        start, cpu, asked = time.monotonic(), time.process_time(), 0
        while time.monotonic() - start < seconds:
            model.ask(scene, QUESTION)
            asked += 1
    took, used = time.monotonic() - start, time.process_time() - cpu
    return {
        "questions_per_second": round(asked / took, 2),
        "questions_per_cpu_second": round(asked / used, 2),
    }


def in_a_process(name: str, seconds: float) -> dict[str, float]:
    threads, waiting = ROWS[name]
    others = {k: v for k, v in os.environ.items() if not k.startswith(("OMP", "GOMP", "MKL"))}
    environment = others | waiting
    command = [sys.executable, __file__, "--measure", str(threads), "--seconds", str(seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    row: dict[str, float] = json.loads(done.stdout)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each row")
    parser.add_argument("--measure", type=int, help="only that many threads, in this process")
    parser.add_argument("--out", type=Path, help="where to write the numbers as JSON")
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measure(args.measure, args.seconds)))
        return
    load = os.getloadavg()[0]
    without = {name: in_a_process(name, args.seconds) for name in ROWS}
    busy = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(busy) for _ in range(os.cpu_count() or 1)]
    try:
        beside = {name: in_a_process(name, args.seconds) for name in ROWS}
    finally:
        for loop in loops:
            loop.kill()
    keep(
        args.out,
        "questions asked of the shipped network from Python on a CPU, one after another",
        load_before=round(load, 1),
        busy_loops=len(loops),
        without_busy_loops=without,
        beside_busy_loops=beside,
    )


if __name__ == "__main__":
    main()
