"""How commands open what there is to ask: a split on disk, or images of the generated world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from macnet.errors import InputError

if TYPE_CHECKING:
    from macnet.clevr.scene import Scene
    from macnet.data.dataset import Dataset, Subset
    from macnet.data.vocab import Vocabulary


@dataclass(frozen=True)
class Means:
    """With what a set is opened, and in which size its pictures are wanted."""

    cache: Path
    size: tuple[int, int]
    device: str
    workers: int


@dataclass(frozen=True)
class OnDisk:
    """A split of a dataset."""

    data: Path
    split: str
    images: Path | None = None
    skip_missing: bool = False

    def __str__(self) -> str:
        return f"the questions of {self.split} of {self.data}"

    def open(self, vocabulary: Vocabulary, means: Means, *, learn: bool = False) -> Dataset:
        """To be asked, or to learn from, which matters for unknown words."""
        from macnet.data.pack import pack_split
        from macnet.data.splits import find_split

        dataset = pack_split(
            find_split(self.data, self.split, self.images),
            means.cache,
            vocabulary,
            size=means.size,
            skip_missing=self.skip_missing,
            learn=learn,
            workers=means.workers,
        )
        images = None if self.images is None else str(self.images.resolve())
        return _from({**vars(self), "data": str(self.data.resolve()), "images": images}, dataset)

    def scenes(self, images: Sequence[int], means: Means) -> dict[int, Scene]:
        """Of the images with these numbers."""
        from macnet.clevr.release import image_name, read_scenes, scenes_file

        path = scenes_file(self.data, self.split)
        if not path.is_file():
            raise InputError(f"{path}: there is no such file, and no other tells what is hidden")
        found, names = read_scenes(path), {i: image_name(self.split, i) for i in images}
        for name in names.values():
            if name not in found:
                raise InputError(f"{path}: it has no scene of {name}")
        return {i: found[name] for i, name in names.items()}


@dataclass(frozen=True)
class Drawn:
    """The first images of a split of the generated world."""

    world_seed: int
    split: str
    count: int

    def __str__(self) -> str:
        return (
            f"questions about the first {self.count:,} images of {self.split} of the generated "
            f"world {self.world_seed}"
        )

    def open(self, vocabulary: Vocabulary, means: Means) -> Dataset:
        from macnet.clevr.world import World
        from macnet.data.drawn import pack_world

        width, height = means.size
        dataset = pack_world(
            World(self.world_seed, width=width, height=height),
            vocabulary,
            split=self.split,
            images=self.count,
            cache=means.cache,
            device=means.device,
            workers=means.workers,
        )
        return _from(vars(self), dataset)

    def scenes(self, images: Sequence[int], means: Means) -> dict[int, Scene]:
        """Of the images with these numbers: they are made once more."""
        from macnet.clevr.world import World, make_scenes

        width, height = means.size
        world = World(self.world_seed, width=width, height=height)
        return dict(zip(images, make_scenes(world, self.split, images, means.device), strict=True))


def _from(place: Mapping[str, Any], dataset: Dataset) -> Dataset:
    """It says where it is from: with that and a vocabulary, anyone can open it again."""
    return replace(dataset, about={**dataset.about, "place": dict(place)})


def find_again(about: Mapping[str, Any]) -> tuple[OnDisk | Drawn, list[Subset]]:
    """Where the set is that says this about itself, and which part of that it was."""
    from macnet.data.dataset import Subset

    try:
        place = dict(about["place"])
        rules = [Subset(**rule) for rule in about.get("subsets", ())]
        if "data" in place:
            images = None if place["images"] is None else Path(place["images"])
            return OnDisk(**{**place, "data": Path(place["data"]), "images": images}), rules
        return Drawn(**place), rules
    except (TypeError, ValueError, LookupError):
        raise InputError(
            "the run does not say where what it was validated on is; give DATA"
        ) from None
