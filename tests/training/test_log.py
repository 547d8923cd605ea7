"""A record tells what happened once, however often its run was stopped."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broken_off import room_for
from macnet.errors import InputError
from macnet.training.log import TrainingLog, read_log

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


def end(step: int, stage: str = "answers") -> dict[str, Any]:
    place = {"stage": stage, "step": step, "epoch": step / 10, "questions": 64 * step}
    return {"kind": "end", **place, "seconds": 2.0, "reason": "early stopping"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [train(10), validation(10), train(20), end(20)]
    with TrainingLog(path) as log:
        for n, line in enumerate(lines, start=1):
            log.write(**line)
            assert read_log(path) == lines[:n], "each line is there at once"
            assert log.size == path.stat().st_size
        log.sync()
    assert read_log(path) == lines


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with TrainingLog(path) as log:
        log.write(**train(1, loss=float("nan"), gradient_norm=float("inf")))
        log.write(**(validation(1) | {"accuracy": {"overall": float("nan")}}))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for text in path.read_text().splitlines():
        json.loads(text, parse_constant=refuse)
    first, second = read_log(path)
    assert (first["loss"], first["gradient_norm"], first["lr"]) == (None, None, 1e-4)
    assert second["accuracy"] == {"overall": None}


@settings(max_examples=40, deadline=None)
@given(
    total=st.integers(0, 12),
    stops=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 40))),
)
def test_a_resumed_log_equals_one_that_was_never_stopped(
    tmp_path_factory: pytest.TempPathFactory, total: int, stops: list[tuple[int, int, int]]
) -> None:
    """A run is stopped after some lines, halfway in the next; its checkpoint is older."""
    path = tmp_path_factory.mktemp("run") / "log.jsonl"
    sizes = [0]
    keep = 0
    for saved, more, torn in [*stops, (total, total, 0)]:
        with TrainingLog(path, keep) as log:
            for step in range(len(sizes) - 1, max(saved, more)):
                log.write(**train(step))
                sizes.append(log.size)
        with path.open("ab") as file:
            file.write(json.dumps(train(99)).encode()[:torn])
        assert len(read_log(path)) == len(sizes) - 1
        sizes = sizes[: min(saved, total) + 1]
        keep = sizes[-1]
    with TrainingLog(path, keep):
        pass
    assert read_log(path) == [train(step) for step in range(total)]


def test_a_new_run_overwrites_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for step in (3, 4):
        with TrainingLog(path) as log:
            log.write(**train(step))
    assert read_log(path) == [train(4)]


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    with TrainingLog(None, 0, tmp_path / "boards") as log:
        log.write(**train(1))
        log.sync()
        assert log.size == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "keep", "expected"),
    [
        (None, 5, "there is no such file"),
        (b'{"kind": "end", "reason": ""}\n', 29, "knows 29 bytes of it, but it has 30"),
        (b'{"kind": "end", "reason": ""}\n', 31, "knows 31 bytes of it, but it has 30"),
        (b'{"kind": "end", "reason": "\n', 28, "line 1 is damaged"),
    ],
)
def test_logs_that_cannot_be_resumed(
    content: bytes | None, keep: int, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=expected) as refused:
        TrainingLog(path, keep)
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
        read_log(path)
    path.write_bytes(b"\n".join([sound, damage]))
    assert read_log(path) == [train(1)], "unfinished, and so forgiven"


def test_a_line_without_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    line = train(1)
    del line["lr"]
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(InputError, match='line 1 is damaged; it has no "lr"'):
        read_log(path)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with TrainingLog(path) as log:
        log.write(**train(1))
        size = log.size
        with room_for(size + 20), pytest.raises(OSError, match="large") as failure:
            log.write(**train(2))
        assert (failure.value.errno, failure.value.filename) == (errno.EFBIG, str(path))
        assert path.stat().st_size == log.size == size, "no half of a line stays"
        log.write(**train(3))
    assert read_log(path) == [train(1), train(3)]


def shown(folder: Path) -> dict[str, Any]:
    """What TensorBoard would show of one run of its own: for each name, steps and values."""
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )

    events = EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_tensorboard_shows_what_the_log_holds(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    path, boards = tmp_path / "log.jsonl", tmp_path / "boards"
    with TrainingLog(path, tensorboard=boards) as log:
        log.write(**train(10, "first"))
        log.write(**validation(10, "first"))
        log.write(**train(1, "second"))
        keep = log.size
        log.write(**train(2, "second", loss=99.0))
    with TrainingLog(path, keep, tensorboard=boards) as log:
        log.write(**train(2, "second"))
        log.write(kind="end", why="so many epochs")
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
        TrainingLog(tmp_path / "log.jsonl", tensorboard=tmp_path / "boards")
    assert list(tmp_path.iterdir()) == []
