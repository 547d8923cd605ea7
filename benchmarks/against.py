"""A benchmark of this checkout beside the same benchmark of an earlier commit, in turns.

    python benchmarks/against.py 482aa84 --runs 5 --out results/render_speed_cpu.json \\
        -- render.py --device cpu --scenes 60

Machines differ by more than a factor of two, so a speed says little without that of the code before
on the same machine. Each commit runs its own script; what both report "per" something is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import keep

ROOT = Path(__file__).parent.parent


def run(checkout: Path, script: list[str]) -> dict[str, float]:
    """The `rates` that a benchmark of a checkout prints, by their place in its record."""
    name, *args = script
    command = [sys.executable, str(checkout / "benchmarks" / name), *args]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    printed = subprocess.run(
        command, env=environment, cwd=checkout, check=True, capture_output=True, text=True
    ).stdout
    return dict(rates(json.loads(printed[printed.index("{\n") :])))


def rates(record: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """All numbers per second or per image, such as ("rows.0.questions_per_second", 9696)."""
    if isinstance(record, dict | list):
        for key, value in record.items() if isinstance(record, dict) else enumerate(record):
            yield from rates(value, f"{place}.{key}".removeprefix("."))
    elif "_per_" in place and isinstance(record, int | float):
        yield place, record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--runs", type=int, default=5, help="of each commit, in turns")
    parser.add_argument("--out", type=Path)
    parser.add_argument("script", nargs="+", help="a script of benchmarks/, with its arguments")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(before), args.commit], check=True)
        try:
            runs = [(run(before, args.script), run(ROOT, args.script)) for _ in range(args.runs)]
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)
    old, new = runs[-1]
    compared = {}
    for place in new:
        rows: dict[str, Any] = {"now": [after[place] for _, after in runs]}
        rows["median"] = statistics.median(rows["now"])
        if place in old:
            rows["before"] = [earlier[place] for earlier, _ in runs]
            rows["ratio"] = round(rows["median"] / statistics.median(rows["before"]), 2)
        compared[place] = rows
    keep(args.out, f"{' '.join(args.script)}, beside {args.commit}", before=args.commit, **compared)


if __name__ == "__main__":
    main()
