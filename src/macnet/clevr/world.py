"""A world as a function of its seed: which scenes it holds, what is asked about them.

Scene i of a split comes from a generator seeded with "seed/split/scene/i", the questions of its
block b of 250 images from "seed/split/questions/b": nothing else decides, so any part of a world
can be made alone, anywhere, in any order. `Stream` is the same world without an end, for training:

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

from macnet.clevr.questions import BLOCK, FAMILIES, Asker, Question
from macnet.clevr.render import QUALITIES, all_visible, refuse_huge, render
from macnet.clevr.scene import Condition, Scene, sample_scenes
from macnet.clevr.table import SCENE, tabulate, to_scenes
from macnet.errors import InputError
from macnet.workers import pool

MIN_WIDTH, MIN_HEIGHT = 24, 16  # smaller, and hardly any scene would count as visible

# Blocks that are drawn together. A picture is promised to be the same only in the same company,
# so this is no setting; a GPU has more to do at once, and a CPU should not let one wait.
COMPANY = {"cpu": 1, "cuda": 4}
# Blocks in the making, to a worker: enough that none waits while the device draws.
BLOCKS_AHEAD = 4


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

Encode = Callable[[list[list[Question]]], Any]


class Block(NamedTuple):
    """250 images, and what is asked about them."""

    number: int
    """Its images are those of the split from 250 · number on."""
    scenes: np.ndarray
    """(250,): a table, which `to_scenes` turns into scenes."""
    images: torch.Tensor
    """(250, height, width, 3) uint8, on the device."""
    objects: torch.Tensor
    """(250, height, width) int8: which object a pixel shows, -1 for the ground."""
    questions: Any
    """For each image its questions; or what `encode` made of all of them."""


class Stream:
    """A split of a world in blocks, without an end.

    It may be stopped anywhere: a new stream with `position=stream.position` goes on exactly as the
    old one would have, to the byte. Neither depends on the number of workers. Several streams can
    share a split: with shard (k, n), a stream takes the k-th company of every n.

    Workers, if any, place objects and ask questions ahead of time. The device is used by the
    caller's thread alone, and only inside `next`, so it may capture graphs or train meanwhile.
    `encode` is called in the workers, with the questions of a block's images, and only what it
    returns is sent back. `compile` makes rendering on CUDA several times faster, after
    minutes of waiting.
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
        """Blocks taken so far."""

        self._shard, self._company = shard, COMPANY[self.device.type]
        self._resources = ExitStack()
        self._executor = self._resources.enter_context(pool(workers))
        self._ahead = BLOCKS_AHEAD * workers
        self._making: deque[_Making] = deque()
        self._drawn: deque[Block] = deque()
        self._rewind()
        weakref.finalize(self, self._resources.close)  # a program may end without closing it

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Block:
        try:
            if not self._drawn:
                self._drawn.extend(self._draw()[self.position % self._company :])
        except BaseException:
            self._rewind()
            raise
        self.position += 1
        return self._drawn.popleft()

    def _rewind(self) -> None:
        """Begin again at the position: a block that was interrupted cannot be gone on with."""
        self._making.clear()
        self._drawn.clear()
        self._begun = self.position - self.position % self._company

    def _draw(self) -> list[Block]:
        """The next blocks that keep each other company."""
        made = [self._take() for _ in range(self._company)]
        self._keep_busy()
        world = self.world
        images, objects, _ = render(
            np.concatenate([block.scenes for block in made]),
            world.width, world.height, world.quality, self.device, compile=self.compile,
        )  # fmt: skip
        parts = zip(made, images.split(BLOCK), objects.split(BLOCK), strict=True)
        return [
            Block(block.number, block.scenes, seen, shown, block.task.result())
            for block, seen, shown in parts
        ]

    def _take(self) -> _Making:
        """The next block, once it is made."""
        if not self._making:
            self._begin()
        self._keep_busy()
        # Waiting for this one alone, whatever else gets ready is looked at in one go.
        while not self._making[0].is_made:
            wait([self._making[0].task])
            self._keep_busy()
        return self._making.popleft()

    def _begin(self) -> None:
        company, k = divmod(self._begun, self._company)
        company = company * self._shard[1] + self._shard[0]
        number = company * self._company + k
        self._making.append(_Making(self.world, self.split, number, self.encode, self._executor))
        self._begun += 1

    def _keep_busy(self) -> None:
        """Look at what was proposed, and hand out what is to be done next, without waiting."""
        while len(self._making) < self._ahead:
            self._begin()
        proposed = [block for block in self._making if block.is_proposed]
        if proposed:
            proposals = [block.task.result() for block in proposed]
            world = self.world
            visible = np.array(
                all_visible(np.concatenate(proposals), world.width, world.height, self.device)
            )
            ends = np.cumsum([len(few) for few in proposals])
            for block, verdicts in zip(proposed, np.split(visible, ends[:-1]), strict=True):
                block.settle(verdicts)

    def close(self) -> None:
        """End the workers. A stream that is left by a `with` is closed."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._resources.__exit__(*error)


class _Making:
    """A block in the making: its scenes are proposed until all are visible, then asked about.

    A placement is costly to make twice but only the device can judge it; so the first round
    proposes one for each image, and every other round as many as all before, and one more, for
    those where an object was hidden. They are made again from the seed in whichever worker is
    free: few are needed, and no generator has to be kept or sent around.
    """

    def __init__(
        self, world: World, split: str, number: int, encode: Encode | None, executor: Executor
    ) -> None:
        self.number = number
        self.scenes = np.zeros(BLOCK, SCENE)
        self._of_world, self._encode, self._executor = (world, split), encode, executor
        self._hidden = np.arange(BLOCK)  # the images that have no scene yet
        self._rejected = 0  # placements of each of them
        self.task = self._hand_out()
        """What a worker is at: proposals, or at last the questions."""

    @property
    def is_proposed(self) -> bool:
        return len(self._hidden) > 0 and self.task.done()

    @property
    def is_made(self) -> bool:
        return len(self._hidden) == 0 and self.task.done()

    def settle(self, verdicts: np.ndarray) -> None:
        """Take, for each image, the first proposal in which all is visible."""
        proposals = self.task.result().reshape(len(self._hidden), -1)
        visible = verdicts.reshape(proposals.shape)
        first, good = visible.argmax(1), visible.any(1)
        self.scenes[self._hidden[good]] = proposals[good, first[good]]
        self._hidden = self._hidden[~good]
        self._rejected += proposals.shape[1]
        self.task = self._hand_out()

    def _hand_out(self) -> Future[Any]:
        submit, first = self._executor.submit, BLOCK * self.number
        if len(self._hidden):
            indices = (first + self._hidden).tolist()
            return submit(_propose, *self._of_world, indices, self._rejected)
        return submit(_ask, *self._of_world, self.number, self.scenes, self._encode)


def _propose(world: World, split: str, indices: Sequence[int], rejected: int) -> np.ndarray:
    """For each scene its placements after so many that hid an object: as many, and one more."""
    proposals: list[Scene] = []
    for index in indices:
        placed: list[Scene] = []

        def look(scenes: list[Scene], placed: list[Scene] = placed) -> list[bool]:
            placed += scenes
            return [len(placed) == 2 * rejected + 1]

        sample_scenes([_scene_rng(world, split, index)], look, world.condition)
        proposals += placed[rejected:]
    return tabulate(proposals)


def _ask(
    world: World, split: str, block: int, scenes: np.ndarray, encode: Encode | None
) -> list[list[Question]] | Any:
    asked = make_questions(world, split, block, to_scenes(scenes))
    return asked if encode is None else encode(asked)
