"""Descriptions of datasets, from which they are opened: a split on disk, or generated images.

options = LoadOptions(choose_cache(None), size=(128, 128))
val = DiskDataset(Path("CLEVR_v1.0"), "val").open(vocabulary, options)
source, subsets = reopen(val.metadata)  # another process can open the same
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from macnet.clevr.families import families_of
from macnet.clevr.release import image_name, read_scenes, scenes_file
from macnet.clevr.scene import MAX_OBJECTS, MIN_OBJECTS, Scene
from macnet.clevr.scene_array import array_to_scenes
from macnet.clevr.world import QUESTIONS_PER_IMAGE, RELEASED_SIZE, World
from macnet.data.dataset import Dataset, Subset
from macnet.data.generated import pack_generated
from macnet.data.pack import pack_split
from macnet.data.scenes import pack_scenes
from macnet.data.splits import find_split
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError


@dataclass(frozen=True)
class LoadOptions:
    """How a dataset is opened, whichever it is."""

    cache: Path
    """The folder for packs."""
    size: tuple[int, int]
    """(width, height) in pixels of the images."""
    device: str = "cpu"
    """Where images are rendered."""
    workers: int = 0
    """Processes that decode or generate; 0 is none but this one."""


@dataclass(frozen=True)
class DiskDataset:
    """A split of a dataset on disk, in any of `data.formats.FORMATS`."""

    data: Path
    split: str
    images: Path | None = None
    skip_missing: bool = False
    question_types: Sequence[str] | None = None
    """The types of a format that collects them; if None, they are those of its training split."""

    def __str__(self) -> str:
        return f"the questions of {self.split} of {self.data}"

    def open(
        self,
        vocabulary: Vocabulary,
        options: LoadOptions,
        *,
        training: bool = False,
        with_scenes: bool = False,
    ) -> Dataset:
        """The dataset, encoded for training or to be asked, which matters for unknown words.

        `with_scenes`: with those of CLEVR's scene file, which must be there.
        """
        path = scenes_file(self.data, self.split)
        scenes = pack_scenes(path, self.split, options.cache) if with_scenes else None
        dataset = pack_split(
            find_split(self.data, self.split, self.images),
            options.cache,
            vocabulary,
            size=options.size,
            skip_missing=self.skip_missing,
            training=training,
            question_types=self.question_types,
            workers=options.workers,
        )
        images = None if self.images is None else str(self.images.resolve())
        source = {**vars(self), "data": str(self.data.resolve()), "images": images}
        del source["question_types"]  # the dataset's metadata has them
        return replace(
            dataset,
            metadata={**dataset.metadata, "source": source},
            scenes=None if scenes is None else scenes.of(dataset),
        )

    def scenes(self, images: Sequence[int], dataset: Dataset) -> dict[int, Scene]:
        """The scenes of images, by id, if the dataset comes with CLEVR's scene files."""
        path = scenes_file(self.data, self.split)
        if not path.is_file():
            raise InputError(f"{path}: there is no such file, and no other says what is hidden")
        found, names = read_scenes(path), {i: image_name(self.split, i) for i in images}
        for name in names.values():
            if name not in found:
                raise InputError(f"{path}: it has no scene of {name}")
        return {i: found[name] for i, name in names.items()}


@dataclass(frozen=True)
class GeneratedDataset:
    """The first images of a split of a generated world, which need not be on disk."""

    world_seed: int
    split: str
    count: int
    num_objects: tuple[int, int] = (MIN_OBJECTS, MAX_OBJECTS)
    families: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"questions about the first {self.count:,} images of {self.split} of the generated "
            f"{self.world()}"
        )

    def open(self, vocabulary: Vocabulary, options: LoadOptions) -> Dataset:
        """The dataset, in a vocabulary that has all the words of the world."""
        dataset = pack_generated(
            self.world(options.size),
            vocabulary,
            split=self.split,
            images=self.count,
            cache=options.cache,
            device=options.device,
            workers=options.workers,
        )
        return replace(dataset, metadata={**dataset.metadata, "source": self.to_record()})

    def scenes(self, images: Sequence[int], dataset: Dataset) -> dict[int, Scene]:
        """The scenes of images, by id, from the dataset that was opened."""
        assert dataset.scenes is not None
        return dict(zip(images, array_to_scenes(dataset.scenes[images]), strict=True))

    def to_record(self) -> dict[str, Any]:
        """What `reopen` needs; deviations from CLEVR only if there are any."""
        counts = {"world_seed": self.world_seed, "split": self.split, "count": self.count}
        return {**counts, **self.world().deviations}

    def world(self, size: tuple[int, int] = RELEASED_SIZE) -> World:
        """The world, with images of this width and height."""
        width, height = size
        return World(
            self.world_seed,
            width=width,
            height=height,
            questions_per_image=min(QUESTIONS_PER_IMAGE, len(families_of(self.families))),
            num_objects=self.num_objects,
            families=self.families,
        )


def reopen(metadata: Mapping[str, Any]) -> tuple[DiskDataset | GeneratedDataset, list[Subset]]:
    """The source of the dataset with this metadata, such as a run's, and its subsets in order."""
    try:
        source = dict(metadata["source"])
        subsets = [Subset(**subset) for subset in metadata.get("subsets", ())]
        if "data" in source:
            images = None if source["images"] is None else Path(source["images"])
            paths = {"data": Path(source["data"]), "images": images}
            types = metadata.get("question_types")
            return DiskDataset(**{**source, **paths}, question_types=types), subsets
        return GeneratedDataset(**source), subsets
    except (TypeError, ValueError, LookupError):
        raise InputError(
            "the run does not say where the data is that it was validated on; give `data`"
        ) from None
