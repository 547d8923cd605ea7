"""A world as a function of its seed: which scenes it holds, what is asked about them.

Scene i of a split comes from a generator seeded with "seed/split/scene/i", the questions of its
block b of 250 images from "seed/split/questions/b": nothing else decides, so any part of a world
can be made alone, anywhere, in any order. `Stream` is the same world without an end, for training:

    if __name__ == "__main__":  # workers are spawned, and import this file again
        with Stream(World(seed=1, width=224, height=224), 256, device="cuda", workers=16) as stream:
            for scenes, images, objects, questions in stream:
                ...
"""

from __future__ import annotations

import random
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Self, get_args

import torch

from macnet.clevr.questions import BLOCK, FAMILIES, Asker, Question
from macnet.clevr.render import QUALITIES, all_visible, refuse_huge, render
from macnet.clevr.scene import Condition, Scene, sample_scenes
from macnet.errors import InputError
from macnet.workers import pool

MIN_WIDTH, MIN_HEIGHT = 24, 16  # smaller, and hardly any scene would count as visible


@dataclass(frozen=True)
class World:
    """All that decides what a world holds: equal worlds are equal to the byte (on one device)."""

    seed: int
    condition: Condition | None = None
    width: int = 480
    height: int = 320
    quality: str = "fast"
    questions_per_image: int = 10

    def __post_init__(self) -> None:
        if self.width < MIN_WIDTH or self.height < MIN_HEIGHT:
            raise InputError(
                f"--size is {self.width}x{self.height}; it must be at least "
                f"{MIN_WIDTH}x{MIN_HEIGHT}, or far objects fall between the pixels"
            )
        refuse_huge(self.width, self.height)
        if not 1 <= self.questions_per_image <= FAMILIES:
            raise InputError(
                f"--questions-per-image is {self.questions_per_image}; it must lie between 1 and "
                f"{FAMILIES}, for each question of an image comes from a different family"
            )
        if self.quality not in QUALITIES:
            known = ", ".join(QUALITIES)
            raise InputError(f"--quality is {self.quality!r}; it must be one of {known}")
        if self.condition not in (None, *get_args(Condition)):
            raise InputError(f"--condition is {self.condition!r}; it must be A or B")

    def named(self, split: str) -> str:
        """A split as the release names it: CoGenT's carry their condition ("trainA")."""
        return split + (self.condition or "")


# --- the pure functions ----------------------------------------------------------------------


def make_scenes(
    world: World, split: str, indices: Sequence[int], device: torch.device | str
) -> list[Scene]:
    """The scenes of a split with these indices."""
    return sample_scenes(
        [_scene_rng(world, split, i) for i in indices],
        lambda scenes: all_visible(scenes, world.width, world.height, device),
        world.condition,
    )


def make_questions(
    world: World, split: str, block: int, scenes: Sequence[Scene]
) -> list[list[Question]]:
    """What is asked about a block's scenes, which must be all of them from its first on."""
    asker = Asker(random.Random(f"{world.seed}/{world.named(split)}/questions/{block}"))
    return [asker.ask(scene, world.questions_per_image) for scene in scenes]


def _scene_rng(world: World, split: str, index: int) -> random.Random:
    return random.Random(f"{world.seed}/{world.named(split)}/scene/{index}")


# --- the stream ------------------------------------------------------------------------------


class Batch(NamedTuple):
    scenes: list[Scene]
    images: torch.Tensor  # (N, height, width, 3) uint8, on the device
    objects: torch.Tensor  # (N, height, width) int8: which object a pixel shows, -1 for the ground
    questions: list[list[Any]]  # for each image, its questions, or what `encode` made of them


