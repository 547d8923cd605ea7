"""The commands."""

import os

from macnet.cli.main import main

__all__ = ["main"]

# Between two parallel loops, torch's threads spin, lest they sleep when the next one begins. Beside
# any other work on the cores they then wait for one that is not even running, and get a sixth as
# much done (`benchmarks/threads.py`). OpenMP asks for this once, when torch is loaded, which no
# command has done yet; workers inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
