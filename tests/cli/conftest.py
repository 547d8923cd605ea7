"""Small data for commands to learn from, and a folder to learn in."""

from __future__ import annotations

from pathlib import Path

import pytest

from macnet.training import trainer
from small_data import run_train, write_data, write_humans


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_workers: None) -> Path:
    """The working folder. A curve takes longer to draw than these runs, and has its own tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MACNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trainer, "draw_curve", lambda *_: None)
    return tmp_path


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="session")
def humans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_humans(tmp_path_factory.mktemp("people"))


@pytest.fixture(scope="session")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is over, not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    run_train(data, "--out", folder / "run", "--cache", folder / "cache")
    return folder / "run"
