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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from macnet.disk import refuse_no_file
from macnet.errors import InputError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

PLACE = ("stage", "step", "epoch", "questions", "seconds")
MEASURED = ("loss", "accuracy", "lr", "questions_per_second", "gradient_norm")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "train": (*PLACE, *MEASURED),
    "validation": (*PLACE, "accuracy", "best"),
    "end": ("why",),
}
"""What a line of each kind has. The accuracy of a validation is a record: overall, by column."""


class Record:
    """The record of a run, open to be written to."""

    def __init__(
        self, path: Path, keep: int | None = None, tensorboard: Path | None = None
    ) -> None:
        """Keeps that many bytes of what is there; without a number, begins anew.

        In the folder `tensorboard`, each stage becomes a run of TensorBoard's.
        """
        self.path = path
        kept = _kept(path, keep)
        self._boards = Boards(tensorboard, kept) if tensorboard else None
        with _naming(path):
            self._file = path.open("wb" if keep is None else "r+b", buffering=0)
            self._file.seek(self._file.truncate(keep or 0))

    @property
    def size(self) -> int:
        """Bytes so far: what a checkpoint remembers."""
        return self._file.tell()

    def write(self, **fields: Any) -> None:
        """Add a line, of one of the kinds in `FIELDS`."""
        left = json.dumps(_finite(fields)).encode() + b"\n"
        before = self.size
        with _naming(self.path):
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
        with _naming(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        if self._boards:
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
        values = line["accuracy"] if kind == "validation" else {k: line[k] for k in MEASURED}
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


def _kept(path: Path, keep: int | None) -> list[dict[str, Any]]:
    """The lines that a run goes on from, if they are still those that its checkpoint knew."""
    if keep is None:
        return []
    refuse_no_file(path)
    content = path.read_bytes()
    if len(content) < keep or (keep and content[keep - 1 : keep] != b"\n"):
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
