"""For all tests."""

import gc
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from macnet import workers
from macnet.clevr import generate, questions, stream
from macnet.data import endless, fresh_questions, generated
from macnet.explain import pointing
from processes import warm
from tiny_networks import narrow

# Whoever runs the tests in the background may have had this ignored, and so would every process
# that a test starts in order to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)


LONG = ("test_shipped.py", "test_distributed.py", "test_command_line.py", "test_endless.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that processes of xdist do not wait for one in the end."""
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """To look for garbage among all that torch and the tests have brought takes a tenth of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before each test and its fixtures: on a busy machine, torch's threads crawl."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def small_blocks() -> Iterator[int]:
    """Worlds are made in blocks of 50 images, not 250: their bytes are others, their rules not."""
    users = (questions, stream, generate, generated, endless, fresh_questions, pointing)
    with pytest.MonkeyPatch.context() as patch:
        for module in users:
            patch.setattr(module, "IMAGES_PER_BLOCK", 50)
        patch.setattr(stream, "BLOCKS_AHEAD", 1)
        yield 50


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes that do not wait for torch; those of commands in tests/e2e are spawned."""
    monkeypatch.setattr(workers, "multiprocessing", SimpleNamespace(get_context=lambda _: warm()))


@pytest.fixture
def narrow_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems than MAC see pixels with few channels."""
    narrow(monkeypatch)


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in every kind of file there is."""
    from sound_data import make_sound

    return make_sound(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def here(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a copy of all that, to be damaged."""
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
