"""A dataset in batches whose questions are new in every epoch, about the scenes of its images.

    if __name__ == "__main__":  # workers are spawned, and import this file again
        with FreshQuestionBatches(
            dataset, images=64, questions=10, seed=1, device="cuda", workers=15
        ) as batches:
            for batch in batches:  # without an end; an epoch is batches.steps of them
                ...

Each image comes once an epoch, from the first on with G questions that are generated for it. So a
network that sees few images many times cannot learn the answers to its questions by heart.

An epoch shuffles the images and cuts them into blocks of 250, of which the last is filled up with
the images of the first; workers generate the questions of a block, with balanced answers, and
encode them. All of it is a function of the seed and the epoch alone. With data parallelism, n
shards share an epoch: shard k takes the k-th of every n blocks. Of the last blocks, fewer than n,
it takes the k-th of every n images.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial
from itertools import count, tee
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from macnet.clevr.families import GROUPS, QUESTION_FAMILIES
from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.world import World, encode_questions
from macnet.data.batches import EMPTY_SLOT, Batch, BatchSource, batch_of
from macnet.data.block_encoder import BlockEncoder
from macnet.data.dataset import Dataset, random_order
from macnet.data.device_images import PinnedLoader, place_images
from macnet.data.prefetch import Prefetcher
from macnet.data.question_arrays import UNKNOWN
from macnet.devices import upload, with_device_index
from macnet.workers import map_in_order, pool

BLOCKS_AHEAD = 4  # for each worker: enough that none is idle while a batch is taken


def question_groups(dataset: Dataset) -> tuple[str, ...]:
    """The groups of families that a dataset's questions are of; none if they are not known."""
    families = np.unique(dataset.questions.families).tolist()
    groups = {QUESTION_FAMILIES[family].group for family in families if family != UNKNOWN}
    return tuple(group for group in GROUPS if group in groups)


