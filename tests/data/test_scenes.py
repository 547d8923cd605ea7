"""Scenes of datasets: those that were rendered, and those of scene files, the release's too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from macnet.clevr.generate import generate_world
from macnet.clevr.program import execute
from macnet.clevr.release import read_scenes, scenes_file
from macnet.clevr.scene_array import array_to_indices, array_to_scenes
from macnet.clevr.stream import Stream
from macnet.clevr.world import World
from macnet.data import scenes as scenes_module
from macnet.data.block_encoder import world_texts
from macnet.data.dataset import Dataset
from macnet.data.generated import pack_generated
from macnet.data.scenes import pack_scenes
from macnet.data.sources import DiskDataset, LoadOptions
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError
from real_clevr import real_clevr

WORLD = World(seed=5, width=36, height=24, questions_per_image=3)
VOCABULARY = Vocabulary.build(world_texts())
IMAGES = 62  # a block, and some
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture(scope="module")
def rendered(small_blocks: int) -> np.ndarray:
    with Stream(WORLD) as stream:
        return np.concatenate([next(stream).scenes for _ in range(2)])[:IMAGES]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, small_blocks: int) -> Path:
    """The world on disk."""
    root = tmp_path_factory.mktemp("made") / "world"
    counts = {"train": IMAGES, "val": 0, "test": 0}
    generate_world(root, WORLD, counts, device="cpu", workers=0)
    return root


def opened(root: Path, cache: Path) -> Dataset:
    options = LoadOptions(cache, (WORLD.width, WORLD.height))
    return DiskDataset(root, "train").open(VOCABULARY, options, with_scenes=True)


def test_a_generated_dataset_has_those_that_were_rendered(
    rendered: np.ndarray, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"split": "train", "images": IMAGES, "cache": tmp_path}
    for _ in range(2):  # made, and opened
        packed = pack_generated(WORLD, VOCABULARY, device="cpu", workers=0, **settings)
        assert packed.scenes is not None
        assert array_to_scenes(packed.scenes) == array_to_scenes(rendered)


def test_a_scene_file_has_their_objects(
    rendered: np.ndarray, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        dataset = opened(made, tmp_path)
        assert dataset.scenes is not None
        found = [scene.objects for scene in array_to_scenes(dataset.scenes)]
        assert found == [scene.objects for scene in array_to_scenes(rendered)]
        monkeypatch.setattr(scenes_module, "read_records", None)  # the pack is there
    assert DiskDataset(made, "train").open(
        VOCABULARY, LoadOptions(tmp_path, (WORLD.width, WORLD.height))
    ).scenes is None, "nobody asked for them"  # fmt: skip


def test_rows_are_matched_by_images(rendered: np.ndarray, made: Path, tmp_path: Path) -> None:
    """Images that are missing, or about which no question is selected, shift no other's scene."""
    dataset = opened(made, tmp_path)
    found = pack_scenes(scenes_file(made, "train"), "train", tmp_path)
    kept = np.flatnonzero(dataset.questions.images % 3 == 0).astype(np.int32)
    part = replace(dataset, selected=kept, image_rows=dataset.questions.images // 3)
    scenes = found.of(part)
    assert np.array_equal(scenes["poses"][: IMAGES // 3 + 1], rendered["poses"][::3])
    assert not scenes["num_objects"][IMAGES // 3 + 1 :].any()


# --- the release's ---------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "split"), [("clevr_train32", "train"), ("clevr_val100", "val")])
def test_real_scenes_are_read(folder: str, split: str, tmp_path: Path) -> None:
    """Their recorded relations are those that follow from the objects' places, or they were not."""
    path = scenes_file(real_clevr(folder), split)
    found = pack_scenes(path, split, tmp_path)
    expected = [scene.objects for scene in read_scenes(path).values()]
    assert [scene.objects for scene in array_to_scenes(found.scenes)] == expected
    records = json.loads(path.read_text())["scenes"]
    assert found.ids.tolist() == [record["image_index"] for record in records]
    for index, record in zip(array_to_indices(found.scenes), records, strict=True):
        for name, lists in record["relationships"].items():
            assert index.related[name] == [sum(1 << j for j in others) for others in lists]


def test_real_questions_are_answered_as_recorded(tmp_path: Path) -> None:
    root = real_clevr("clevr_val100")
    found = pack_scenes(scenes_file(root, "val"), "val", tmp_path)
    scenes = dict(zip(found.ids.tolist(), array_to_indices(found.scenes), strict=True))
    content = json.loads((root / "questions/CLEVR_val_questions.json").read_text())
    assert len(content["questions"]) == 1000
    for question in content["questions"]:
        answer = execute(question["program"], scenes[question["image_index"]])
        assert answer == question["answer"]


# --- trouble ---------------------------------------------------------------------------------


def swap_relations(scene: dict[str, Any]) -> None:
    relations = scene["relationships"]
    relations["left"], relations["right"] = relations["right"], relations["left"]


SPOILED: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (swap_relations, 'scene 7: its "relationships" are not those that its objects have by their'),
    (lambda s: s.update(image_filename="CLEVR_train_000006.png"), "scene 7: .* an earlier scene"),
    (lambda s: s.update(image_filename="CLEVR_val_000007.png"), "scene 7: .* no image of train"),
    (lambda s: s.update(image_filename="CLEVR_train_000099.png"), "no scene of CLEVR_train_000007"),
    (lambda s: s["objects"][1].pop("color"), 'scene 7: object 1 has no "color"'),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_scenes_that_cannot_be_used(
    spoil: Callable[[dict[str, Any]], Any], message: str, made: Path, tmp_path: Path
) -> None:
    content = json.loads(scenes_file(made, "train").read_text())
    spoil(content["scenes"][7])
    for name in ("images", "questions"):
        (tmp_path / name).symlink_to(made / name)
    path = scenes_file(tmp_path, "train")
    path.parent.mkdir()
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        opened(tmp_path, tmp_path / "cache")


def test_relations_need_not_be_recorded(made: Path, tmp_path: Path) -> None:
    content = json.loads(scenes_file(made, "train").read_text())
    for scene in content["scenes"]:
        del scene["relationships"]
    path = tmp_path / "scenes.json"
    path.write_text(json.dumps(content))
    assert len(pack_scenes(path, "train", tmp_path).scenes) == IMAGES


def test_without_a_scene_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"CLEVR_train_scenes.json: there is no"):
        pack_scenes(scenes_file(tmp_path, "train"), "train", tmp_path)
