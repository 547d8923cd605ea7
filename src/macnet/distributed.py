"""Data-parallel training and evaluation under `torchrun`, over NCCL or Gloo.

Without `torchrun` there is one process, and nothing here does anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist

# The group is a default of its functions. The first step of Adam imports it: if there is a group by
# then, it is never freed, and a thread of Gloo's may crash the process as Python ends.
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from macnet.errors import InputError

TORCHRUN_VARIABLES = ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that `torchrun` sets beside RANK."""

PATIENCE = timedelta(hours=2)
"""One machine may pack its data for long after another is done; NCCL's default is 10 minutes."""

Made = TypeVar("Made")


@contextmanager
def process_group(device: str) -> Iterator[torch.device]:
    """Initialise the process group, if there is one; yields the device of this process."""
    if "RANK" not in os.environ:
        own = torch.device(device)
        if own.index is not None:  # streams, graphs and random numbers are of the current one
            torch.cuda.set_device(own)
        yield own
        return
    missing = [name for name in TORCHRUN_VARIABLES if name not in os.environ]
    if missing:
        raise InputError(
            f"RANK is set in the environment, as by torchrun, but {missing[0]} is not; start with "
            "torchrun, or unset RANK"
        )
    on_gpu = device.startswith("cuda")
    own = _gpu(int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device(device)
    store, number, count = next(rendezvous("env://"))
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=_fresh(store, number, count),
        rank=number,
        world_size=count,
        device_id=own if on_gpu else None,
        timeout=PATIENCE,
    )
    try:
        yield own
    finally:
        dist.destroy_process_group()


def _gpu(number: int) -> torch.device:
    """The GPU of this process."""
    if number >= (count := torch.cuda.device_count()):
        raise InputError(
            f"{number + 1} processes or more share this machine, which has {count} usable GPUs; "
            "start torchrun with a smaller --nproc-per-node"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _fresh(store: Any, number: int, count: int) -> Any:
    """The store under a prefix that no earlier process has used.

    When `torchrun` restarts processes it keeps the store, which still holds the addresses of the
    dead ones. So each process leaves a new token, and rank 0 answers it with its own: the prefix.
    """
    token = uuid4().hex
    if number > 0:
        store.set(f"process {number}", token)
        name = store.get(token).decode()  # waits for it
        store.set(f"{name}, {number}", "")
        return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    waiting = {*range(1, count)}
    while waiting:  # `torchrun` ends it if another process cannot start
        for other in waiting:
            if store.check([f"process {other}"]):  # perhaps of one that is dead: no harm
                store.set(store.get(f"process {other}").decode(), token)
        waiting = {other for other in waiting if not store.check([f"{token}, {other}"])}
        time.sleep(0.01)
    return dist.PrefixStore(token, store)  # type: ignore[attr-defined]


def size() -> int:
    """The number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_rank_zero() -> bool:
    """Whether this process is the one that writes files and prints."""
    return rank() == 0


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place; it can be captured in a CUDA graph."""
    if size() > 1:
        dist.all_reduce(tensor)
    return tensor


def all_gather(content: Any) -> list[Any]:
    """The objects of all processes, by rank."""
    if size() == 1:
        return [content]
    found: list[Any] = [None] * size()
    dist.all_gather_object(found, content)
    return found


def from_rank_zero(make: Callable[[], Made]) -> Made:
    """What rank 0 returns, on every process; an error of rank 0 is raised on all of them."""
    outcome: list[Any] = [None, None]  # what it returned, and its error
    if is_rank_zero():
        try:
            outcome[0] = make()
        except (InputError, OSError) as error:
            outcome[1] = error
    if size() > 1:
        dist.broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return cast(Made, outcome[0])
