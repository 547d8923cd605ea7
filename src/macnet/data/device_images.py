"""Where a dataset's images are while batches are made of them: on the device, if it has room."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from macnet.progress import progress

MAX_MEMORY_SHARE = 0.5  # of a GPU's free memory for images; the rest is for training
COPY_BYTES = 1 << 28  # copied to the device at once
READ_THREADS = 4  # that read a batch: one alone is slower than the copy to the device


def place_images(
    images: np.ndarray, count: int, device: torch.device, *, resident: bool | None
) -> Tensor | PinnedLoader:
    """All images on the device, or what loads `count` of them at once.

    If `resident` is None, they are on the device where they take less than half of its free memory.
    For a CPU they stay memory-mapped.
    """
    if device.type == "cpu":
        return torch.from_numpy(images)
    if _fits(images, device) if resident is None else resident:
        return _copy_to_device(images, device)
    return PinnedLoader(images, count, device)


def _fits(images: np.ndarray, device: torch.device) -> bool:
    free, _ = torch.cuda.mem_get_info(device)
    return images.nbytes < MAX_MEMORY_SHARE * free


def _copy_to_device(images: np.ndarray, device: torch.device) -> Tensor:
    on_disk = torch.from_numpy(images)
    copy = torch.empty_like(on_disk, device=device)
    rows = max(1, COPY_BYTES * len(images) // images.nbytes)
    with progress("to the device", "images", len(images)) as advance:
        for source, target in zip(on_disk.split(rows), copy.split(rows), strict=True):
            target.copy_(source)
            advance(len(source))
    return copy


class PinnedLoader:
    """Reads images into pinned memory and copies them to the device, with two buffers in turn."""

    def __init__(self, images: np.ndarray, count: int, device: torch.device) -> None:
        self._images, self._device = images, device
        like = torch.from_numpy(images[:1]).expand(count, *images.shape[1:])
        self._buffers = [torch.empty_like(like, pin_memory=True) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in range(2)]
        self._threads = ThreadPoolExecutor(READ_THREADS)

    def load(self, rows: np.ndarray) -> Tensor:
        """The images with these row numbers, `count` of them, on the device."""
        self._buffers.reverse()
        self._copied.reverse()
        buffer, copied = self._buffers[0], self._copied[0]
        copied.synchronize()  # the copy of the batch before the last has long ended
        parts = (np.array_split(part, READ_THREADS) for part in (rows, buffer.numpy()))
        list(self._threads.map(self._read, *parts))
        images = buffer.to(self._device, non_blocking=True)
        copied.record()
        return images

    def _read(self, rows: np.ndarray, out: np.ndarray) -> None:
        # Clipping changes nothing, but without it numpy would fill a copy first.
        np.take(self._images, rows, axis=0, out=out, mode="clip")
