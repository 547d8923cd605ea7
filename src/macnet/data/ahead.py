"""Work that is done ahead of its use, by a thread of its own and on a CUDA stream of its own."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])
MOMENT = 0.1  # seconds until a waiting thread looks whether anybody still wants what it has


class Ahead(Generic[Tensors]):
    """What an iterator yields, a few items of it made before they are asked for.

    On CUDA the thread works on a stream of its own, so its kernels and copies overlap those of the
    caller, who gets tensors that are ready on the caller's stream. Whoever captures a CUDA graph
    meanwhile must do so with `capture_error_mode="thread_local"`.
    """

    def __init__(
        self, items: Iterator[Tensors], device: torch.device | str, *, depth: int = 2
    ) -> None:
        self._device = settled(device)
        stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._made: queue.Queue[_Made[Tensors] | BaseException] = queue.Queue(depth)
        self._unwanted = threading.Event()
        # The thread knows the parts of this object but not the object, which can so be forgotten.
        thread = threading.Thread(
            target=_make,
            args=(items, stream, self._made, self._unwanted),
            name="ahead",
            daemon=True,
        )
        self.close = weakref.finalize(self, _end, thread, self._unwanted)
        """End the thread; what it has made is lost."""
        thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Tensors:
        if not self.close.alive:
            raise StopIteration
        made = self._made.get()
        if isinstance(made, BaseException):
            self.close()
            raise made
        if made.ready is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(made.ready)
            for tensor in made.item:
                tensor.record_stream(stream)  # or its memory could be given away too early
        return made.item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def settled(device: torch.device | str) -> torch.device:
    """The device that this thread means: to another thread, "cuda" may be another GPU."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device


class _Made(NamedTuple, Generic[Tensors]):
    item: Tensors
    ready: torch.cuda.Event | None


def _make(
    items: Iterator[Tensors],
    stream: torch.cuda.Stream | None,
    made: queue.Queue[_Made[Tensors] | BaseException],
    unwanted: threading.Event,
) -> None:
    def hand_over(result: _Made[Tensors] | BaseException) -> None:
        while not unwanted.is_set():
            try:
                return made.put(result, timeout=MOMENT)
            except queue.Full:
                pass

    try:
        with torch.cuda.stream(stream) if stream else nullcontext():
            for item in items:
                hand_over(_Made(item, stream.record_event() if stream else None))
                if unwanted.is_set():
                    return
        hand_over(StopIteration())
    except BaseException as error:
        hand_over(error)


def _end(thread: threading.Thread, unwanted: threading.Event) -> None:
    unwanted.set()
    if thread is not threading.current_thread():
        thread.join()
