"""Batches of N images × G questions, from packed arrays to the device.

    batches = Batches(dataset, images=64, questions=10, seed=1, device="cuda")
    for batch in batches:  # without an end; an epoch is batches.steps of them
        ...

A batch is made in two steps, `batches.gather(batches.sample())`, for CUDA graphs: what `sample`
returns is copied into the graph's inputs, and `gather` is a part of the graph.

Every selected question comes once an epoch. An epoch shuffles the questions of each image, cuts
them into groups of G, and shuffles all groups. Where a group has fewer questions (CLEVR has images
with nine), or the last step has fewer groups, the empty slots are filled by repeated questions
without labels, so that every batch has the same shape. With data parallelism, an epoch is shared by
n shards: of each step's N·n groups, shard k takes the k-th of every n. Together they take what one
shard with N·n images would, all in as many steps, and share the empty slots of the last.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from macnet.data.dataset import Dataset, random_order
from macnet.data.device_images import PinnedLoader, place_images
from macnet.data.prefetch import Prefetcher
from macnet.data.question_arrays import UNKNOWN, to_table
from macnet.data.vocab import PAD
from macnet.devices import with_device_index

EMPTY_SLOT = -1  # in an order: no question here


class Batch(NamedTuple):
    """N images and G questions about each, those of an image one after another: B = N·G."""

    images: Tensor
    """(N, H, W, 3) uint8 pixels, or (N, C, H, W) features."""
    questions: Tensor
    """(B, S) int64 word ids; 0 is padding."""
    lengths: Tensor
    """(B,) int64: number of words before the padding."""
    answers: Tensor
    """(B,) int64; UNKNOWN if unlabelled or a filler, OUT_OF_VOCABULARY if not an id."""
    types: Tensor
    """(B,) int64: ids in the format's question types, or UNKNOWN."""
    programs: Tensor
    """(B, L) int64: prefix form in ids of the format's program tokens; 0 is padding."""
    question_index: Tensor
    """(B,) int64: index of the question in its dataset; UNKNOWN for a filler, which repeats another
    question's words in an empty slot, and has neither answer, type nor program."""


class GuidedBatch(Batch):
    """A batch that says which objects its questions refer to, and where in its images these are.

    Both are attributes, and no elements of the tuple: a batch like any other for whoever does not
    ask for them.
    """

    objects: Tensor
    """(N, H, W) int8: index of the object at each pixel, -1 for the ground."""
    references: Tensor
    """(B,) int64: the objects that a question refers to as a bitmask, bit i for object i; 0 for a
    filler."""

    def _replace(self, **columns: Any) -> Self:
        return self.of(Batch(*self)._replace(**columns), self.objects, self.references)

    @classmethod
    def of(cls, batch: Batch, objects: Tensor, references: Tensor) -> Self:
        """A batch with what is known of its objects."""
        made = cls(*batch)
        made.objects, made.references = objects, references
        return made


