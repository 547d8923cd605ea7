"""`macnet evaluate --attention`, kept with the commit and the machine.

    python benchmarks/attention_report.py --out results/attention.json
    python benchmarks/attention_report.py --run RUN --images 500 --out results/attention_RUN.json

Without `--run` it is the shipped network that is measured.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from macnet.explain.attention import measure_attention
from record import keep

if __name__ == "__main__":  # workers are spawned, and import this file again
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--split", default="val")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    report = measure_attention(given.run, world_images=given.images, split=given.split, log=print)
    report.show()
    what = "what a network attends to, and what the programs of its questions reference"
    keep(given.out, what, **report.to_record())
