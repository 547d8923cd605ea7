"""Worker processes that never outlive their parent.

They import torch only if their work does, or the script that starts them: it takes seconds and
memory, for each of them.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

DIED = (
    "a worker process died: it was killed, perhaps for memory, or the script that started it does "
    'its work outside of `if __name__ == "__main__":`'
)
Task = TypeVar("Task")
Result = TypeVar("Result")


class InProcess(Executor):
    """An executor without workers: it runs each task at once, in this process."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def default_workers(device: torch.device | str) -> int:
    """As many processes as there are cores, and at most 8 on a GPU."""
    # The cores this process may use, where the system can tell; a shared machine has more.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    # More processes than this on one GPU only take memory from each other.
    return min(cores, 8) if str(device).startswith("cuda") else cores


@contextmanager
def pool(workers: int) -> Iterator[Executor]:
    """An executor of so many processes, which end when the block is left or its process dies.

    The processes are spawned, not forked: a forked one cannot use CUDA.
    """
    if workers == 0:
        yield InProcess()
        return
    spawn = multiprocessing.get_context("spawn")
    # Only this process holds the writing end. Once it is closed, by us or by the kernel after a
    # kill -9, the workers read the end of the stream and go; an executor alone would leave them.
    reading, writing = spawn.Pipe(duplex=False)
    executor = ProcessPoolExecutor(
        workers, mp_context=spawn, initializer=_prepare_worker, initargs=(reading,)
    )
    try:
        _start_workers(executor, workers)
        yield executor
    except BaseException as error:
        writing.close()  # nobody waits for what the workers are doing
        if isinstance(error, BrokenProcessPool):
            error.args = (DIED,)
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        writing.close()
        reading.close()


def map_in_order(
    executor: Executor, do: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Iterator[Result]:
    """The results of tasks in their order; `ahead` of them are submitted before they are needed."""
    begun: deque[Future[Result]] = deque()
    for task in tasks:
        begun.append(executor.submit(do, task))
        if len(begun) > ahead:  # more would only fill the memory
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def _start_workers(executor: Executor, workers: int) -> None:
    """Start the workers with SIGINT blocked, which children inherit.

    Ctrl-C reaches every process of a terminal, but only this one decides what to do about it.
    """
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for _ in range(workers):
            executor.submit(os.getpid)  # an executor starts a process when it is given work
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)


def _prepare_worker(lifeline: Connection) -> None:
    # The processes share the cores already. Torch reads this when it is imported, if it ever is.
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    # Garbage collection over a million small objects without cycles would take a third of a
    # worker's time.
    gc.freeze()
    gc.set_threshold(200_000)

    def end_with_parent() -> None:
        try:
            lifeline.recv()
        except EOFError:
            os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
