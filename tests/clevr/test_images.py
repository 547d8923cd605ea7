"""Rendering of scene files to PNG files, as a library function."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from macnet.clevr.generate import generate_world
from macnet.clevr.images import RenderedFiles, read_image, render_file
from macnet.clevr.world import World
from macnet.errors import InputError

SCENES = "scenes/CLEVR_val_scenes.json"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("world")
    settings = World(seed=4, width=48, height=32)
    generate_world(out, settings, {"train": 0, "val": 3, "test": 0}, device="cpu", workers=0)
    return out


def test_scenes_of_a_world_are_rendered_as_its_images(world: Path, tmp_path: Path) -> None:
    found = render_file(str(world / SCENES), str(tmp_path), device="cpu")
    assert found == RenderedFiles(tmp_path, rendered=3, kept=0, size=(48, 32), quality="fast")
    for path in sorted((world / "images" / "val").iterdir()):
        expected = read_image(path, 48, 32)
        np.testing.assert_array_equal(read_image(tmp_path / path.name, 48, 32), expected)


def test_images_that_exist_are_kept_until_a_setting_changes(world: Path, tmp_path: Path) -> None:
    render_file(world / SCENES, tmp_path, device="cpu")
    again = render_file(world / SCENES, tmp_path, device="cpu")
    assert (again.rendered, again.kept) == (0, 3)
    larger = render_file(world / SCENES, tmp_path, size=(60, 40), device="cpu")
    assert (larger.rendered, larger.kept, larger.size) == (3, 0, (60, 40))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"size": (0, 40)}, "`size` is 0x40; it must be at least 1x1 and at most 4096x4096"),
        ({"quality": "best"}, "`quality` is 'best'; it must be one of fast, fine"),
        ({"device": "tpu"}, "`device` is 'tpu'; it must be auto, cpu, cuda or cuda:N"),
    ],
)
def test_errors_name_arguments(
    world: Path, tmp_path: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        render_file(world / SCENES, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
