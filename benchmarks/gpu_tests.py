"""Run the tests that need a GPU, and keep what came of them: CI has none, and cannot see them.

python benchmarks/gpu_tests.py --out results/gpu_tests.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
import triton

from record import keep


class Outcomes:
    """A plugin of pytest's that counts."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test that fails as it is set up, or torn down, has failed too.
        if report.when == "call" or report.outcome != "passed":
            self.counts[report.outcome] += 1
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.counts["failed"] += 1
            self.failed.append(report.nodeid)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_tests: there is no GPU here", file=sys.stderr)
        return 2
    outcomes, start = Outcomes(), time.monotonic()
    code = pytest.main(
        ["-m", "gpu", "--durations", "12", "-n", "8", "-p", "no:benchmark", "tests"], [outcomes]
    )
    keep(
        args.out,
        "the tests that need a GPU",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        triton=triton.__version__,
        cuda=torch.version.cuda,
        passed=outcomes.counts["passed"],
        failed=outcomes.counts["failed"],
        skipped=outcomes.counts["skipped"],
        seconds=round(time.monotonic() - start),
        failures=outcomes.failed,
    )
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
