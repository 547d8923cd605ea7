"""The log of a run, as lines of JSON: training loss, validations, and why stages ended.

A checkpoint records the size of the log. A run that is resumed from it cuts off what came after,
and writes it anew.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from macnet.errors import InputError
from macnet.files import check_is_file

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

POSITION = ("stage", "step", "epoch", "questions", "seconds")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "train": (*POSITION, "loss", "accuracy", "lr"),
    "validation": (*POSITION, "accuracy", "best"),
    "end": (*POSITION, "reason"),
}
"""The fields that a line of each kind has at least.

The accuracy of a validation is a mapping: overall, and by question type. Steps and epochs are
counted in the stage; questions and seconds in the run.
"""


class TrainingLog(ExitStack):
    """The log of a run, open for writing.

    Of what is there, so many bytes are kept. In the folder `tensorboard`, each stage becomes a run
    of TensorBoard's. Without a path nothing is written: of several processes, only the first has
    one.
    """

    def __init__(self, path: Path | None, keep: int = 0, tensorboard: Path | None = None) -> None:
        super().__init__()  # it closes the files
        self._file: FileIO | None = None
        self._boards: TensorBoardLog | None = None
        if path is None:
            return
        kept = read_log(path, keep) if keep else []
        if tensorboard is not None:
            self._boards = self.enter_context(closing(TensorBoardLog(tensorboard, kept)))
        with _naming(path):
            self._file = self.enter_context(path.open("r+b" if keep else "wb", buffering=0))
            self._file.seek(self._file.truncate(keep))
        self._path = path

    @property
    def size(self) -> int:
        """Bytes so far, for the checkpoint."""
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
            self._boards.write(fields)

    def sync(self) -> None:
        """Wait until all of it is on disk, so that it would outlast a power cut."""
        if self._file is not None:
            with _naming(self._path):
                os.fsync(self._file.fileno())


class TensorBoardLog:
    """The numbers of a log for TensorBoard, in a folder for each stage."""

    def __init__(self, folder: Path, kept: list[dict[str, Any]]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(
                "`tensorboard` needs a package that is not installed; pip install "
                "macnet[tensorboard]"
            ) from None
        self._open, self._folder = SummaryWriter, folder
        self._writers: dict[str, SummaryWriter] = {}
        self._last = {line["stage"]: line["step"] for line in kept}

    def write(self, line: Mapping[str, Any]) -> None:
        """Write the numbers of a line of the log."""
        kind, values = line["kind"], line.get("accuracy", {})
        if kind == "train":
            values = {name: line[name] for name in line if name not in ("kind", *POSITION)}
        with _naming(self._folder):
            for name, value in values.items():
                self._writer(line["stage"]).add_scalar(f"{kind}/{name}", value, line["step"])

    def _writer(self, stage: str) -> SummaryWriter:
        if stage not in self._writers:
            # What was written of steps that are now repeated is not shown any more.
            repeated = self._last.get(stage, -1) + 1
            self._writers[stage] = self._open(self._folder / stage, purge_step=repeated)
        return self._writers[stage]

    def close(self) -> None:
        """Close the files."""
        with _naming(self._folder):
            for writer in self._writers.values():
                writer.close()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in the error of a failed write."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_log(path: Path, keep: int | None = None) -> list[dict[str, Any]]:
    """The lines of a log, without a last one that is unfinished, as when a run was killed.

    With `keep`, those in so many first bytes, which a checkpoint knows and which must be there.
    """
    check_is_file(path)
    content = path.read_bytes()
    if keep is not None and content[keep - 1 : keep] != b"\n":
        raise InputError(
            f"{path}: the checkpoint knows {keep:,} bytes of it, but it has {len(content):,} and "
            "no line that ends there; it was changed, and the run cannot be resumed"
        )
    lines = []
    for number, text in enumerate(content[:keep].split(b"\n")[:-1], start=1):
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
