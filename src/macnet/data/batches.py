"""Batches of N images × G questions, from packed arrays to the device.

    batches = Batches(dataset, images=64, questions=10, seed=1, device="cuda")
    for batch in batches:  # without an end; an epoch is batches.steps of them
        ...

A batch is made in two steps, `batches.gather(batches.draw())`, for whoever captures a CUDA graph:
what is drawn is copied into the graph's inputs, and the gathering is a part of the graph.

Every question that counts comes once an epoch. An epoch draws, for each image, an order of its
questions, cuts it into groups of G, and draws an order of all groups. Where a group is short of
questions (CLEVR has images with nine), or the last step of groups, the holes are filled by
repetitions of which nothing is known: every batch has the same shape. Data parallel, an epoch is
shared by n shards: of each step's N·n groups, shard k takes the k-th of every n. Together they take
what one of N·n would, all in as many steps, and share the holes of the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from macnet.data.ahead import Ahead, settled
from macnet.data.dataset import Dataset, random_order
from macnet.data.questions import UNKNOWN, side_by_side
from macnet.data.vocab import PAD
from macnet.progress import progress

HOLE = -1  # in an order: no question here
ROOM = 0.5  # of a GPU's free memory, that images may take; the rest is for whoever learns
COPIED_AT_ONCE = 1 << 28  # bytes
THREADS = 4  # read a batch: one alone is slower than the way to the device


class Batch(NamedTuple):
    """N images and G questions about each, those of an image one after another: B = N·G."""

    images: Tensor
    """(N, H, W, 3) uint8 pictures, or (N, C, H, W) features."""
    questions: Tensor
    """(B, S) int64 words; 0 is padding."""
    lengths: Tensor
    """(B,) int64: words before the padding."""
    answers: Tensor
    """(B,) int64; UNKNOWN in a test split, and of a filler."""
    types: Tensor
    """(B,) int64: which of `questions.TYPES`, UNKNOWN where there is no program."""
    programs: Tensor
    """(B, L) int64: prefix form in ids of `vocab.PROGRAM_TOKENS`; 0 is padding."""
    which: Tensor
    """(B,) int64: which question of its set; UNKNOWN for a filler, which repeats another's words
    where a batch would have a hole, and has neither answer, type nor program."""


class Source(Protocol):
    """Whence batches of one shape come, without an end."""

    @property
    def position(self) -> int:
        """Batches drawn so far: all it takes to go on exactly."""

    @property
    def steps(self) -> int | None:
        """Batches in an epoch, if there are epochs."""

    def draw(self) -> tuple[Tensor, ...]:
        """What tells the next batch: tensors on the device, each time of the same shapes."""

    def gather(self, drawn: tuple[Tensor, ...]) -> Batch:
        """The batch that these tell, or others with their contents; a CUDA graph may hold it."""

    def close(self) -> None:
        """End whatever works ahead."""


def batch_of(images: Tensor, table: Tensor, words: int, which: Tensor) -> Batch:
    """Images, and rows of what `side_by_side` makes of questions with so many words."""
    table, filler = table.long(), which == UNKNOWN
    tokens, programs, rest = table.split((words, table.shape[1] - words - 3, 3), dim=1)
    lengths, answers, types = rest.T.contiguous()
    return Batch(
        images,
        tokens.contiguous(),
        lengths,
        answers.masked_fill(filler, UNKNOWN),
        types.masked_fill(filler, UNKNOWN),
        programs.masked_fill(filler[:, None], PAD),
        which,
    )


class Order:
    """Which questions come when: a function of the seed and the epoch alone."""

    def __init__(
        self, images: np.ndarray, *, group: int, groups_per_step: int, seed: int | None
    ) -> None:
        """`images`: which image each question is about. Without a seed nothing is shuffled."""
        self._images, self._seed = images.astype(np.uint64), seed
        _, count = np.unique(images, return_counts=True)
        # Questions sorted by image are cut into groups, each image's from a group of its own on.
        rank = np.arange(len(images)) - np.repeat(np.cumsum(count) - count, count)
        groups = -(-count // group)
        self._place = np.repeat(np.cumsum(groups) - groups, count) + rank // group, rank % group
        self._groups, self._group = int(groups.sum()), group
        self.steps = -(-self._groups // groups_per_step)
        """In an epoch."""
        self._shape = self.steps, groups_per_step, group

    def epoch(self, number: int) -> np.ndarray:
        """(steps, groups per step, group): questions, or HOLE."""
        order = np.full((self.steps * self._shape[1], self._group), HOLE, np.int64)
        if self._seed is None:
            order[self._place] = np.argsort(self._images, kind="stable")
        else:
            drawn = random_order(len(self._images), f"{self._seed}/questions/{number}")
            by_image = np.argsort(self._images[drawn], kind="stable")
            order[self._place] = drawn[by_image]
            shuffled = random_order(self._groups, f"{self._seed}/groups/{number}")
            order[: self._groups] = order[shuffled]
        return order.reshape(self._shape)


class Batches:
    """A dataset in batches, epoch after epoch.

    It may be stopped anywhere: with the same settings and `position=batches.position`, another
    goes on exactly as this one would have.

    `resident` puts all images on the device, so that a step copies nothing; without it they are
    read ahead and copied from pinned memory while the device works. If not told, it is done where
    they take less than half of the memory that is free. On a CPU they stay memory-mapped. Where a
    thread reads ahead, a CUDA graph must be captured as `Ahead` says.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        images: int,
        questions: int,
        seed: int | None,
        device: torch.device | str = "cpu",
        shard: tuple[int, int] = (0, 1),
        position: int = 0,
        resident: bool | None = None,
    ) -> None:
        k, n = shard
        if not 0 <= k < n or min(images, questions) < 1 or position < 0:
            raise ValueError(
                f"there is no batch {position} of {images}×{questions} in shard {shard}"
            )
        device = settled(device)
        self.position = position
        """Batches taken so far, over all epochs."""
        order = Order(
            dataset.rows[dataset.chosen], group=questions, groups_per_step=images * n, seed=seed
        )
        self.steps = order.steps
        """Batches in an epoch."""
        # What plans and reads does not know these batches, which can so be forgotten.
        plans = _plans(dataset, order, slice(k, None, n), device, position)
        self._asked = _Asked(dataset, images, questions, device)
        if device.type == "cuda" and not (
            _fits(dataset.images, device) if resident is None else resident
        ):
            self._images = None
            pinned = _Pinned(dataset.images, images, device)
            self._drawn: Iterator[tuple[Tensor, ...]] = Ahead(
                _read_ahead(plans, pinned, self._asked), device
            )
        else:
            self._images = _on_device(dataset.images, device)
            self._drawn = ((plan,) for _, plan in plans)

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self.position // self.steps

    def draw(self) -> tuple[Tensor, ...]:
        """What tells the next batch.

        Where the images are resident it is one tensor, (N + 2B,): the images' rows, and of the
        questions which words to take and `which` to be. Elsewhere it is the batch itself.
        """
        drawn = next(self._drawn)
        self.position += 1
        return drawn

    def gather(self, drawn: tuple[Tensor, ...]) -> Batch:
        """The batch. It waits for nothing and asks nothing of the host."""
        if self._images is None:
            return Batch(*drawn)
        (plan,) = drawn
        rows = plan[: self._asked.images]
        return self._asked.about(self._images.index_select(0, rows), plan)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self.gather(self.draw())

    def close(self) -> None:
        """End the thread that reads ahead, if there is one."""
        if isinstance(self._drawn, Ahead):
            self._drawn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- which, and their words ------------------------------------------------------------------


