"""The scenes of a dataset's images as one array: from a pack, or from CLEVR's scene file.

    found = pack_scenes(scenes_file(root, "train"), "train", cache)  # once; later, it is opened
    dataset = replace(dataset, scenes=found.of(dataset))

A scene says what is in an image, so that new questions can be asked about it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from macnet.clevr.release import image_name, image_pattern, read_records
from macnet.clevr.scene import Scene, read_objects
from macnet.clevr.scene_array import SCENE_DTYPE, scenes_to_array
from macnet.data.dataset import Dataset, rows_of
from macnet.data.pack_store import Pack, cached_pack, fingerprint, save_array
from macnet.errors import InputError
from macnet.files import check_is_file
from macnet.progress import progress

VERSION = 1  # of packs of scenes


class PackedScenes(NamedTuple):
    """The scenes of a file."""

    path: Path
    split: str
    ids: np.ndarray
    """(S,) int32: ids of their images."""
    scenes: np.ndarray
    """(S,) of SCENE_DTYPE, with the standard camera and lamps."""

    def of(self, dataset: Dataset) -> np.ndarray:
        """(I,) of SCENE_DTYPE: a scene for each image that a selected question is about."""
        rows, first = np.unique(dataset.image_rows[dataset.selected], return_index=True)
        ids = dataset.questions.images[dataset.selected[first]]
        found = rows_of(ids, self.ids)
        for image in ids[found < 0]:
            raise InputError(f"{self.path}: it has no scene of {image_name(self.split, image)}")
        scenes = np.zeros(len(dataset.images), SCENE_DTYPE)
        scenes[rows] = self.scenes[found]
        return scenes


def pack_scenes(path: Path, split: str, cache: Path) -> PackedScenes:
    """The scenes of a split, without their cameras: to find those would take minutes.

    Relations that a file records must be those that follow from the objects' places, by which
    questions are answered.
    """
    check_is_file(path)

    def make(out: Path) -> None:
        records, name, scenes = read_records(path, "scenes"), image_pattern(split), {}
        with progress("packing", "scenes", len(records)) as advance:
            for i, record in enumerate(records):
                where = f"{path}: scene {i}"
                image = name.fullmatch(record["image_filename"])
                if not image or int(image[1]) in scenes:
                    raise InputError(
                        f"{where}: its image_filename is {record['image_filename']}, which is that "
                        f"of {'an earlier scene' if image else f'no image of {split}'}"
                    )
                scene = Scene(read_objects(record, where))
                if record.get("relationships", scene.relationships) != scene.relationships:
                    raise InputError(
                        f'{where}: its "relationships" are not those that its objects have by '
                        'their "3d_coords"; questions about them could have wrong answers'
                    )
                scenes[int(image[1])] = scene
                advance(1)
        save_array(out / "ids.npy", np.array([*scenes], np.int32))
        save_scenes(out, scenes_to_array([*scenes.values()]))

    recipe = {"version": VERSION, "source": fingerprint([path]), "split": split}
    pack = cached_pack(cache, "scenes", recipe, make)
    return PackedScenes(path, split, pack.arrays["ids"], open_scenes(pack))


def save_scenes(folder: Path, scenes: np.ndarray) -> None:
    """Write an array of scenes into a pack, as bytes: its arrays have no named fields."""
    save_array(
        folder / "scenes.npy", scenes.view(np.uint8).reshape(len(scenes), SCENE_DTYPE.itemsize)
    )


def open_scenes(pack: Pack) -> np.ndarray:
    """The array of scenes in a pack."""
    scenes: np.ndarray = pack.arrays["scenes"].view(SCENE_DTYPE)[:, 0]
    return scenes
