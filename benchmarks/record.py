"""What every measurement is kept with: the command, the commit and the machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def _commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    # A copy of the tree on another machine may lack its history.
    return os.environ.get("MACNET_COMMIT") or git.stdout.strip()


COMMIT = _commit()
"""The commit that is measured: that of the start, for work may go on meanwhile."""


def keep(out: Path | None, what: str, **numbers: Any) -> None:
    """Print a measurement, and write it to a file of its own."""
    record = {
        "what": what,
        "command": shlex.join(["python", *sys.argv]),
        "commit": COMMIT,
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **numbers,
    }
    text = json.dumps(record, indent=1)
    if out:
        out.write_text(text + "\n")
    print(text)
