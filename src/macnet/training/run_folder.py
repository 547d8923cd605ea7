"""The folder of a run: its metadata, log and checkpoints, for one process group at a time."""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macnet import distributed
from macnet.checkpoint import BEST, LAST, Checkpoint, read_checkpoint, write_checkpoint
from macnet.configuration import differences
from macnet.errors import InputError
from macnet.files import locked_folder, read_json, write_json

METADATA, LOG, CURVE = "run.json", "log.jsonl", "curve.png"
MAX_COUNT = 1 << 40  # no run counts so many questions, bytes or seconds
MOVED = re.compile(r"data\.\w+\.(questions|images|source)\b")
"""Differences between the same data in two places: where a dataset says it was found."""


@dataclass
class TrainState:
    """How far a run has come: what a checkpoint keeps beside tensors."""

    stage: int = 0
    """The index of the stage."""
    questions: int = 0
    """Number of training questions seen in the run."""
    seconds: float = 0.0
    """Seconds of training in the run."""
    log_size: int = 0
    """Bytes of the log."""
    step: int = 0
    """Number of steps made in the stage."""
    finished: bool = False
    """Whether the stage has ended, and the log says so."""
    best_accuracy: float = -1.0
    """The highest validation accuracy in the stage."""
    validations_since_best: int = 0
    """Number of validations in the stage since the best."""
    epoch_losses: list[float] = field(default_factory=list)
    """The mean training loss of each epoch of the stage."""
    meters_at_log: list[float] = field(default_factory=list)
    """The meters at the last line of the log."""
    meters_at_epoch: list[float] = field(default_factory=list)
    """The meters at the end of the last epoch."""

    @classmethod
    def from_record(cls, record: Any, stages: int, path: Path) -> TrainState:
        """The state that a checkpoint records of a run of so many stages, if it is possible."""
        initial = asdict(cls())
        if not isinstance(record, dict) or record.keys() != initial.keys():
            raise InputError(f"{path}: it does not say how far the run has come; it was not saved")
        for name, value in record.items():
            if not _is_possible(value, initial[name]):
                raise InputError(f"{path}: {name} is {value!r:.40}; no run has come so far")
        state = cls(**record)
        if state.stage >= stages:
            raise InputError(f"{path}: stage is {state.stage}, but the run has {stages}")
        return state

    def next_stage(self) -> TrainState:
        """The state at the start of the next stage."""
        return TrainState(self.stage + 1, self.questions, self.seconds, self.log_size)


def _is_possible(value: Any, initial: Any) -> bool:
    """Whether a number, or a list of numbers, may have become of its initial value."""
    if isinstance(initial, list):
        return isinstance(value, list) and all(
            type(number) in (int, float) and abs(number) < MAX_COUNT for number in value
        )
    kinds = (int, float) if isinstance(initial, float) else (type(initial),)
    return type(value) in kinds and min(initial, 0) <= value < MAX_COUNT  # false for NaN


class RunFolder:
    """The folder of a run. Only the process of rank zero touches it, and tells the others."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self.metadata = json.loads(json.dumps(metadata))  # as it will be read
        self._best: tuple[dict[str, Any], dict[str, Tensor]] | None = None

    @contextmanager
    def lock(self, *, resume: bool) -> Iterator[Checkpoint | None]:
        """Have the folder for this run alone; gives its last checkpoint, if it has one."""
        with ExitStack() as stack:

            def start() -> Checkpoint | None:
                stack.enter_context(locked_folder(self.path))
                return self._start(resume)

            yield distributed.from_rank_zero(start)

    def _start(self, resume: bool) -> Checkpoint | None:
        path, last = self.path / METADATA, self.path / LAST
        if not path.exists():
            unfinished = self.path / f".{METADATA}.part"  # of one that was killed as it began
            if {*self.path.iterdir()} - {unfinished}:
                raise InputError(
                    f"{self.path}: it is not empty, and holds no run; choose another `out`"
                )
            write_json(path, self.metadata)
            return None
        metadata = read_json(path)
        if not isinstance(metadata, dict):
            raise InputError(f"{path}: it describes no run; choose another `out`")
        if metadata.keys() == self.metadata.keys() and not has_checkpoint(self.path):
            write_json(path, self.metadata)
            return None
        if not resume:
            check_new(self.path)
        self._check_same_run(metadata, f"{self.path}: it holds a run")
        if not last.exists():
            return None
        checkpoint = read_checkpoint(last)
        own = {name: checkpoint.metadata.get(name) for name in self.metadata}
        self._check_same_run(own, f"{last}: it is of a run")
        if "state" not in checkpoint.metadata:
            raise InputError(f"{last}: training cannot go on from it; is it {BEST}?")
        return checkpoint

    def _check_same_run(self, metadata: Mapping[str, Any], what: str) -> None:
        found = differences(metadata, self.metadata)
        if others := [other for other in found if not MOVED.match(other)]:
            more = f" (and {len(others) - 1} more)" if others[1:] else ""
            raise InputError(
                f"{what} of another configuration: {others[0]}{more}; choose another `out`"
            )

    def set_best(
        self, state: TrainState, accuracy: Mapping[str, float], weights: Mapping[str, Tensor]
    ) -> None:
        """Keep the best network so far, to be written when the run is next saved."""
        if distributed.is_rank_zero():
            copies = {name: tensor.detach().clone() for name, tensor in weights.items()}
            reached = {"step": state.step, "questions": state.questions, "accuracy": accuracy}
            self._best = {**self.metadata, **reached}, copies

    def save(self, state: TrainState, tensors: Mapping[str, Tensor]) -> None:
        """Write all that resuming takes. The best goes first: who repeats a step finds it again."""
        self.save_best()
        content = {**tensors, **ChainMap(*distributed.all_gather(_random_state()))}
        metadata = {**self.metadata, "state": asdict(state)}
        distributed.from_rank_zero(lambda: write_checkpoint(self.path / LAST, metadata, content))

    def save_best(self) -> None:
        """Write the best network, if it is better than the one on disk."""

        def write() -> None:
            if self._best is not None:
                write_checkpoint(self.path / BEST, *self._best)
                self._best = None

        distributed.from_rank_zero(write)

    def best_weights(self) -> dict[str, Tensor]:
        """The weights of the best network that was saved."""
        return distributed.from_rank_zero(lambda: read_checkpoint(self.path / BEST).tensors)


def has_checkpoint(folder: Path) -> bool:
    """Whether there is anything to lose: a run that failed before may be started anew."""
    return (folder / BEST).exists() or (folder / LAST).exists()


def check_new(folder: Path) -> None:
    """Check that no network was trained in the folder."""
    if has_checkpoint(folder):
        raise InputError(
            f"{folder}: it holds a run already; go on with it with `resume`, or choose another "
            "`out`"
        )


# --- random numbers --------------------------------------------------------------------------


def _random_state() -> dict[str, Tensor]:
    """The states of the generators of this process, by the names they have in a checkpoint."""
    state = {f"random/{distributed.rank()}/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state[f"random/{distributed.rank()}/cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Restore the generators of this process, unless there are more processes now than before."""
    own = f"random/{distributed.rank()}"
    try:
        if f"{own}/cpu" in tensors:
            torch.set_rng_state(tensors[f"{own}/cpu"])
        if f"{own}/cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors[f"{own}/cuda"])
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{path}: its state of random numbers is none ({error})") from None