class BatchSource(ABC):
    """An endless source of batches of one shape."""

    position: int
    """Number of batches sampled so far: all that is needed to resume exactly."""
    steps: int | None
    """Number of batches in an epoch; None if there are no epochs."""

    @abstractmethod
    def sample(self) -> tuple[Tensor, ...]:
        """The next batch, or what it is gathered from: tensors of the same shapes each time."""

    def gather(self, sample: tuple[Tensor, ...]) -> Batch:
        """The batch of a sample, or of a copy of it; this may be captured in a CUDA graph."""
        return Batch(*sample)

    @abstractmethod
    def close(self) -> None:
        """End threads and processes that work ahead; leaving a `with` does so too."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        return self.gather(self.sample())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def batch_of(images: Tensor, table: Tensor, words: int, question_index: Tensor) -> Batch:
    """A batch of packed images and of rows of `to_table`, whose first columns are so many words."""
    if images.dtype != torch.uint8:  # features: their channels are last in memory for speed
        images = images.permute(0, 3, 1, 2)
    table, filler = table.long(), question_index == UNKNOWN
    tokens, programs, rest = table.split((words, table.shape[1] - words - 3, 3), dim=1)
    lengths, answers, types = rest.T.contiguous()
    return Batch(
        images,
        tokens.contiguous(),
        lengths,
        answers.masked_fill(filler, UNKNOWN),
        types.masked_fill(filler, UNKNOWN),
        programs.masked_fill(filler[:, None], PAD),
        question_index,
    )


class Order:
    """The order of questions: a function of the seed and the epoch alone."""

    def __init__(
        self, images: np.ndarray, *, group: int, groups_per_step: int, seed: int | None
    ) -> None:
        """`images`: the image of each question. Without a seed nothing is shuffled."""
        self._images, self._seed = images.astype(np.uint64), seed
        _, count = np.unique(images, return_counts=True)
        # Questions sorted by image are cut into groups, each image's from a group of its own on.
        rank = np.arange(len(images)) - np.repeat(np.cumsum(count) - count, count)
        groups = -(-count // group)
        self._place = np.repeat(np.cumsum(groups) - groups, count) + rank // group, rank % group
        self._groups, self._group = int(groups.sum()), group
        self.steps = -(-self._groups // groups_per_step)
        """Number of steps in an epoch."""
        self._shape = self.steps, groups_per_step, group

    def epoch(self, number: int) -> np.ndarray:
        """(steps, groups per step, group): indices of questions, or EMPTY_SLOT."""
        order = np.full((self.steps * self._shape[1], self._group), EMPTY_SLOT, np.int64)
        if self._seed is None:
            order[self._place] = np.argsort(self._images, kind="stable")
        else:
            questions = random_order(len(self._images), f"{self._seed}/questions/{number}")
            by_image = np.argsort(self._images[questions], kind="stable")
            order[self._place] = questions[by_image]
            shuffled = random_order(self._groups, f"{self._seed}/groups/{number}")
            order[: self._groups] = order[shuffled]
        return order.reshape(self._shape)


class Batches(BatchSource):
    """A dataset in batches, epoch after epoch.

    It can be resumed anywhere: with the same settings and `position=batches.position`, another
    continues exactly as this one would have.

    `resident` puts all images on the device, so that a step copies nothing; without it they are
    prefetched and copied from pinned memory while the device works. If None, they are resident
    where they take less than half of the free memory. On a CPU they stay memory-mapped. With
    prefetching, a CUDA graph must be captured as `Prefetcher` says.
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
        device = with_device_index(device)
        self.position = position
        """Number of batches sampled so far, over all epochs."""
        order = Order(
            dataset.image_rows[dataset.selected],
            group=questions,
            groups_per_step=images * n,
            seed=seed,
        )
        self.steps: int = order.steps
        """Number of batches in an epoch."""
        # What plans and loads has no reference to this object, which can so be garbage-collected.
        plans = _plans(dataset, order, slice(k, None, n), device, position)
        table = self._table = _QuestionTable(dataset, images, questions, device)
        source = self._images = place_images(dataset.images, images, device, resident=resident)
        self._samples: Iterator[tuple[Tensor, ...]]
        if isinstance(source, PinnedLoader):
            loaded = (table.batch(source.load(host[:images]), plan) for host, plan in plans)
            self._samples = Prefetcher(loaded, device)
        else:
            self._samples = ((plan,) for _, plan in plans)

    def sample(self) -> tuple[Tensor, ...]:
        """The next batch if images are prefetched, else what it is gathered from.

        The latter is one tensor, (N + 2B,): the rows of the images and of the questions, and
        `question_index`.
        """
        sample = next(self._samples)
        self.position += 1
        return sample

    def gather(self, sample: tuple[Tensor, ...]) -> Batch:
        """The batch of a sample, without a synchronization with the host."""
        if isinstance(self._images, PinnedLoader):
            return super().gather(sample)
        (plan,) = sample
        rows = plan[: self._table.images]
        return self._table.batch(self._images.index_select(0, rows), plan)

    def close(self) -> None:
        """End the thread that prefetches, if there is one."""
        if isinstance(self._samples, Prefetcher):
            self._samples.close()


# --- questions -------------------------------------------------------------------------------


def _plans(
    dataset: Dataset, order: Order, mine: slice, device: torch.device, position: int
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """The plan (N + 2B,) of each step of a shard: on the host, and on the device."""
    first, step = divmod(position, order.steps)
    # Not in a `with`: garbage collection of this generator would wait for the thread.
    thread = ThreadPoolExecutor(1)  # sorts the next epoch during this one
    ahead = thread.submit(order.epoch, first)
    for number in itertools.count(first + 1):
        host = _plan(dataset, ahead.result()[:, mine])
        ahead = thread.submit(order.epoch, number)
        on_device = torch.from_numpy(host).to(device)
        for k in range(step, order.steps):
            yield host[k], on_device[k]
        step = 0


def _plan(dataset: Dataset, order: np.ndarray) -> np.ndarray:
    """(steps, N, G) → (steps, N + 2B): image rows, questions and fillers, `question_index`."""
    empty = order == EMPTY_SLOT
    # A short group repeats its first question, an empty one the dataset's first.
    filled = np.maximum(np.where(empty, order[:, :, :1], order), 0)
    questions = dataset.selected[filled].astype(np.int64)
    rows = dataset.image_rows[questions[:, :, 0]].astype(np.int64)
    question_index = np.where(empty, UNKNOWN, questions)
    steps = len(order)
    return np.concatenate(
        [rows, questions.reshape(steps, -1), question_index.reshape(steps, -1)], axis=1
    )


class _QuestionTable:
    """The questions of a dataset, as one table on the device."""

    def __init__(self, dataset: Dataset, images: int, questions: int, device: torch.device) -> None:
        self.images, self._count = images, images * questions  # in a batch
        self._words = dataset.questions.tokens.shape[1]
        self._table = torch.from_numpy(to_table(dataset.questions)).to(device)

    def batch(self, images: Tensor, plan: Tensor) -> Batch:
        _, questions, question_index = plan.split((self.images, self._count, self._count))
        table = self._table.index_select(0, questions)
        return batch_of(images, table, self._words, question_index)
