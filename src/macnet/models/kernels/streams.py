"""Work that does not depend on other work, on CUDA streams of its own; elsewhere, in turn.

    with (side := SideStream(images.device)):
        knowledge = encode(images)
    question = read(words)  # meanwhile
    side.join(knowledge)

A step has a thousand small kernels, each of which leaves most of a GPU idle. Side by side they take
less time, in a captured CUDA graph too; autograd runs the backward pass on the same streams.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Self

import torch
from torch import Tensor

MAIN_PRIORITY, SIDE_PRIORITY = -2, -1
"""Priorities of the stream that a network is trained on and of those beside it, which have larger
kernels. What renders images has 0: it runs in the gaps that are left."""


@functools.cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream:
    """Always the same few streams: memory that was freed on one is for that one to use again."""
    return torch.cuda.Stream(device, priority=SIDE_PRIORITY)


class SideStream:
    """A context whose kernels run beside those that follow it, until they are joined.

    A weight that is used both in the context and outside of it has gradients on two streams, of
    which autograd warns: give each its own.
    """

    def __init__(self, device: torch.device, number: int = 0) -> None:
        """`number`: which of the side streams to use; different ones run beside each other."""
        self._main = self._side = None
        if device.type == "cuda":
            self._main = torch.cuda.current_stream(device)
            self._side = _stream(self._main.device, number)

    def __enter__(self) -> Self:
        if self._side is not None and self._main is not None:
            self._side.wait_stream(self._main)
        # (`torch.cuda.stream(None)` does nothing, but first it starts up a GPU that is there.)
        self._context = nullcontext() if self._side is None else torch.cuda.stream(self._side)
        self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)

    def join(self, *results: Tensor) -> None:
        """Let what follows wait for the context, and use these tensors that it computed."""
        if self._side is not None and self._main is not None:
            self._main.wait_stream(self._side)
            for tensor in results:
                tensor.record_stream(self._main)  # or its memory could be given away too early


def run_on_streams(tasks: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Run tasks, none of which uses what another computes."""
    sides = [SideStream(device, number) for number in range(len(tasks))]
    for side, task in zip(sides, tasks, strict=True):
        with side:
            task()
    for side in sides:
        side.join()
