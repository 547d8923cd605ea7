"""What happened in a run, as lines of JSON: the losses, the validations, and why it ended.

A checkpoint remembers how long the record was. A run that goes on from it forgets what came after,
and writes it anew.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from macnet.disk import refuse_no_file
from macnet.errors import InputError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PLACE = ("stage", "step", "epoch", "questions", "seconds")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "train": (*PLACE, "loss", "accuracy", "lr"),
    "validation": (*PLACE, "accuracy", "best"),
    "end": ("why",),
}
"""What a line of each kind has at least. A validation's accuracy is a record: overall, by column.
A stage counts its own steps and epochs; questions and seconds are those of the run."""


class Record:
    """The record of a run, open to be written to.

    It goes on after the bytes to keep of what is there; with none, it begins anew. In the folder
    `tensorboard`, each stage becomes a run of TensorBoard's. Without a path nothing is written:
    of several processes, only the first has one.
    """

    def __init__(self, path: Path | None, keep: int = 0, tensorboard: Path | None = None) -> None:
        self._file: FileIO | None = None
        self._boards: Boards | None = None
        if path is None:
            return
        kept = _kept(path, keep)
        if tensorboard is not None:
            self._boards = Boards(tensorboard, kept)
        with _naming(path):
            self._file = path.open("r+b" if keep else "wb", buffering=0)
            self._file.seek(self._file.truncate(keep))
        self._path = path

    @property
    def size(self) -> int:
        """Bytes so far: what a checkpoint remembers."""
        return self._file.tell() if self._file else 0

    def write(self, **fields: Any) -> None:
        """Add a line, of one of the kinds in `FIELDS`."""
        if self._file is None:
            return
        left = json.dumps(_finite(fields)).encode() + b"\n"
        before = self.size
        with _naming(self._path):
            try:
                while left:
                    left = left[self._file.write(left) :]
            except BaseException:
                self._file.seek(self._file.truncate(before))  # no half of a line stays
                raise
        if self._boards:
            self._boards.show(fields)

    def sync(self) -> None:
        """Wait until all of it would outlast a power cut."""
        if self._file is not None:
            with _naming(self._path):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._boards is not None:
            self._boards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Boards:
    """The numbers of a record as TensorBoard shows them, in a folder for each stage."""

    def __init__(self, folder: Path, kept: list[dict[str, Any]]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(
                "--tensorboard needs a package that is not installed; pip install "
                "macnet[tensorboard]"
            ) from None
        self._open, self._folder = SummaryWriter, folder
        self._writers: dict[str, SummaryWriter] = {}
        self._last = {line["stage"]: line["step"] for line in kept if "stage" in line}

    def show(self, line: Mapping[str, Any]) -> None:
        kind = line["kind"]
        if kind not in ("train", "validation"):
            return
        if kind == "validation":
            values = line["accuracy"]
        else:
            values = {name: line[name] for name in line if name not in ("kind", *PLACE)}
        with _naming(self._folder):
            writer = self._writer(line["stage"])
            for name, value in values.items():
                writer.add_scalar(f"{kind}/{name}", value, line["step"])

    def _writer(self, stage: str) -> SummaryWriter:
        if stage not in self._writers:
            # What was shown of steps that are now repeated is not shown any more.
            repeated = self._last.get(stage, -1) + 1
            self._writers[stage] = self._open(self._folder / stage, purge_step=repeated)
        return self._writers[stage]

    def close(self) -> None:
        with _naming(self._folder):
            for writer in self._writers.values():
                writer.close()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A failed write does not say where."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_record(path: Path) -> list[dict[str, Any]]:
    """The lines of a record, but for a last one that is unfinished, as when a run was killed."""
    refuse_no_file(path)
    return _lines(path, path.read_bytes())


def _kept(path: Path, keep: int) -> list[dict[str, Any]]:
    """The lines that a run goes on from, if they are still those that its checkpoint knew."""
    if keep == 0:
        return []
    refuse_no_file(path)
    content = path.read_bytes()
    if content[keep - 1 : keep] != b"\n":
        raise InputError(
            f"{path}: the checkpoint knows {keep:,} bytes of it, but it has {len(content):,} and "
            "no line that ends there; it was changed, and the run cannot go on"
        )
    return _lines(path, content[:keep])


def _lines(path: Path, content: bytes) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
            missing = [name for name in FIELDS[line["kind"]] if name not in line]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError(f"{path}: line {number} is damaged; it is no line of a run") from None
        if missing:
            raise InputError(f'{path}: line {number} is damaged; it has no "{missing[0]}"')
        lines.append(line)
    return lines


def _finite(value: Any) -> Any:
    """With null for what JSON has no number for."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
