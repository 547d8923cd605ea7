"""A generated world as a function of its seed: its scenes, images and questions.

Scene i of a split is sampled from a generator seeded with "seed/split/scene/i", the questions of
its block b of 250 images from one with "seed/split/questions/b". So any part of a world can be
generated alone and in any order. `Stream` generates blocks without an end, for training:

    if __name__ == "__main__":  # workers are spawned, and import this file again
        with Stream(World(seed=1, width=224, height=224), device="cuda", workers=15) as stream:
            for number, scenes, images, objects, questions in stream:
                ...
"""

from __future__ import annotations

import random
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import torch

from macnet.clevr.families import GROUPS, QuestionFamily, families_of
from macnet.clevr.questions import (
    IMAGES_PER_BLOCK,
    Question,
    QuestionGenerator,
    TemplateInstance,
)
from macnet.clevr.render import all_visible, check_image_size, check_quality, render
from macnet.clevr.scene import MAX_OBJECTS, MIN_OBJECTS, Condition, Scene, sample_scenes
from macnet.clevr.scene_array import (
    SCENE_DTYPE,
    array_to_indices,
    array_to_scenes,
    scenes_to_array,
)
from macnet.errors import InputError
from macnet.workers import pool

RELEASED_SIZE = (480, 320)  # width and height of CLEVR's images
QUESTIONS_PER_IMAGE = 10
MIN_SIZE = (24, 16)  # in smaller images, hardly any scene would pass the test of visibility

# Blocks that are rendered together. Images are reproducible only in the same group, so this is not
# a setting; a GPU should have more to do at once, and a CPU should not delay the first block.
BLOCKS_PER_RENDER = {"cpu": 1, "cuda": 4}
# Pending blocks per worker: enough that none is idle while the device renders.
BLOCKS_AHEAD = 4


@dataclass(frozen=True)
class World:
    """The settings of a generated world, which determine every byte of it (on a given device)."""

    seed: int
    condition: Condition | None = None
    width: int = RELEASED_SIZE[0]
    height: int = RELEASED_SIZE[1]
    quality: str = "fast"
    questions_per_image: int = QUESTIONS_PER_IMAGE
    num_objects: tuple[int, int] = (MIN_OBJECTS, MAX_OBJECTS)
    """The smallest and the largest number of objects in a scene; fewer make an easier world."""
    families: tuple[str, ...] = ()
    """Groups of question families, such as "zero_hop"; none stands for all, as in CLEVR."""

    def __post_init__(self) -> None:
        check_image_size(self.width, self.height, smallest=MIN_SIZE)
        check_quality(self.quality)
        fewest, most = self.num_objects
        if not 1 <= fewest <= most <= MAX_OBJECTS:
            raise InputError(
                f"`num_objects` is {fewest} {most}; it must be the smallest and the largest number "
                f"of objects in a scene, from 1 to {MAX_OBJECTS}"
            )
        for group in self.families:
            if group not in GROUPS:
                raise InputError(f"`families` has {group!r}; known are {', '.join(GROUPS)}")
        count = len(self.question_families)
        if not 1 <= self.questions_per_image <= count:
            raise InputError(
                f"`questions_per_image` is {self.questions_per_image}; it must lie between 1 and "
                f"{count}, because each question of an image is of a different family"
            )
        if self.condition not in (None, *get_args(Condition)):
            raise InputError(f"`condition` is {self.condition!r}; it must be A or B")

    @property
    def question_families(self) -> tuple[QuestionFamily, ...]:
        """The families that its questions are of."""
        return families_of(self.families)

    @property
    def deviations(self) -> dict[str, list[Any]]:
        """The settings in which its scenes and questions are not CLEVR's, which files mention."""
        own = {"num_objects": self.num_objects, "families": self.families}
        clevr = {"num_objects": (MIN_OBJECTS, MAX_OBJECTS), "families": ()}
        return {name: list(value) for name, value in own.items() if value != clevr[name]}

    def to_record(self) -> dict[str, Any]:
        """All settings, for the metadata of a run; deviations from CLEVR only if there are any."""
        own = {"num_objects", "families"}
        return {k: v for k, v in vars(self).items() if k not in own} | self.deviations

    def __str__(self) -> str:
        name = f"world {self.seed}"
        if "num_objects" in self.deviations:
            name += " of {} to {} objects".format(*self.num_objects)
        if "families" in self.deviations:
            name += f" with questions of {', '.join(self.families)}"
        return name

    def split_name(self, split: str) -> str:
        """Released name of a split: in CoGenT, with the condition ("trainA")."""
        return split + (self.condition or "")


# --- parts of a world ------------------------------------------------------------------------


def generate_scenes(
    world: World, split: str, indices: Sequence[int], device: torch.device | str
) -> list[Scene]:
    """The scenes of a split with these indices."""
    return sample_scenes(
        [_scene_rng(world, split, i) for i in indices],
        lambda scenes: all_visible(scenes, world.width, world.height, device),
        world.condition,
        world.num_objects,
    )


def generate_questions(
    world: World, split: str, block: int, scenes: Sequence[Scene]
) -> list[list[Question]]:
    """The questions about each scene of a block; its first scene must come first."""
    generator = _question_generator(world, split, block)
    return [generator.generate(scene, world.questions_per_image) for scene in scenes]


def instantiate_questions(
    world: World, split: str, block: int, scenes: np.ndarray
) -> list[list[TemplateInstance]]:
    """The questions of `generate_questions`, not written out, for an array of scenes."""
    generator = _question_generator(world, split, block)
    count = world.questions_per_image
    return [generator.instantiate(index, count) for index in array_to_indices(scenes)]


