"""What makes attention point at the right objects: trainings that differ, each measured alike.

    python benchmarks/attention_variants.py --seeds 0 1 2 --out results/variants_h200.json \\
        --common "--preset pixels --recipe fast --shift 8 …" --images 500 \\
        --variant "gate=--model.gate" --variant "gate, p 8=--model.gate --model.p 8"

A variant is a name and further flags of `macnet train`; `--common` has those of all, and `--world`
those of the world in training and measurement. Each run is a process of its own, is kept in
`--folder`, and is not trained again if it is there. Its accuracy and its attention are measured on
generated test images. With `--at-once N`, N runs share the machine.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from macnet.explain.agreement import NETWORK, OTHER_QUESTION
from macnet.explain.masking import PAINTED_OUT
from record import keep

MACNET = [sys.executable, "-m", "macnet"]


def summarize(reading: dict[str, Any]) -> dict[str, float | None]:
    """The numbers of a reading of attention that tell most, in percent; travel in bits."""

    def percent(share: float | None) -> float | None:
        return None if share is None else round(100 * share, 2)

    objects, targets = reading["objects"], reading["all_steps"][NETWORK]["targets"]
    pointed_at = objects["referenced"]["pointed_at"]
    return {
        "referenced_pointed_at": percent(pointed_at[NETWORK]["accuracy"]),
        "by_random_objects": percent(objects["referenced"]["chance"]["objects"]),
        "for_another_question": percent(pointed_at[OTHER_QUESTION]["accuracy"]),
        "others_pointed_at": percent(objects["not referenced"]["pointed_at"][NETWORK]["accuracy"]),
        "most_attention_to_referenced": percent(objects["referenced"]["attention"][NETWORK]),
        **{f"peaks_{name}": percent(share) for name, share in targets.items()},
        "idle": percent(reading["all_steps"][NETWORK]["idle"]),
        "hops_both_pointed_at": percent(reading["both_pointed_at"][NETWORK]["accuracy"]),
        "hops_in_order": percent(reading["order"][NETWORK]["accuracy"]),
        "image_travel": reading["image_travel"][NETWORK],
    }


def run(options: argparse.Namespace, name: str, flags: list[str], seed: int) -> dict[str, Any]:
    """One training, and what its network attends to."""
    out = options.folder / f"{name.replace(' ', '-')}-{seed}"
    world = shlex.split(options.world)
    if not (out / "attention.json").exists():
        command = ["train", *shlex.split(options.common), *world, *flags, "--seed", str(seed)]
        command += ["--out", str(out), "--resume"]
        subprocess.run([*MACNET, *command], check=True, stdout=subprocess.DEVNULL)
        measured = ["evaluate", str(out), "--attention", "--world-images", str(options.images)]
        measured += ["--split", "test", *world, "--json", str(out / "attention.json")]
        subprocess.run([*MACNET, *measured], check=True, stdout=subprocess.DEVNULL)
    found = json.loads((out / "attention.json").read_text())
    masked = found["masking"]["accuracy"]
    done = {
        "variant": name,
        "seed": seed,
        "accuracy": round(100 * found["attention"]["answers"]["accuracy"], 2),
        "questions": found["attention"]["answers"]["total"],
        "plain": summarize(found["attention"]),
        "as_shown": found["as_shown"] and summarize(found["as_shown"]),
        "accuracy_without": {
            kind: round(100 * masked[kind]["accuracy"], 2) for kind in PAINTED_OUT
        },
    }
    print(json.dumps(done), flush=True)
    return done


def table(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Means over seeds, a line a variant."""
    for name in dict.fromkeys(done["variant"] for done in runs):
        own = [done for done in runs if done["variant"] == name]
        cells = [f"{name:32} acc {statistics.fmean(done['accuracy'] for done in own):5.1f}"]
        for reading in ("plain", "as_shown"):
            for key in ("referenced_pointed_at", "others_pointed_at", "peaks_referenced"):
                values = [done[reading][key] for done in own if done[reading]]
                known = [value for value in values if value is not None]
                cells.append(f"{key[:12]} {statistics.fmean(known):5.1f}" if known else key[:12])
        yield " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variant", action="append", required=True, metavar="NAME=FLAGS")
    parser.add_argument("--common", default="--preset pixels --recipe fast")
    parser.add_argument("--world", default="")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "attention")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    named = (given.partition("=") for given in options.variant)
    variants = {name: shlex.split(flags) for name, _, flags in named}
    todo = [(name, flags, seed) for seed in options.seeds for name, flags in variants.items()]
    with ThreadPoolExecutor(options.at_once) as pool:
        runs = [*pool.map(lambda each: run(options, *each), todo)]
    what = (
        "accuracy and attention of networks that were trained differently; percent, travel in bits"
    )
    settings = {"common": options.common, "world": options.world, "images": options.images}
    keep(options.out, what, **settings, variants=variants, runs=runs)
    print(*table(runs), sep="\n")


if __name__ == "__main__":
    main()
