"""Processes for tests: fresh ones, warm ones, and several that work together as by `torchrun`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from typing import Any, TypeVar

import torch

from macnet.distributed import process_group

Result = TypeVar("Result")


def warm() -> ForkServerContext:
    """Whence processes come: of all that tests start, only the first has to wait for torch."""
    context = get_context("forkserver")
    # Optimisers import torch's compiler.
    context.set_forkserver_preload(["macnet.training.trainer", "torch._dynamo", "pytest"])
    return context


def in_processes(work: Callable[..., Result], *arguments: Any, count: int = 2) -> list[Result]:
    """What each makes of `work(*arguments)`; a function of a module, for they import it anew."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    with ProcessPoolExecutor(count, warm()) as pool:
        begun = [pool.submit(_join, rank, count, port, work, arguments) for rank in range(count)]
        return [each.result() for each in begun]


def loaded_with(modules: str, among: set[str]) -> set[str]:
    """Which of these a fresh Python has loaded once it has imported some modules."""
    check = f"import sys, {modules}; print(*{among} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def _join(
    rank: int, count: int, port: int, work: Callable[..., Result], arguments: tuple[Any, ...]
) -> Result:
    torch.set_num_threads(1)
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    who = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count}
    os.environ.update({name: str(value) for name, value in {**where, **who}.items()})
    with process_group("cpu"):
        return work(*arguments)
