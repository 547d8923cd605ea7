"""Blocks of a generated world without an end, for training.

if __name__ == "__main__":  # workers are spawned, and import this file again
    with Stream(World(seed=1, width=224, height=224), device="cuda", workers=15) as stream:
        for number, scenes, images, objects, questions in stream:
            ...
"""

from __future__ import annotations

import weakref
from collections import deque
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from macnet.clevr.backend import fastest_backend
from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.render import VisibilityTest, render
from macnet.clevr.scene_array import SCENE_DTYPE
from macnet.clevr.world import Encode, World, encode_questions, sample_candidates
from macnet.devices import with_device_index
from macnet.workers import pool

# Pending blocks per worker: enough that none is idle while the device renders.
BLOCKS_AHEAD = 4


class Block(NamedTuple):
    """250 images with their scenes and questions."""

    number: int
    """Index of the block; its first image has the index 250 · number in the split."""
    scenes: np.ndarray
    """(250,) of `SCENE_DTYPE`; `array_to_scenes` converts them."""
    images: torch.Tensor
    """(250, height, width, 3) uint8, on the device."""
    objects: torch.Tensor
    """(250, height, width) int8: index of the object at each pixel, -1 for the ground."""
    questions: Any
    """The questions about each image, or what `encode` made of them."""


class Stream:
    """Iterator over the blocks of a split, without an end.

    A new stream with `position=stream.position` continues exactly where an old one stopped. Blocks
    do not depend on the number of workers. Several streams can share a split: with shard (k, n), a
    stream yields every n-th block from the k-th on.

    Workers, if any, sample objects and generate questions ahead of time. The device is used by the
    caller's thread alone, and only inside `next`, so it may capture graphs or train meanwhile. But
    a new stream compiles kernels: make none while a graph is captured. `encode` is called in the
    workers, with the questions of a block, and only what it returns is sent back.
    """

    def __init__(
        self,
        world: World,
        *,
        split: str = "train",
        position: int = 0,
        shard: tuple[int, int] = (0, 1),
        device: torch.device | str = "cpu",
        workers: int = 0,
        encode: Encode | None = None,
    ) -> None:
        if position < 0 or not 0 <= shard[0] < shard[1]:
            raise ValueError(f"there is no block {position} of shard {shard[0]} of {shard[1]}")
        self.world, self.split, self.device = world, split, with_device_index(device)
        self.encode = encode
        self.position = position
        """Number of blocks yielded so far."""

        self._shard = shard
        self._backend = fastest_backend(self.device, world.quality)
        self._visible_backend = fastest_backend(self.device)  # the test knows no quality
        self._resources = ExitStack()
        self._executor = self._resources.enter_context(pool(workers))
        self._ahead = BLOCKS_AHEAD * workers
        self._pending: deque[_PendingBlock] = deque()
        self._tests: deque[_Test] = deque()  # that the device has not finished, in their order
        self._restart()
        weakref.finalize(self, self._resources.close)  # a program may exit without closing it
        if self._backend == "triton":  # while the workers start
            from macnet.clevr.kernels.launch import compile_kernels

            compile_kernels(world.width, world.height, self.device)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Block:
        try:
            block = self._render_next()
        except BaseException:
            self._restart()
            raise
        self.position += 1
        return block

    def _restart(self) -> None:
        """Start again at the position: interrupted blocks cannot be continued."""
        self._pending.clear()
        self._tests.clear()
        self._started = self.position

    def _render_next(self) -> Block:
        ready, world = self._next_ready(), self.world
        self._schedule()
        images, objects, _ = render(
            ready.scenes,
            *(world.width, world.height, world.quality),
            self.device,
            backend=self._backend,
        )
        return Block(ready.number, ready.scenes, images, objects, ready.task.result())

    def _next_ready(self) -> _PendingBlock:
        """Wait for the next block, whose scenes are placed and questions generated."""
        if not self._pending:
            self._start_block()
        self._schedule()
        # Only this block is waited for; others that get ready meanwhile are tested together.
        while not (block := self._pending[0]).is_ready:
            if block.test is not None:
                block.test.result()
            else:
                block.task.exception()  # not `wait`, which misses that a task was cancelled
            self._schedule()
        return self._pending.popleft()

    def _start_block(self) -> None:
        k, n = self._shard
        number = self._started * n + k
        self._pending.append(
            _PendingBlock(self.world, self.split, number, self.encode, self._executor)
        )
        self._started += 1

    def _schedule(self) -> None:
        """Test the visibility of sampled scenes, and submit the next tasks, without waiting."""
        while len(self._pending) < self._ahead:
            self._start_block()
        while self._tests and self._tests[0].test.is_done:
            self._tests.popleft().accept()
        untested = [block for block in self._pending if block.needs_test]
        if untested:
            candidates = [block.task.result() for block in untested]
            test = VisibilityTest(
                np.concatenate(candidates),
                *(self.world.width, self.world.height),
                self.device,
                backend=self._visible_backend,
            )
            for block in untested:
                block.test = test
            self._tests.append(_Test(test, untested, np.cumsum([*map(len, candidates)])))

    def close(self) -> None:
        """Stop the workers. Leaving a `with` block closes a stream, too."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._resources.__exit__(*error)


class _PendingBlock:
    """A block whose scenes are sampled until all objects are visible, and then its questions.

    Sampling runs in workers, but only the device can test visibility. The first round samples one
    candidate for each image; every other round, for the images that have no visible scene yet, as
    many candidates as all rounds before, and one more. Workers sample again from the seed: few
    images need that, and no state of a generator has to be kept or sent.
    """

    def __init__(
        self, world: World, split: str, number: int, encode: Encode | None, executor: Executor
    ) -> None:
        self.number = number
        self.scenes = np.zeros(IMAGES_PER_BLOCK, SCENE_DTYPE)
        self._source, self._encode, self._executor = (world, split), encode, executor
        self._unplaced = np.arange(IMAGES_PER_BLOCK)  # images that have no scene yet
        self._rejected = 0  # candidates of each of them
        self.task = self._submit()
        """The current task of a worker: it samples candidates or, last, generates questions."""
        self.test: VisibilityTest | None = None
        """The test of candidates that is under way."""

    @property
    def needs_test(self) -> bool:
        return len(self._unplaced) > 0 and self.test is None and self.task.done()

    @property
    def is_ready(self) -> bool:
        return len(self._unplaced) == 0 and self.task.done()

    def accept_visible(self, verdicts: np.ndarray) -> None:
        """For each image, accept the first candidate in which all objects are visible."""
        candidates = self.task.result().reshape(len(self._unplaced), -1)
        visible = verdicts.reshape(candidates.shape)
        first, good = visible.argmax(1), visible.any(1)
        self.scenes[self._unplaced[good]] = candidates[good, first[good]]
        self._unplaced = self._unplaced[~good]
        self._rejected += candidates.shape[1]
        self.test, self.task = None, self._submit()

    def _submit(self) -> Future[Any]:
        submit, first = self._executor.submit, IMAGES_PER_BLOCK * self.number
        if len(self._unplaced):
            indices = (first + self._unplaced).tolist()
            return submit(sample_candidates, *self._source, indices, self._rejected)
        return submit(encode_questions, *self._source, self.number, self.scenes, self._encode)


class _Test(NamedTuple):
    """A test under way of the candidates of some blocks, which end at these places."""

    test: VisibilityTest
    blocks: list[_PendingBlock]
    ends: np.ndarray

    def accept(self) -> None:
        parts = np.split(self.test.result(), self.ends[:-1])
        for block, verdicts in zip(self.blocks, parts, strict=True):
            block.accept_visible(verdicts)