class FreshQuestionBatches(BatchSource):
    """The images of a dataset's selected questions, epoch after epoch, with new questions.

    New questions are of the groups of families that the dataset's own are of. Where an image allows
    fewer of them, questions without labels take their place, as they do at the end of an epoch. A
    question's `question_index` is the row of its image times `questions`, plus its place among
    those about that image.

    It can be resumed anywhere: with the same settings and `position=batches.position`, another
    continues exactly as this one would have, whatever the number of workers. `resident` is that of
    `Batches`; a thread copies questions to the device, so a CUDA graph must be captured as
    `Prefetcher` says.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        images: int,
        questions: int,
        seed: int,
        device: torch.device | str = "cpu",
        workers: int = 0,
        shard: tuple[int, int] = (0, 1),
        position: int = 0,
        resident: bool | None = None,
    ) -> None:
        k, n = shard
        if not 0 <= k < n or min(images, questions) < 1 or position < 0:
            raise ValueError(
                f"there is no batch {position} of {images}×{questions} in shard {shard}"
            )
        if dataset.scenes is None:
            raise ValueError(f"{dataset.name}: the scenes of its images are not known")
        device = with_device_index(device)
        self.position = position
        """Number of batches sampled so far, over all epochs."""
        rows = np.unique(dataset.image_rows[dataset.selected]).astype(np.int64)
        self.steps: int = -(-len(rows) // (images * n))
        """Number of batches in an epoch."""
        # (Of the world only its questions are used: their seed, number and families.)
        world = World(seed, questions_per_image=questions, families=question_groups(dataset))
        encoder = BlockEncoder.for_world(world, dataset.vocabulary)
        self._questions, self._words = questions, encoder.words
        self._images = place_images(dataset.images, images, device, resident=resident)
        # What works ahead has no reference to this object, which can so be garbage-collected.
        self._resources = ExitStack()
        executor = self._resources.enter_context(pool(workers))
        blocks = _blocks(rows, self.steps * images, seed, shard, position * images)
        ahead = BLOCKS_AHEAD * workers
        parts = _ask(blocks, dataset.scenes, world, encoder, executor, ahead)
        loaded = _load(_cut(parts, images), self._images, device)
        self._samples = Prefetcher(loaded, device)
        weakref.finalize(self, self._resources.close)  # a program may exit without closing it

    def sample(self) -> tuple[Tensor, ...]:
        """What the next batch is gathered from.

        These are the rows (N,) of its images, its questions as a table (B, S + L + 3) of int16 and,
        if they are prefetched, its images.
        """
        sample = next(self._samples)
        self.position += 1
        return sample

    def gather(self, sample: tuple[Tensor, ...]) -> Batch:
        """The batch of a sample, without a synchronization with the host."""
        rows, table, *loaded = sample
        if isinstance(self._images, Tensor):
            loaded = [self._images.index_select(0, rows)]
        place = torch.arange(self._questions, device=rows.device)
        question_index = (self._questions * rows[:, None] + place).flatten()  # (B,)
        question_index.masked_fill_(table[:, -2] == UNKNOWN, UNKNOWN)  # without an answer: a filler
        return batch_of(loaded[0], table, self._words, question_index)

    def close(self) -> None:
        """End the workers and the thread."""
        # In this order: without workers, the thread has nothing to wait for.
        self._resources.close()
        self._samples.close()


# --- from the order of images to batches -----------------------------------------------------


class _Block(NamedTuple):
    """Images that questions are generated for together, to balance their answers."""

    epoch: int
    number: int
    rows: np.ndarray
    """(250,) int64: rows of the images in the dataset."""
    places: np.ndarray
    """The images of this shard, by their place in the block; EMPTY_SLOT for a filler."""


def _blocks(
    rows: np.ndarray, slots: int, seed: int, shard: tuple[int, int], skipped: int
) -> Iterator[_Block]:
    """The blocks of a shard, epoch after epoch, whose images fill so many slots in each.

    `skipped` is the number of slots, over all epochs, that were filled before.
    """
    (k, n), place = shard, np.arange(len(rows))
    block, whole = place // IMAGES_PER_BLOCK, len(rows) // (n * IMAGES_PER_BLOCK) * n
    mine = np.flatnonzero(np.where(block < whole, block, place) % n == k)
    filled = np.pad(mine, (0, slots - len(mine)), constant_values=EMPTY_SLOT)
    # A filler is of the same block as what comes before it.
    block_of = np.maximum.accumulate(filled.clip(min=0)) // IMAGES_PER_BLOCK
    first_epoch, first = divmod(skipped, slots)
    for epoch in count(first_epoch):
        order = rows[random_order(len(rows), f"{seed}/images/{epoch}")]
        for number in np.unique(block_of[first:]).tolist():
            start = number * IMAGES_PER_BLOCK
            places = filled[first:][block_of[first:] == number]
            places = np.where(places == EMPTY_SLOT, EMPTY_SLOT, places - start)
            # The first images of the epoch fill up its last block: its answers are to be balanced,
            # too, and one image alone may be one that nothing can be asked about.
            images = np.take(order, range(start, start + IMAGES_PER_BLOCK), mode="wrap")
            yield _Block(epoch, number, images, places)
        first = 0


_Part = tuple[np.ndarray, np.ndarray]
"""Rows of images (m,), and the table (m, G, S + L + 3) of the questions about them."""


def _ask(
    blocks: Iterable[_Block],
    scenes: np.ndarray,
    world: World,
    encoder: BlockEncoder,
    executor: Executor,
    ahead: int,
) -> Iterator[_Part]:
    """The questions of blocks; those of `ahead` of them are begun before they are needed."""
    blocks, begun = tee(blocks)
    tasks: Iterator[partial[Any]] = (
        partial(encode_questions, world, f"epoch {b.epoch}", b.number, scenes[b.rows], encoder)
        for b in begun
    )
    tables: Iterator[np.ndarray] = map_in_order(executor, operator.call, tasks, ahead)
    for block, table in zip(blocks, tables, strict=True):
        table = table.reshape(len(block.rows), world.questions_per_image, -1)
        chosen = block.places.clip(min=0)
        rows, table = block.rows[chosen], table[chosen]
        table[block.places == EMPTY_SLOT, :, -2] = UNKNOWN
        yield rows, table


def _cut(parts: Iterable[_Part], images: int) -> Iterator[_Part]:
    """Parts of any size as parts of so many images."""
    rest: _Part | None = None
    for part in parts:
        rows, table = part if rest is None else map(np.concatenate, zip(rest, part, strict=True))
        used = len(rows) - len(rows) % images
        for end in range(images, used + 1, images):
            yield rows[end - images : end], table[end - images : end]
        rest = rows[used:], table[used:]


def _load(
    parts: Iterable[_Part], images: Tensor | PinnedLoader, device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """What `sample` returns, on the device."""
    for part in parts:
        rows, table = (upload(array, device) for array in part)
        loaded = [images.load(part[0])] if isinstance(images, PinnedLoader) else []
        yield rows, table.flatten(0, 1), *loaded
