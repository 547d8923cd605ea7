"""Prefetching: items of an iterator are made ahead, by a thread and on a CUDA stream of its own."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor

from macnet.devices import with_device_index

Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])
_Item = tuple[Tensors, torch.cuda.Event | None]  # when it is ready, for other streams to wait
POLL_SECONDS = 0.1  # after which a waiting thread checks whether it was closed


class Prefetcher(Generic[Tensors]):
    """The items of an iterator, up to `depth` of them made before they are asked for.

    On CUDA the thread works on a stream of its own, so that its kernels and copies overlap those of
    the caller, who gets tensors that are ready on the caller's stream. A CUDA graph that is
    captured meanwhile needs `capture_error_mode="thread_local"`.
    """

    def __init__(
        self, items: Iterator[Tensors], device: torch.device | str, *, depth: int = 2
    ) -> None:
        self._device = with_device_index(device)
        stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._queue: queue.Queue[_Item[Tensors] | BaseException] = queue.Queue(depth)
        self._closed = threading.Event()
        # The thread has references to the parts of this object but not to the object, which can so
        # be garbage-collected.
        thread = threading.Thread(
            target=_make,
            args=(items, stream, self._queue, self._closed),
            name="prefetch",
            daemon=True,
        )
        self.close = weakref.finalize(self, _end, thread, self._closed)
        """End the thread; what it has prefetched is lost."""
        thread.start()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Tensors:
        if not self.close.alive:
            raise StopIteration
        found = self._queue.get()
        if isinstance(found, BaseException):
            self.close()
            raise found
        item, ready = found
        if ready is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(ready)
            for tensor in item:
                tensor.record_stream(stream)  # or its memory could be given away too early
        return item


def _make(
    items: Iterator[Tensors],
    stream: torch.cuda.Stream | None,
    results: queue.Queue[_Item[Tensors] | BaseException],
    closed: threading.Event,
) -> None:
    def hand_over(result: _Item[Tensors] | BaseException) -> None:
        while not closed.is_set():
            try:
                return results.put(result, timeout=POLL_SECONDS)
            except queue.Full:
                pass

    try:
        with torch.cuda.stream(stream) if stream else nullcontext():
            for item in items:
                hand_over((item, stream.record_event() if stream else None))
                if closed.is_set():
                    return
        hand_over(StopIteration())
    except BaseException as error:
        hand_over(error)


def _end(thread: threading.Thread, closed: threading.Event) -> None:
    closed.set()
    if thread is not threading.current_thread():
        thread.join()
