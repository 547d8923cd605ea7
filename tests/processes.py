"""Processes for tests: fresh ones, warm ones, and several that work together as by `torchrun`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import Pipe, forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, TypeVar

import torch

from macnet.cli import main
from macnet.distributed import process_group

Result = TypeVar("Result")


def warm() -> ForkServerContext:
    """Whence processes come: of all that tests start, only the first has to wait for torch."""
    context = get_context("forkserver")
    # Optimisers import torch's compiler.
    context.set_forkserver_preload(["macnet.training.trainer", "torch._dynamo", "pytest"])
    # Now, and not when a pool first starts a worker with SIGINT blocked: all others inherit that.
    forkserver.ensure_running()
    return context


def in_processes(work: Callable[..., Result], *arguments: Any, count: int = 2) -> list[Result]:
    """What each makes of `work(*arguments)`; a function of a module, for they import it anew."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    with ProcessPoolExecutor(count, warm()) as pool:
        begun = [pool.submit(_join, rank, count, port, work, arguments) for rank in range(count)]
        return [each.result() for each in begun]


class Command:
    """`macnet` in a process of its own, which does not wait for torch; its workers do.

    It is what tests need of a `subprocess.Popen`.
    """

    def __init__(self, *arguments: str | Path, unread: bool = False) -> None:
        """`unread`: nobody reads its output, from the start."""
        readers, writers = zip(*(Pipe(duplex=False) for _ in range(2)), strict=True)
        self.stdout, self.stderr = (os.fdopen(os.dup(end.fileno())) for end in readers)
        if unread:
            self.stdout.close()
            readers[0].close()
        self._process = warm().Process(target=_command, args=(writers, [*map(str, arguments)]))
        self._process.start()
        for end in (*readers, *writers):
            end.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.join()
        self.stdout.close()
        self.stderr.close()

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int | None:
        """Its exit status, once it has ended."""
        self._process.join(timeout)
        return self.poll()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def _command(streams: tuple[Connection, Connection], arguments: list[str]) -> None:
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)  # by line
    # A fresh process has its own keeper of resources, and does not share that of the tests.
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
    sys.exit(main(arguments))


def _join(
    rank: int, count: int, port: int, work: Callable[..., Result], arguments: tuple[Any, ...]
) -> Result:
    torch.set_num_threads(1)
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    who = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count}
    os.environ.update({name: str(value) for name, value in {**where, **who}.items()})
    with process_group("cpu"):
        return work(*arguments)
