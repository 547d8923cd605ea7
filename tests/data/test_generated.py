"""A world packed as it is drawn is the one that is generated and packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from macnet.clevr.generate import generate_world
from macnet.clevr.program import SceneIndex
from macnet.clevr.questions import QuestionGenerator, TemplateInstance
from macnet.clevr.stream import Stream
from macnet.clevr.world import World
from macnet.data import generated as drawn
from macnet.data.block_encoder import world_texts
from macnet.data.dataset import Dataset
from macnet.data.generated import pack_generated
from macnet.data.pack import pack_split
from macnet.data.splits import find_split
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError

WORLD = World(seed=5, width=36, height=24, questions_per_image=3)
VOCABULARY = Vocabulary.build(world_texts())
IMAGES = 62  # a block, and some
pytestmark = pytest.mark.usefixtures("small_blocks")


def packed(cache: Path, images: int = IMAGES, **changes: Any) -> Dataset:
    settings = {"split": "val", "cache": cache, "device": "cpu", "workers": 0, **changes}
    return pack_generated(settings.pop("world", WORLD), VOCABULARY, images=images, **settings)


@pytest.fixture(scope="module")
def ours(small_blocks: int, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return packed(tmp_path_factory.mktemp("cache"))


def assert_same_questions(a: Dataset, b: Dataset) -> None:
    for name, column in vars(a.questions).items():
        other = getattr(b.questions, name)
        assert column.dtype == other.dtype, name
        assert np.array_equal(column, other), name
    for name in ("image_rows", "selected"):
        assert getattr(a, name).dtype == getattr(b, name).dtype, name
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


def test_it_is_what_is_generated_and_packed(ours: Dataset, tmp_path: Path) -> None:
    generate_world(
        tmp_path / "world",
        WORLD,
        {"train": 0, "val": IMAGES, "test": 0},
        device="cpu",
        workers=0,
    )
    split, size = find_split(tmp_path / "world", "val"), (WORLD.width, WORLD.height)
    theirs = pack_split(split, tmp_path / "cache", VOCABULARY, size=size)
    assert_same_questions(ours, theirs)
    for key in ("origin", "words", "left_out"):
        assert ours.metadata[key] == theirs.metadata[key]
    assert ours.images.shape == theirs.images.shape
    # There pictures are drawn ten at a time, here a block at once.
    apart = np.abs(ours.images.astype(int) - theirs.images)
    assert apart.max() <= 1
    assert (apart > 0).mean() < 1e-4


def test_the_pictures_are_those_of_the_stream(ours: Dataset) -> None:
    with Stream(WORLD, split="val") as stream:
        pictures = torch.cat([next(stream).images for _ in range(2)])
    assert np.array_equal(ours.images, pictures[:IMAGES])


@pytest.mark.usefixtures("warm_workers")
def test_what_was_packed_is_opened(
    ours: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = packed(tmp_path, images=5, workers=1)  # who changes nothing
    assert np.array_equal(first.images, ours.images[:5])
    monkeypatch.setattr(drawn, "Stream", None)
    again = packed(tmp_path, images=5, device="cuda")  # which nobody needs any more
    assert_same_questions(first, again)
    assert np.array_equal(first.images, again.images)
    for other in ({"split": "train"}, {"world": World(seed=6, width=36, height=24)}):
        with pytest.raises(TypeError):  # it is to be made
            packed(tmp_path, images=5, **other)


def test_an_image_with_too_few_questions_has_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instantiate_all = QuestionGenerator.instantiate

    def fewer(asker: QuestionGenerator, scene: SceneIndex, count: int) -> list[TemplateInstance]:
        return instantiate_all(asker, scene, count)[: 1 + scene.all_objects.bit_count() % 3]

    monkeypatch.setattr(QuestionGenerator, "instantiate", fewer)
    data = packed(tmp_path, images=20)
    _, counts = np.unique(data.image_rows, return_counts=True)
    assert len(counts) == 20
    assert set(counts) == {1, 2, 3}
    assert (data.questions.answers >= 0).all()
    assert (data.questions.families >= 0).all()


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 images of 'val' are asked for"):
        packed(tmp_path, images=0)
    few = Vocabulary.build(["What is it?"])
    with pytest.raises(InputError, match="lacks 78 words of the generated world"):
        pack_generated(WORLD, few, split="val", images=1, cache=tmp_path, device="cpu", workers=0)
    assert not list(tmp_path.iterdir())