class Stream:
    """A split of a world in batches of so many images, without an end.

    It may be stopped anywhere: a new stream with `start=stream.position` goes on exactly as the
    old one would have, to the byte. Neither depends on the number of workers.

    Workers, if any, place objects and ask questions ahead of time. The device is used by the
    caller's thread alone, and only inside `next`, so it may capture graphs or train meanwhile.
    `encode` is called in the workers on each question, and only what it returns is sent back: a
    tokenizer there takes that work, and most of the traffic, from the caller's process.
    `compile` makes rendering on CUDA several times faster, after two minutes' wait or so.
    """

    def __init__(
        self,
        world: World,
        images_per_batch: int,
        *,
        split: str = "train",
        start: int = 0,
        device: torch.device | str = "cpu",
        workers: int = 0,
        encode: Callable[[Question], Any] | None = None,
        compile: bool = False,
    ) -> None:
        # Pictures are promised to be the same only within the same batch, hence whole batches.
        if start < 0 or start % images_per_batch:
            raise ValueError(
                f"start is {start}; it must be a multiple of {images_per_batch} images per batch"
            )
        self.world, self.split, self.device = world, split, device
        self.encode, self.compile = encode, compile
        self.images_per_batch = images_per_batch
        self.position = start
        """The index of the next image, in the split."""

        self._resources = ExitStack()
        self._executor = self._resources.enter_context(pool(workers))
        self._ahead = 2 * workers  # each worker has a block at hand and one to go on with
        self._blocks: deque[_Block] = deque()
        self._ready: deque[_Made] = deque()
        self._rewind()
        weakref.finalize(self, self._resources.close)  # a program may end without closing it

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        try:
            while len(self._ready) < self.images_per_batch:
                self._ready.extend(self._take_block())
            self._keep_busy()
        except BaseException:
            self._rewind()
            raise
        made = list(islice(self._ready, self.images_per_batch))
        scenes, questions = [scene for scene, _ in made], [asked for _, asked in made]
        world = self.world
        images, objects, _ = render(
            scenes, world.width, world.height, world.quality, self.device, compile=self.compile
        )
        # Only now: had rendering failed, the next call would give this batch again.
        for _ in made:
            self._ready.popleft()
        self.position += self.images_per_batch
        return Batch(scenes, images, objects, questions)

    def _rewind(self) -> None:
        """Begin again at the position: a block that was interrupted cannot be gone on with."""
        self._blocks.clear()
        self._ready.clear()
        self._next_block, self._skip = divmod(self.position, BLOCK)

    def _take_block(self) -> list[_Made]:
        if not self._blocks:
            self._begin_block()
        self._keep_busy()
        front = self._blocks[0]
        while front.made is None:
            unfinished = [block.waits_for for block in self._blocks if block.made is None]
            wait(unfinished, return_when=FIRST_COMPLETED)
            self._keep_busy()
        self._blocks.popleft()
        made, self._skip = front.made[self._skip :], 0
        return made

    def _keep_busy(self) -> None:
        """Hand out what is to be done next, without waiting for anything."""
        while len(self._blocks) < self._ahead:
            self._begin_block()
        for block in self._blocks:
            block.advance()

    def _begin_block(self) -> None:
        self._blocks.append(_Block(self._make_block(self._next_block)))
        self._next_block += 1

    def _make_block(self, block: int) -> Generator[Future[Any], Any, list[_Made]]:
        """The life of a block: it yields whatever result of a worker it has to wait for."""
        world, split, submit = self.world, self.split, self._executor.submit
        indices = range(BLOCK * block, BLOCK * (block + 1))
        rejections = dict.fromkeys(indices, 0)
        scenes: dict[int, Scene] = {}
        while rejections:
            proposals = yield submit(_propose, world, split, rejections)
            verdicts = all_visible(proposals, world.width, world.height, self.device)
            for i, scene, visible in zip(list(rejections), proposals, verdicts, strict=True):
                rejections[i] += 1
                if visible:
                    scenes[i] = scene
                    del rejections[i]
        in_order = [scenes[i] for i in indices]
        questions = yield submit(_ask, world, split, block, in_order, self.encode)
        return list(zip(in_order, questions, strict=True))

    def close(self) -> None:
        """End the workers. A stream that is left by a `with` is closed."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.__exit__(kind, error, traceback)


_Made = tuple[Scene, list[Any]]  # a scene, and what is asked about it


class _Block:
    """A block that is being made, step by step."""

    def __init__(self, life: Generator[Future[Any], Any, list[_Made]]) -> None:
        self._life = life
        self.waits_for = next(life)
        self.made: list[_Made] | None = None

    def advance(self) -> None:
        """Take every step that need not wait."""
        while self.made is None and self.waits_for.done():
            try:
                self.waits_for = self._life.send(self.waits_for.result())
            except StopIteration as end:
                self.made = end.value


def _propose(world: World, split: str, rejections: Mapping[int, int]) -> list[Scene]:
    """Scenes by index, as they stand after so many of their placements hid an object.

    A placement is cheap to make and only the device can judge it; so a rejected one is made again
    from the seed in whichever worker is free, and no generator has to be kept or sent around.
    """

    def proposal(index: int, rejected: int) -> Scene:
        verdicts = iter([False] * rejected + [True])
        return sample_scenes(
            [_scene_rng(world, split, index)], lambda _: [next(verdicts)], world.condition
        )[0]

    return [proposal(index, rejected) for index, rejected in rejections.items()]


def _ask(
    world: World,
    split: str,
    block: int,
    scenes: list[Scene],
    encode: Callable[[Question], Any] | None,
) -> list[list[Any]]:
    asked = make_questions(world, split, block, scenes)
    return asked if encode is None else [[encode(q) for q in of_image] for of_image in asked]
