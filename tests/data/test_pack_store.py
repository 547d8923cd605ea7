"""Packs are there whole or not at all, and made by one of those who want them."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.data.pack_store import (
    _layout,
    _open_array,
    cached_pack,
    create_array,
    fingerprint,
    open_pack,
    write_rows,
)
from macnet.errors import InputError
from processes import warm


def maker(values: np.ndarray) -> Callable[[Path], Mapping[str, Any]]:
    def make(folder: Path) -> Mapping[str, Any]:
        start = create_array(folder / "values.npy", values.shape, values.dtype)
        write_rows(folder / "values.npy", start, 0, values)
        return {"told": "by the maker"}

    return make


def never(folder: Path) -> Mapping[str, Any]:
    raise AssertionError("it is there already")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["u1", "<u2", "<i4", "<f2"]),
    st.lists(st.integers(1, 4), max_size=3),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_what_is_packed_is_read_back_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, shape: list[int], rows: int, rng: Any
) -> None:
    bits = rng.randbytes(rows * int(np.prod(shape)) * np.dtype(dtype).itemsize)
    values = np.frombuffer(bits, dtype).reshape(rows, *shape)
    path = tmp_path_factory.mktemp("array") / "values.npy"
    start = create_array(path, values.shape, values.dtype)
    for row in rng.sample(range(rows), rows):  # in any order, as workers finish
        write_rows(path, start, row, values[row : row + 1])
    assert np.load(path).tobytes() == bits
    assert np.load(path).shape == values.shape


def test_made_once_and_then_opened(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.int32).reshape(4, 3)
    made = cached_pack(tmp_path, "thing", {"size": 3}, maker(values))
    again = cached_pack(tmp_path, "thing", {"size": 3}, never)
    for found in (made, again, open_pack(made.folder)):
        assert np.array_equal(found.arrays["values"], values)
        assert found.metadata["told"] == "by the maker"
        assert found.metadata["recipe"]["size"] == 3
    other = cached_pack(tmp_path, "thing", {"size": 4}, maker(values[:2]))
    assert other.folder != made.folder
    assert len(other.arrays["values"]) == 2


def test_a_fingerprint_tells_every_change(tmp_path: Path) -> None:
    def now() -> str:
        return fingerprint(sorted(tmp_path.iterdir()))

    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    seen = {now()}
    assert now() in seen
    (tmp_path / "a").write_bytes(b"12")
    seen.add(now())
    os.utime(tmp_path / "b", ns=(1, 1))
    seen.add(now())
    (tmp_path / "b").rename(tmp_path / "c")
    seen.add(now())
    (tmp_path / "c").unlink()
    seen.add(now())
    assert len(seen) == 5


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> Mapping[str, Any]:
        maker(np.zeros(3))(folder)
        raise InputError("in the middle of it")

    with pytest.raises(InputError, match="in the middle"):
        cached_pack(tmp_path, "thing", {}, fail)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []
    cached_pack(tmp_path, "thing", {}, maker(np.zeros(3)))


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_full_disk_is_an_error_that_names_the_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="thing-") as caught:
        cached_pack(tmp_path, "thing", {}, maker(np.zeros(3)))
    assert caught.value.errno == errno.ENOSPC
    assert not list(tmp_path.glob("*thing*")) or all(
        path.suffix == ".lock" for path in tmp_path.iterdir()
    )


@pytest.mark.parametrize("damage", ["cut", "header", "gone", "about", "other", "empty"])
def test_a_damaged_pack_is_named(tmp_path: Path, damage: str) -> None:
    folder = cached_pack(tmp_path, "thing", {}, maker(np.arange(100.0))).folder
    array, metadata = folder / "values.npy", folder / "about.json"
    if damage == "cut":
        os.truncate(array, 500)
    elif damage == "header":
        array.write_bytes(b"\x93NUMPY nonsense" + array.read_bytes()[20:])
    elif damage == "gone":
        array.unlink()
    elif damage == "about":
        metadata.write_text(metadata.read_text()[:40])
    elif damage == "other":
        np.save(array, np.arange(7))
    else:
        metadata.write_text("[]")
    with pytest.raises(InputError, match=str(tmp_path)):
        cached_pack(tmp_path, "thing", {}, never)


def test_an_array_larger_than_memory_opens(tmp_path: Path) -> None:
    """As 28 GB of features do on a machine with less."""
    pages = 3 * os.sysconf("SC_PHYS_PAGES")
    shape = (pages, os.sysconf("SC_PAGE_SIZE"))
    header, size = _layout(shape, np.dtype(np.uint8))
    path = tmp_path / "values.npy"
    path.write_bytes(header)
    try:
        os.truncate(path, len(header) + size)
    except OSError:
        pytest.skip("files cannot have holes here")
    opened = _open_array(path, shape, np.dtype(np.uint8))
    assert opened.shape == shape
    assert opened[-1].max() == 0
    opened[0, 0] = 1  # which torch wants to be possible, and which stays here
    with path.open("rb") as file:
        assert file.read(len(header) + 1) == header + b"\0"


def test_what_killed_runs_left_is_swept_away(tmp_path: Path) -> None:
    left, busy = tmp_path / ".images-0123.part", tmp_path / ".images-4567.part"
    for part in (left, busy):
        part.mkdir()
        (part / "values.npy").write_bytes(b"half")
    with busy.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cached_pack(tmp_path, "thing", {}, maker(np.zeros(3)))
    assert not left.exists()
    assert busy.exists()


def _slow(cache: Path, log: Path) -> None:
    def make(folder: Path) -> Mapping[str, Any]:
        with log.open("a") as file:
            file.write("made\n")
        time.sleep(0.3)
        return maker(np.arange(5))(folder)

    assert cached_pack(cache, "thing", {}, make).arrays["values"].tolist() == [0, 1, 2, 3, 4]


def test_of_several_processes_one_makes_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [warm().Process(target=_slow, args=(tmp_path / "cache", log)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert log.read_text() == "made\n"


def _stuck(cache: Path, started: Path) -> None:
    def make(folder: Path) -> Mapping[str, Any]:
        maker(np.arange(5))(folder)
        started.touch()
        time.sleep(60)
        return {}

    cached_pack(cache, "thing", {}, make)


def test_one_that_is_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    started = tmp_path / "started"
    process = warm().Process(target=_stuck, args=(tmp_path / "cache", started))
    process.start()
    while not started.exists():
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    made = cached_pack(tmp_path / "cache", "thing", {}, maker(np.arange(5)))
    assert made.arrays["values"].tolist() == [0, 1, 2, 3, 4]
    assert not list((tmp_path / "cache").glob("*.part"))


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_what_the_system_lacks_is_no_fault_of_a_pack(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told to remove a pack that is sound."""

    def lack(_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("macnet.data.pack_store.read_json", lack)
    with pytest.raises(OSError, match=os.strerror(number)):
        open_pack(tmp_path)