def _plans(
    dataset: Dataset, order: Order, mine: slice, device: torch.device, position: int
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """What each step of a shard takes, (N + 2B,): on the host, and on the device."""
    first, step = divmod(position, order.steps)
    # Not in a `with`: whoever forgets these would wait for the thread, perhaps for ever.
    thread = ThreadPoolExecutor(1)  # sorts while another epoch is taken
    ahead = thread.submit(order.epoch, first)
    for number in itertools.count(first + 1):
        host = _plan(dataset, ahead.result()[:, mine])
        ahead = thread.submit(order.epoch, number)
        there = torch.from_numpy(host).to(device)
        for k in range(step, order.steps):
            yield host[k], there[k]
        step = 0


def _plan(dataset: Dataset, order: np.ndarray) -> np.ndarray:
    """(steps, N, G) → (steps, N + 2B): rows of images, questions with holes filled, `which`."""
    hole = order == HOLE
    # A group that is short repeats its first question, one that is empty the set's first.
    filled = np.maximum(np.where(hole, order[:, :, :1], order), 0)
    questions = dataset.chosen[filled].astype(np.int64)
    rows = dataset.rows[questions[:, :, 0]].astype(np.int64)
    which = np.where(hole, UNKNOWN, questions)
    steps = len(order)
    return np.concatenate([rows, questions.reshape(steps, -1), which.reshape(steps, -1)], axis=1)


class _Asked:
    """The questions of a dataset, on the device."""

    def __init__(self, dataset: Dataset, images: int, questions: int, device: torch.device) -> None:
        self.images, self._count = images, images * questions  # in a batch
        self._words = dataset.questions.tokens.shape[1]
        self._table = torch.from_numpy(side_by_side(dataset.questions)).to(device)

    def about(self, images: Tensor, plan: Tensor) -> Batch:
        _, questions, which = plan.split((self.images, self._count, self._count))
        table = self._table.index_select(0, questions)
        return batch_of(_as_seen(images), table, self._words, which)


# --- images ----------------------------------------------------------------------------------


def _fits(images: np.ndarray, device: torch.device) -> bool:
    free, _ = torch.cuda.mem_get_info(device)
    return images.nbytes < ROOM * free


def _on_device(images: np.ndarray, device: torch.device) -> Tensor:
    """All of them; on a CPU they stay in the file."""
    on_disk = torch.from_numpy(images)
    if device.type == "cpu":
        return on_disk
    there = torch.empty_like(on_disk, device=device)
    rows = max(1, COPIED_AT_ONCE * len(images) // images.nbytes)
    with progress("to the device", "images", len(images)) as advance:
        for few, room in zip(on_disk.split(rows), there.split(rows), strict=True):
            room.copy_(few)
            advance(len(few))
    return there


def _read_ahead(
    plans: Iterator[tuple[np.ndarray, Tensor]], pinned: _Pinned, asked: _Asked
) -> Iterator[Batch]:
    for host, plan in plans:
        yield asked.about(pinned.take(host[: asked.images]), plan)


class _Pinned:
    """Images that are read into pinned memory and copied from there, two batches at a time."""

    def __init__(self, images: np.ndarray, count: int, device: torch.device) -> None:
        self._images, self._device = images, device
        like = torch.from_numpy(images[:1]).expand(count, *images.shape[1:])
        self._buffers = [torch.empty_like(like, pin_memory=True) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in range(2)]
        self._threads = ThreadPoolExecutor(THREADS)

    def take(self, rows: np.ndarray) -> Tensor:
        self._buffers.reverse()
        self._copied.reverse()
        buffer, copied = self._buffers[0], self._copied[0]
        copied.synchronize()  # of the batch before the last; it has long been
        parts = (np.array_split(part, THREADS) for part in (rows, buffer.numpy()))
        list(self._threads.map(self._read, *parts))
        images = buffer.to(self._device, non_blocking=True)
        copied.record()
        return images

    def _read(self, rows: np.ndarray, room: np.ndarray) -> None:
        # Clipping changes nothing, but without it numpy would fill a copy first.
        np.take(self._images, rows, axis=0, out=room, mode="clip")


def _as_seen(images: Tensor) -> Tensor:
    """Features are stored with their channels last, as convolutions like them best."""
    return images if images.dtype == torch.uint8 else images.permute(0, 3, 1, 2)
