"""A generated world as an endless source of batches: each image comes once, and no disk is used.

    if __name__ == "__main__":  # workers are spawned, and import this file again
        world, vocabulary = World(seed=1, width=128, height=128), Vocabulary.build(world_texts())
        with EndlessBatches(world, vocabulary, images=64, device="cuda", workers=15) as batches:
            for batch in batches:
                ...

Workers sample scenes, generate questions and encode them; a thread renders the images, on a CUDA
stream of its own, while a network is trained on earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.stream import Block, Stream
from macnet.clevr.world import World
from macnet.data.batches import Batch, BatchSource, GuidedBatch, batch_of
from macnet.data.block_encoder import BlockEncoder
from macnet.data.prefetch import Prefetcher
from macnet.data.question_arrays import UNKNOWN
from macnet.data.vocab import Vocabulary
from macnet.devices import upload, with_device_index


def to_batch(block: Block, words: int) -> Batch:
    """A block, encoded with so many words, as one batch on the device of its images."""
    device, first = block.images.device, block.number * len(block.questions)
    table = upload(block.questions, device)
    question_index = torch.arange(first, first + len(table), device=device)
    question_index.masked_fill_(table[:, -2] == UNKNOWN, UNKNOWN)  # without an answer: a filler
    return batch_of(block.images, table, words, question_index)


class EndlessBatches(BatchSource):
    """A split of a world in endless batches of `images` images with all their questions.

    It can be resumed anywhere: with the same settings and `position=batches.position`, another
    continues exactly as this one would have, whatever the number of workers. Of n data-parallel
    shards, the k-th takes the k-th block of every n, so that none takes what another does. A
    question's `question_index` is its image's index times the questions per image, plus its place
    among those. With `guided`, batches are of `GuidedBatch`, for which workers execute the programs
    of questions.

    A thread uses the device ahead of the caller: a CUDA graph must be captured with
    `capture_error_mode="thread_local"`, or the capture fails.
    """

    def __init__(
        self,
        world: World,
        vocabulary: Vocabulary,
        *,
        images: int,
        split: str = "train",
        device: torch.device | str = "cpu",
        workers: int = 0,
        shard: tuple[int, int] = (0, 1),
        position: int = 0,
        guided: bool = False,
    ) -> None:
        if images < 1 or position < 0:
            raise ValueError(f"there is no batch {position} of {images} images")
        device = with_device_index(device)
        self.position = position
        """Number of batches sampled so far."""
        self.steps = None
        """There are no epochs."""
        encoder = BlockEncoder.for_world(world, vocabulary)
        block, skipped = divmod(position * images, IMAGES_PER_BLOCK)
        self._stream = Stream(
            world,
            split=split,
            position=block,
            shard=shard,
            device=device,
            workers=workers,
            encode=encoder.with_references if guided else encoder,
        )
        # Enough batches are ready that none is missing while the next blocks are rendered.
        depth = max(2, 4 * IMAGES_PER_BLOCK // images)
        columns = (_columns(block, encoder.words) for block in self._stream)
        self._source = Prefetcher(_cut(columns, images, skipped), device, depth=depth)
        self._guided = guided

    def sample(self) -> tuple[Tensor, ...]:
        """The columns of the next batch; after them the objects and references of a guided one."""
        columns = next(self._source)
        self.position += 1
        return columns

    def gather(self, sample: tuple[Tensor, ...]) -> Batch:
        """The batch of these columns."""
        if not self._guided:
            return super().gather(sample)
        *columns, objects, references = sample
        return GuidedBatch.of(Batch(*columns), objects, references)

    def close(self) -> None:
        """End the workers and the thread."""
        # In this order: without workers, the thread has nothing to wait for.
        self._stream.close()
        self._source.close()


def _columns(block: Block, words: int) -> tuple[Tensor, ...]:
    """A block, encoded with so many words, as columns of a batch; with references if they are."""
    if not isinstance(block.questions, tuple):
        return to_batch(block, words)
    table, references = block.questions
    batch = to_batch(block._replace(questions=table), words)
    return *batch, block.objects, upload(references, block.images.device).long()


def _cut(
    blocks: Iterator[tuple[Tensor, ...]], images: int, skipped: int
) -> Iterator[tuple[Tensor, ...]]:
    """Columns of blocks as those of batches of so many images, without the first `skipped` ones."""

    def part(
        columns: tuple[Tensor, ...], start: int, stop: int | None = None
    ) -> tuple[Tensor, ...]:
        each = (len(column) // len(columns[0]) for column in columns)  # rows for an image
        return tuple(c[start * n : stop and stop * n] for c, n in zip(columns, each, strict=True))

    left: tuple[Tensor, ...] | None = None
    for new in blocks:
        if left is None:
            left = part(new, skipped)
        else:
            left = tuple(torch.cat(pair) for pair in zip(left, new, strict=True))
        while len(left[0]) >= images:
            yield part(left, 0, images)
            left = part(left, images)
