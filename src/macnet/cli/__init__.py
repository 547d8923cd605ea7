"""The commands."""

import os

from macnet.cli.main import main

__all__ = ["main"]

# Between two parallel loops, torch's threads spin, lest they sleep when the next one begins. Beside
# any other work on the cores they then wait for one that is not even running, and hardly anything
# gets done (`benchmarks/threads.py`). Not to spin at all (OMP_WAIT_POLICY=passive) is no cure: a
# network learned half as fast on an idle machine. To spin for microseconds, not milliseconds, costs
# little in either. GNU's OpenMP asks for this once, when torch is loaded, which no command has done
# yet; workers inherit it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