def _question_generator(world: World, split: str, block: int) -> QuestionGenerator:
    seed = f"{world.seed}/{world.split_name(split)}/questions/{block}"
    return QuestionGenerator(random.Random(seed), world.question_families)


def _scene_rng(world: World, split: str, index: int) -> random.Random:
    return random.Random(f"{world.seed}/{world.split_name(split)}/scene/{index}")


# --- the stream ------------------------------------------------------------------------------

Encode = Callable[[list[list[TemplateInstance]]], Any]
"""Converts the questions about each image of a block, which are not written out, in the workers."""


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
    stream yields every n-th group of blocks from the k-th on.

    Workers, if any, sample objects and generate questions ahead of time. The device is used by the
    caller's thread alone, and only inside `next`, so it may capture graphs or train meanwhile.
    `encode` is called in the workers, with the questions of a block, and only what it returns is
    sent back. `compile` makes rendering on CUDA several times faster, but takes minutes at first.
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
        compile: bool = False,
    ) -> None:
        if position < 0 or not 0 <= shard[0] < shard[1]:
            raise ValueError(f"there is no block {position} of shard {shard[0]} of {shard[1]}")
        self.world, self.split, self.device = world, split, torch.device(device)
        self.encode, self.compile = encode, compile
        self.position = position
        """Number of blocks yielded so far."""

        self._shard, self._group = shard, BLOCKS_PER_RENDER[self.device.type]
        self._resources = ExitStack()
        self._executor = self._resources.enter_context(pool(workers))
        self._ahead = BLOCKS_AHEAD * workers
        self._pending: deque[_PendingBlock] = deque()
        self._rendered: deque[Block] = deque()
        self._restart()
        weakref.finalize(self, self._resources.close)  # a program may exit without closing it

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Block:
        try:
            if not self._rendered:
                self._rendered.extend(self._render_next()[self.position % self._group :])
        except BaseException:
            self._restart()
            raise
        self.position += 1
        return self._rendered.popleft()

    def _restart(self) -> None:
        """Start again at the position: interrupted blocks cannot be continued."""
        self._pending.clear()
        self._rendered.clear()
        self._started = self.position - self.position % self._group

    def _render_next(self) -> list[Block]:
        """Render the next group of blocks."""
        ready = [self._next_ready() for _ in range(self._group)]
        self._schedule()
        world = self.world
        images, objects, _ = render(
            np.concatenate([block.scenes for block in ready]),
            world.width, world.height, world.quality, self.device, compile=self.compile,
        )  # fmt: skip
        parts = zip(images.split(IMAGES_PER_BLOCK), objects.split(IMAGES_PER_BLOCK), strict=True)
        return [
            Block(block.number, block.scenes, *part, block.task.result())
            for block, part in zip(ready, parts, strict=True)
        ]

    def _next_ready(self) -> _PendingBlock:
        """Wait for the next block, whose scenes are placed and questions generated."""
        if not self._pending:
            self._start_block()
        self._schedule()
        # Only this block is waited for; others that get ready meanwhile are checked together.
        while not self._pending[0].is_ready:
            wait([self._pending[0].task])
            self._schedule()
        return self._pending.popleft()

    def _start_block(self) -> None:
        group, k = divmod(self._started, self._group)
        number = (group * self._shard[1] + self._shard[0]) * self._group + k
        self._pending.append(
            _PendingBlock(self.world, self.split, number, self.encode, self._executor)
        )
        self._started += 1

    def _schedule(self) -> None:
        """Check the visibility of sampled scenes, and submit the next tasks, without waiting."""
        while len(self._pending) < self._ahead:
            self._start_block()
        unchecked = [block for block in self._pending if block.needs_check]
        if unchecked:
            candidates = [block.task.result() for block in unchecked]
            ends = np.cumsum([len(few) for few in candidates])
            size = self.world.width, self.world.height
            visible = np.array(all_visible(np.concatenate(candidates), *size, self.device))
            for block, verdicts in zip(unchecked, np.split(visible, ends[:-1]), strict=True):
                block.accept_visible(verdicts)

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

    @property
    def needs_check(self) -> bool:
        return len(self._unplaced) > 0 and self.task.done()

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
        self.task = self._submit()

    def _submit(self) -> Future[Any]:
        submit, first = self._executor.submit, IMAGES_PER_BLOCK * self.number
        if len(self._unplaced):
            indices = (first + self._unplaced).tolist()
            return submit(_sample_candidates, *self._source, indices, self._rejected)
        return submit(_encode_questions, *self._source, self.number, self.scenes, self._encode)


def _sample_candidates(
    world: World, split: str, indices: Sequence[int], rejected: int
) -> np.ndarray:
    """For each image, the `rejected + 1` candidates that follow the rejected ones."""
    candidates: list[Scene] = []
    for index in indices:
        sampled: list[Scene] = []

        def is_last(scenes: list[Scene], sampled: list[Scene] = sampled) -> list[bool]:
            sampled += scenes
            return [len(sampled) == 2 * rejected + 1]

        rng = _scene_rng(world, split, index)
        sample_scenes([rng], is_last, world.condition, world.num_objects)
        candidates += sampled[rejected:]
    return scenes_to_array(candidates)


def _encode_questions(
    world: World, split: str, block: int, scenes: np.ndarray, encode: Encode | None
) -> list[list[Question]] | Any:
    if encode is None:
        return generate_questions(world, split, block, array_to_scenes(scenes))
    return encode(instantiate_questions(world, split, block, scenes))
