"""Sheets: what they show, and the numbers of a comparison."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from macnet.clevr.release import image_name
from macnet.clevr.render import render
from macnet.clevr.scene import to_record
from macnet.clevr.sheet import TILE, compare, contact_sheet, psnr
from macnet.clevr.world import World, generate_scenes
from macnet.errors import InputError

WORLD = World(seed=7, width=96, height=64)


def reds(sheet: Path) -> set[int]:
    """The tones of red in it that have neither green nor blue."""
    with Image.open(sheet) as image:
        red, green, blue = np.moveaxis(np.asarray(image), 2, 0)
    return set(np.unique(red[(green == 0) & (blue == 0)]).tolist())


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Five images of one colour each, in two splits, with two questions each."""
    for split, tones in {"train": (10, 20), "val": (30, 40, 50)}.items():
        folder = tmp_path / "images" / split
        folder.mkdir(parents=True)
        questions: list[dict[str, Any]] = []
        for i, tone in enumerate(tones):
            name = image_name(split, i)
            Image.new("RGBA", (60, 40), (tone, 0, 0, 255)).save(folder / name)
            for words in ("How many things are there?", "Is it " + "very " * 60 + "long?"):
                questions.append({"image_filename": name, "question": words, "answer": "3"})
        path = tmp_path / "questions" / f"CLEVR_{split}_questions.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"info": {}, "questions": questions}))
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "shown"), [(1, [30]), (4, [30, 40, 50, 10]), (99, [10, 20, 30, 40, 50])]
)
def test_a_sheet_shows_so_many_images(dataset: Path, asked: int, shown: list[int]) -> None:
    out = dataset / "sheets" / "sheet.png"
    assert contact_sheet(dataset, out, images=asked) == len(shown)
    assert reds(out) == set(shown)
    with Image.open(out) as sheet:
        pixels = sheet.width * sheet.height
    assert pixels > len(shown) * TILE[0] * TILE[1]
    assert [path.name for path in out.parent.iterdir()] == ["sheet.png"]


def test_long_questions_stay_under_their_images(dataset: Path) -> None:
    out = dataset / "sheet.png"
    contact_sheet(dataset, out, images=2)
    with Image.open(out) as sheet:
        pixels = np.asarray(sheet)
    assert (pixels[:, -10:] == 255).all()  # nothing runs over the right margin
    assert (pixels[-10:] == 255).all()  # nor over the bottom


@pytest.mark.parametrize("where", [".", "nowhere"])
def test_a_folder_without_images_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(InputError, match="no images with questions are here"):
        contact_sheet(tmp_path / where, tmp_path / "sheet.png", images=4)
    assert list(tmp_path.iterdir()) == []


def test_a_sheet_is_a_png(dataset: Path) -> None:
    with pytest.raises(InputError, match=r"sheet.jpg: .* ends in .png"):
        contact_sheet(dataset, dataset / "sheet.jpg", images=4)


def test_a_sheet_needs_an_image(dataset: Path) -> None:
    with pytest.raises(InputError, match="`images` is 0; it must be at least 1"):
        contact_sheet(dataset, dataset / "sheet.png", images=0)


def test_psnr() -> None:
    black = np.zeros((2, 2, 3), np.uint8)
    assert psnr(black, black) == math.inf
    assert psnr(black, black + 255) == pytest.approx(0)
    assert psnr(black + 10, black) == pytest.approx(20 * math.log10(25.5))


@pytest.fixture
def originals(tmp_path: Path) -> tuple[Path, Path]:
    """Three scenes, and images that differ from ours by 0, 1 and 2 in every pixel."""
    scenes = generate_scenes(WORLD, "val", range(4), "cpu")
    names = [image_name("val", i) for i in range(4)]
    records = [
        to_record(scene, "val", i, name, 96, 64)
        for i, (scene, name) in enumerate(zip(scenes, names, strict=True))
    ]
    (tmp_path / "scenes.json").write_text(json.dumps({"info": {}, "scenes": records}))
    (tmp_path / "images").mkdir()
    pictures = render(scenes[:3], 96, 64, "fast").images.numpy()
    for step, (name, picture) in enumerate(zip(names, pictures, strict=False)):
        shifted = np.where(picture > 127, picture - step, picture + step).astype(np.uint8)
        Image.fromarray(shifted).save(tmp_path / "images" / name)
    return tmp_path / "scenes.json", tmp_path / "images"


def test_a_comparison_measures_every_scene_with_an_image(
    originals: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "sheet.png"
    measured = compare(*originals, out, images=2, quality="fast", device="cpu")
    assert list(measured.psnr) == [image_name("val", i) for i in range(3)]
    assert list(measured.psnr.values()) == pytest.approx(
        [math.inf, 20 * math.log10(255), 20 * math.log10(127.5)]
    )
    assert measured.mean_psnr == math.inf
    with Image.open(out) as sheet:
        assert sheet.width > 3 * TILE[0]
        assert 2 * TILE[1] < sheet.height < 3 * TILE[1]


def test_a_comparison_needs_images_of_one_size(
    originals: tuple[Path, Path], tmp_path: Path
) -> None:
    scenes, images = originals
    Image.new("RGB", (60, 40)).save(images / image_name("val", 1))
    with pytest.raises(InputError, match="it is 60x40, and the images before it 96x64"):
        compare(scenes, images, tmp_path / "sheet.png", images=2, quality="fast", device="cpu")
    (images / image_name("val", 0)).write_bytes(b"no image")
    with pytest.raises(InputError, match=r"CLEVR_val_000000.png: it cannot be read as an image"):
        compare(scenes, images, tmp_path / "sheet.png", images=2, quality="fast", device="cpu")
    with pytest.raises(InputError, match="has no image of any scene"):
        compare(scenes, tmp_path, tmp_path / "sheet.png", images=2, quality="fast", device="cpu")
    assert not (tmp_path / "sheet.png").exists()
