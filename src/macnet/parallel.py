"""Several processes that train as one, each with its share of every batch.

`torchrun` starts them and tells each who it is; without it there is one, and nothing here does
anything. Machines with GPUs talk by NCCL, others by Gloo.
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
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from macnet.errors import InputError

TOLD = ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Beside RANK, by `torchrun`, in the environment."""

PATIENCE = timedelta(hours=2)
"""One machine may still pack its data when another has long done so; NCCL would wait for 10 minutes
only. Of processes that end, `torchrun` knows at once."""

Made = TypeVar("Made")


@contextmanager
def together(device: str) -> Iterator[torch.device]:
    """Join the processes of this run; gives the device that is this one's own."""
    if "RANK" not in os.environ:
        own = torch.device(device)
        if own.index is not None:  # streams, graphs and random numbers are of the current one
            torch.cuda.set_device(own)
        yield own
        return
    missing = [name for name in TOLD if name not in os.environ]
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
    """This process's own, among those of its machine."""
    if number >= (count := torch.cuda.device_count()):
        raise InputError(
            f"{number + 1} processes or more share this machine, which has {count} usable GPUs; "
            "start torchrun with a smaller --nproc-per-node"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _fresh(store: Any, number: int, count: int) -> Any:
    """The store, by a name in it that none has used before.

    When `torchrun` starts processes again it keeps the store, where the addresses of the dead still
    are. So each leaves a new token, in answer to which the first tells its own: that is the name.
    """
    token = uuid4().hex
    if number > 0:
        store.set(f"process {number}", token)
        name = store.get(token).decode()  # waits for it
        store.set(f"{name}, {number}", "")
        return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    waiting = {*range(1, count)}
    while waiting:  # `torchrun` ends it if another cannot come
        for other in waiting:
            if store.check([f"process {other}"]):  # perhaps of one that is dead: no harm
                store.set(store.get(f"process {other}").decode(), token)
        waiting = {other for other in waiting if not store.check([f"{token}, {other}"])}
        time.sleep(0.01)
    return dist.PrefixStore(token, store)  # type: ignore[attr-defined]


def size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return rank() == 0


def sum_over_all(tensor: Tensor) -> Tensor:
    """In place. A captured CUDA graph may hold it."""
    if size() > 1:
        dist.all_reduce(tensor)
    return tensor


def gathered(content: Any) -> list[Any]:
    """What each process has, in their order."""
    if size() == 1:
        return [content]
    found: list[Any] = [None] * size()
    dist.all_gather_object(found, content)
    return found


def from_first(make: Callable[[], Made]) -> Made:
    """What the first process makes; what it fails on, all fail on, and none waits for it."""
    made: Made | None = None
    failure: Exception | None = None
    if is_first():
        try:
            made = make()
        except (InputError, OSError) as error:
            failure = error
    if size() > 1:
        carried: list[Any] = [made, failure]
        dist.broadcast_object_list(carried)
        made, failure = carried
    if failure is not None:
        raise failure
    return cast(Made, made)
