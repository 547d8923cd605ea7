"""A generated world as a function of its seed: its scenes, images and questions.

Scene i of a split is sampled from a generator seeded with "seed/split/scene/i", the questions of
its block b of 250 images from one with "seed/split/questions/b". So any part of a world can be
generated alone and in any order. Nothing here needs torch, which workers would take seconds to
import, except for the images and for what is visible in them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from macnet.clevr.families import GROUPS, QuestionFamily, families_of
from macnet.clevr.quality import check_image_size, check_quality
from macnet.clevr.questions import Question, QuestionGenerator, TemplateInstance
from macnet.clevr.scene import MAX_OBJECTS, MIN_OBJECTS, Condition, Scene, sample_scenes
from macnet.clevr.scene_array import array_to_indices, array_to_scenes, scenes_to_array
from macnet.errors import InputError

if TYPE_CHECKING:
    import torch

RELEASED_SIZE = (480, 320)  # width and height of CLEVR's images
QUESTIONS_PER_IMAGE = 10
CLEVR_SETTINGS = {"num_objects": (MIN_OBJECTS, MAX_OBJECTS), "families": ()}
MIN_SIZE = (24, 16)  # in smaller images, hardly any scene would pass the test of visibility


@dataclass(frozen=True)
class World:
    """The settings of a generated world, which determine every byte of it on a given machine."""

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
        # In one form, however they are given, so that the same world is equal to itself.
        object.__setattr__(self, "num_objects", check_num_objects(self.num_objects))
        object.__setattr__(self, "families", check_families(self.families))
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
        own = {name: getattr(self, name) for name in CLEVR_SETTINGS}
        return {k: list(value) for k, value in own.items() if value != CLEVR_SETTINGS[k]}

    def to_record(self) -> dict[str, Any]:
        """All settings, for the metadata of a run; deviations from CLEVR only if there are any."""
        common = {k: v for k, v in vars(self).items() if k not in CLEVR_SETTINGS}
        return common | self.deviations

    def __str__(self) -> str:
        name = f"world {self.seed}"
        if "num_objects" in self.deviations:
            fewest, most = self.num_objects
            count = f"{fewest} to {most}" if fewest < most else most
            name += f" of {count} object{'s' if most > 1 else ''}"
        if "families" in self.deviations:
            name += f" with questions of {', '.join(self.families)}"
        return name

    def split_name(self, split: str) -> str:
        """Released name of a split: in CoGenT, with the condition ("trainA")."""
        return split + (self.condition or "")


def check_num_objects(given: Sequence[int], name: str = "num_objects") -> tuple[int, int]:
    """The smallest and the largest number of objects in a scene, if there can be so many."""
    numbers = tuple(given)
    if len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1] <= MAX_OBJECTS:
        raise InputError(
            f"`{name}` is {' '.join(map(str, numbers))}; it must be the smallest and the largest "
            f"number of objects in a scene, from 1 to {MAX_OBJECTS}"
        )
    return numbers


def check_families(given: Sequence[str], name: str = "families") -> tuple[str, ...]:
    """Groups of question families in the released order, each once, if there are such groups."""
    for group in given:
        if group not in GROUPS:
            raise InputError(f"`{name}` has {group!r}; known are {', '.join(GROUPS)}")
    return tuple(group for group in GROUPS if group in given)


# --- parts of a world ------------------------------------------------------------------------


def generate_scenes(
    world: World, split: str, indices: Sequence[int], device: torch.device | str
) -> list[Scene]:
    """The scenes of a split with these indices."""
    from macnet.clevr.render import all_visible

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


# --- tasks of workers ------------------------------------------------------------------------

Encode = Callable[[list[list[TemplateInstance]]], Any]
"""Converts the questions about each image of a block, which are not written out, in the workers."""


def sample_candidates(
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


def encode_questions(
    world: World, split: str, block: int, scenes: np.ndarray, encode: Encode | None
) -> list[list[Question]] | Any:
    """The questions about a block of scenes, or what `encode` makes of them."""
    if encode is None:
        return generate_questions(world, split, block, array_to_scenes(scenes))
    return encode(instantiate_questions(world, split, block, scenes))
