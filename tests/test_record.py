"""A record tells what happened once, however often its run was stopped."""

from __future__ import annotations

import errno
import json
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.errors import InputError
from macnet.training.record import Record, read_record

COLUMNS = ("overall", "Count", "Exist", "Compare Numbers", "Query Attribute", "Compare Attribute")


def train(step: int, stage: str = "answers", **changes: Any) -> dict[str, Any]:
    place = {"stage": stage, "step": step, "epoch": step / 10, "questions": 64 * step}
    measured = {"loss": 3 / (1 + step), "accuracy": 0.5, "lr": 1e-4, "gradient_norm": 2.0}
    rest = {"seconds": 0.1 * step, "questions_per_second": 640.0}
    return {"kind": "train", **place, **measured, **rest} | changes


def validation(step: int, stage: str = "answers") -> dict[str, Any]:
    place = {"stage": stage, "step": step, "epoch": step / 10, "questions": 64 * step}
    accuracy = {name: 0.5 + 0.01 * i for i, name in enumerate(COLUMNS)}
    return {"kind": "validation", **place, "seconds": 1.0, "accuracy": accuracy, "best": True}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [train(10), validation(10), train(20), {"kind": "end", "why": "no better for 5"}]
    with Record(path) as record:
        for n, line in enumerate(lines, start=1):
            record.write(**line)
            assert read_record(path) == lines[:n], "each line is there at once"
            assert record.size == path.stat().st_size
        record.sync()
    assert read_record(path) == lines


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Record(path) as record:
        record.write(**train(1, loss=float("nan"), gradient_norm=float("inf")))
        record.write(**(validation(1) | {"accuracy": {"overall": float("nan")}}))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for text in path.read_text().splitlines():
        json.loads(text, parse_constant=refuse)
    first, second = read_record(path)
    assert (first["loss"], first["gradient_norm"], first["lr"]) == (None, None, 1e-4)
    assert second["accuracy"] == {"overall": None}


@settings(max_examples=40, deadline=None)
@given(
    total=st.integers(0, 12),
    stops=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 40))),
)
def test_stopped_and_gone_on_is_never_stopped(
    tmp_path_factory: pytest.TempPathFactory, total: int, stops: list[tuple[int, int, int]]
) -> None:
    """A run is stopped after some lines, halfway in the next; its checkpoint is older."""
    path = tmp_path_factory.mktemp("run") / "log.jsonl"
    sizes = [0]
    keep = 0
    for saved, more, torn in [*stops, (total, total, 0)]:
        with Record(path, keep) as record:
            for step in range(len(sizes) - 1, max(saved, more)):
                record.write(**train(step))
                sizes.append(record.size)
        with path.open("ab") as file:
            file.write(json.dumps(train(99)).encode()[:torn])
        assert len(read_record(path)) == len(sizes) - 1
        sizes = sizes[: min(saved, total) + 1]
        keep = sizes[-1]
    with Record(path, keep):
        pass
    assert read_record(path) == [train(step) for step in range(total)]


def test_a_new_run_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for step in (3, 4):
        with Record(path) as record:
            record.write(**train(step))
    assert read_record(path) == [train(4)]


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    with Record(None, 0, tmp_path / "boards") as record:
        record.write(**train(1))
        record.sync()
        assert record.size == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "keep", "expected"),
    [
        (None, 5, "there is no such file"),
        (b'{"kind": "end", "why": ""}\n', 26, "knows 26 bytes of it, but it has 27"),
        (b'{"kind": "end", "why": ""}\n', 28, "knows 28 bytes of it, but it has 27"),
        (b'{"kind": "end", "why": "\n', 25, "line 1 is damaged"),
    ],
)
def test_what_a_run_cannot_go_on_from(
    content: bytes | None, keep: int, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=expected) as refused:
        Record(path, keep)
    assert str(refused.value).startswith(f"{path}: ")
    assert (path.read_bytes() if path.exists() else None) == content


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"nonsense",
        b"[1]",
        b'"kind"',
        b'{"kind": "other"}',
        b'{"kind": []}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_damaged_lines_are_named(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    sound = json.dumps(train(1)).encode()
    path.write_bytes(b"\n".join([sound, damage, sound, b""]))
    with pytest.raises(InputError, match=r"log.jsonl: line 2 is damaged"):
        read_record(path)
    path.write_bytes(b"\n".join([sound, damage]))
    assert read_record(path) == [train(1)], "unfinished, and so forgiven"


def test_a_line_without_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    line = train(1)
    del line["lr"]
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match='line 1 is damaged; it has no "lr"'):
        read_record(path)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files may not grow beyond this: as on a full disk, a write is cut short, the next fails."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Record(path) as record:
        record.write(**train(1))
        size = record.size
        with room_for(size + 20), pytest.raises(OSError, match="large") as failure:
            record.write(**train(2))
        assert (failure.value.errno, failure.value.filename) == (errno.EFBIG, str(path))
        assert path.stat().st_size == record.size == size, "no half of a line stays"
        record.write(**train(3))
    assert read_record(path) == [train(1), train(3)]


def shown(folder: Path) -> dict[str, Any]:
    """What TensorBoard would show of one run of its own: for each name, steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_tensorboard_shows_what_the_record_holds(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    path, boards = tmp_path / "log.jsonl", tmp_path / "boards"
    with Record(path, tensorboard=boards) as record:
        record.write(**train(10, "first"))
        record.write(**validation(10, "first"))
        record.write(**train(1, "second"))
        keep = record.size
        record.write(**train(2, "second", loss=99.0))
    with Record(path, keep, tensorboard=boards) as record:
        record.write(**train(2, "second"))
        record.write(kind="end", why="so many epochs")
    first, second = shown(boards / "first"), shown(boards / "second")
    for n, name in enumerate(COLUMNS):
        assert first[f"validation/{name}"] == [(10, pytest.approx(0.5 + 0.01 * n))]
    assert first["train/loss"] == [(10, pytest.approx(3 / 11))]
    assert second["train/loss"] == [(1, pytest.approx(1.5)), (2, pytest.approx(1.0))]
    assert second["train/lr"] == [(1, pytest.approx(1e-4)), (2, pytest.approx(1e-4))]
    assert "train/questions_per_second" in second


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install macnet\[tensorboard\]"):
        Record(tmp_path / "log.jsonl", tensorboard=tmp_path / "boards")
    assert list(tmp_path.iterdir()) == []
