"""An animation has the question on every frame, keeps the colors, and stays small."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from explained import explanation, holds
from macnet.explain import animation
from macnet.explain.animation import FRAME_WIDTH, MAX_BYTES, ON, draw_frames, write_gif
from macnet.explain.cards import CARD, PADDING
from macnet.explain.grouping import group_steps, merge_steps
from macnet.explain.overlay import overlay_attention


def test_a_frame_for_each_group_and_two(tmp_path: Path) -> None:
    told = explanation(steps=5, picture=(FRAME_WIDTH, 200))
    groups = group_steps(told.steps)
    drawn = draw_frames(told)
    assert len(drawn) == len(groups) + 2
    assert len({frame.size for frame in drawn}) == 1
    lit = [overlay_attention(told.image, group.image, told.centers) for group in groups]
    lit = [told.image, *lit, told.image]
    assert all(holds(frame, part) for frame, part in zip(drawn, lit, strict=True))
    write_gif(told, tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as film:
        assert (film.format, getattr(film, "n_frames", 1)) == ("GIF", len(drawn))
        assert film.info["loop"] == 0
        stays = []
        for number in range(len(drawn)):
            film.seek(number)
            stays.append(film.info["duration"])
    assert stays == [2500, *[1600] * len(groups), 4000]


def test_a_frame_shows_which_of_how_many_steps_it_is() -> None:
    told = explanation(steps=6, picture=(90, 60), words=False)
    frames = draw_frames(told, [merge_steps(told.steps, [2, 3, 5])])
    dots = (np.asarray(frames[1]) == ON).all(-1)
    lit = np.flatnonzero(np.diff(dots.any(0).astype(int)) == 1)
    apart = animation.DOT + animation.DOT_GAP
    assert np.allclose((lit - PADDING) / apart, [1, 2, 4], atol=0.2)
    assert not (np.asarray(frames[0]) == ON).all(-1).any()


def test_every_step_shows_the_question() -> None:
    told = explanation(steps=2, words=False, gate=False, first=None, picture=(120, 60))
    each = [merge_steps(told.steps, [number]) for number in (1, 2)]
    asked, *steps, _ = (np.asarray(frame) for frame in draw_frames(told, each))
    image = PADDING + 40 + FRAME_WIDTH // 2 + 10
    below = (asked[image:] != CARD).any((1, 2)).nonzero()[0]
    question = asked[image + below[0] : image + below[-1] + 1]
    assert question.max() > 150
    for step in steps:
        assert holds(Image.fromarray(step), question)


def test_colors_are_kept(tmp_path: Path) -> None:
    """A small red spot on much gray stays red."""
    told = explanation(steps=1, picture=(FRAME_WIDTH, 320))
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:320, :FRAME_WIDTH]
    gray = (110 + 0.2 * rows + rng.normal(0, 1, rows.shape)).clip(0, 255)
    told.image[:] = gray[..., None]
    spot = (rows - 160) ** 2 + (columns - 200) ** 2 < 144  # 0.3% of the image
    told.image[spot] = 170, 30, 40
    frame = np.asarray(draw_frames(told)[0]).astype(int)
    write_gif(told, tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as film:
        apart = np.abs(np.asarray(film.convert("RGB")).astype(int) - frame)
    red = (frame == (170, 30, 40)).all(-1)
    assert red.sum() > 400
    assert apart[red].max() <= 8
    assert apart.mean() < 1.5


def test_a_large_one_is_made_smaller(tmp_path: Path) -> None:
    told = explanation(steps=12, picture=(600, 400))  # of noise, which nothing compresses
    assert len(draw_frames(told)) > 10
    write_gif(told, tmp_path / "film.gif")
    assert (tmp_path / "film.gif").stat().st_size <= MAX_BYTES
    with Image.open(tmp_path / "film.gif") as film:
        assert film.width < FRAME_WIDTH


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(animation, "write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        write_gif(explanation(steps=1, picture=(60, 20)), tmp_path / "film.gif")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1)], ids=str)
def test_pictures_of_any_shape(size: tuple[int, int], tmp_path: Path) -> None:
    told: Any = explanation(steps=2, picture=size)
    assert all(frame.width == FRAME_WIDTH + 2 * PADDING for frame in draw_frames(told))
