"""The folder of a run: what the run is, how far it has come, and nobody else in it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from macnet import parallel
from macnet.configuration import differences
from macnet.disk import alone_in, read_json, write_json
from macnet.errors import InputError
from macnet.models.config import FOLLOWS
from macnet.training.checkpoint import BEST, LAST, Checkpoint, read_checkpoint, write_checkpoint

ABOUT, RECORD, CURVE = "run.json", "log.jsonl", "curve.png"
FAR = 1 << 40  # no run counts so many questions, bytes or seconds
PLACES = ("questions", "images", "place")  # where a dataset says it was found


@dataclass
class Standing:
    """How far a run has come: what a checkpoint keeps beside tensors."""

    stage: int = 0
    questions: int = 0
    seconds: float = 0.0
    record: int = 0
    """Bytes of the record."""

    # Of the stage:
    step: int = 0
    over: bool = False
    """The stage has ended, and the record says so."""
    best: float = -1.0
    """The highest validation accuracy."""
    waited: int = 0
    """Validations since then."""
    losses: list[float] = field(default_factory=list)
    """Of the epochs."""
    at_line: list[float] = field(default_factory=list)
    """What the meters showed at the last line of the record,"""
    at_epoch: list[float] = field(default_factory=list)
    """and at the end of the last epoch."""

    @classmethod
    def from_record(cls, record: Any, stages: int, path: Path) -> Standing:
        """What the checkpoint of a run of so many stages says; whoever made it up is refused."""
        fresh = asdict(cls())
        if not isinstance(record, dict) or record.keys() != fresh.keys():
            raise InputError(f"{path}: it does not say how far the run has come; it was not saved")
        for name, value in record.items():
            if not _is_like(fresh[name], value):
                raise InputError(f"{path}: {name} is {value!r:.40}; no run has come so far")
        standing = cls(**record)
        if standing.stage >= stages:
            raise InputError(f"{path}: stage is {standing.stage}, but the run has {stages}")
        return standing

    def next_stage(self) -> Standing:
        return Standing(self.stage + 1, self.questions, self.seconds, self.record)


class Run:
    """What is on disk of a run. Of several processes only the first has a folder; it tells."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.about = json.loads(json.dumps(about))  # as it will be read
        self._best: tuple[dict[str, Any], dict[str, Tensor]] | None = None

    @contextmanager
    def held(self, *, resume: bool) -> Iterator[Checkpoint | None]:
        """With nobody else in its folder; gives where it stands, if it was begun before."""
        with ExitStack() as holding:

            def begin() -> Checkpoint | None:
                holding.enter_context(alone_in(self.folder))
                return self._begun(resume)

            yield parallel.from_first(begin)

    def _begun(self, resume: bool) -> Checkpoint | None:
        path, last = self.folder / ABOUT, self.folder / LAST
        if not path.exists():
            unfinished = self.folder / f".{ABOUT}.part"  # of one that was killed as it began
            if {*self.folder.iterdir()} - {unfinished}:
                raise InputError(
                    f"{self.folder}: it is not empty, and holds no run; choose another --out"
                )
            write_json(path, self.about)
            return None
        about = read_json(path)
        if not isinstance(about, dict):
            raise InputError(f"{path}: it describes no run; choose another --out")
        if about.keys() == self.about.keys() and not has_learned(self.folder):
            write_json(path, self.about)
            return None
        if not resume:
            refuse_held(self.folder)
        self._refuse_another(about, f"{self.folder}: it holds a run")
        if not last.exists():
            return None
        checkpoint = read_checkpoint(last)
        own = {name: checkpoint.about.get(name) for name in self.about}
        self._refuse_another(own, f"{last}: it is of a run")
        if "standing" not in checkpoint.about:
            raise InputError(f"{last}: it is not for going on with training; is it {BEST}?")
        return checkpoint

    def _refuse_another(self, about: Mapping[str, Any], what: str) -> None:
        if others := differences(_to_compare(about), _to_compare(self.about)):
            more = f" (and {len(others) - 1} more)" if others[1:] else ""
            raise InputError(
                f"{what} of another configuration: {others[0]}{more}; choose another --out"
            )

    def remember(
        self, standing: Standing, accuracy: Mapping[str, float], weights: Mapping[str, Tensor]
    ) -> None:
        """The best network so far, to be written when next the run is saved."""
        if parallel.is_first():
            copies = {name: tensor.detach().clone() for name, tensor in weights.items()}
            reached = {"step": standing.step, "questions": standing.questions, "accuracy": accuracy}
            self._best = {**self.about, **reached}, copies

    def save(self, standing: Standing, state: Mapping[str, Tensor]) -> None:
        """All that going on takes. The best goes first: whoever repeats a step finds it again."""
        self.save_best()
        randomness = parallel.gathered(_randomness())

        def write() -> None:
            tensors = {
                f"random/{rank}/{kind}": value
                for rank, own in enumerate(randomness)
                for kind, value in own.items()
            }
            about = {**self.about, "standing": asdict(standing)}
            write_checkpoint(self.folder / LAST, about, {**state, **tensors})

        parallel.from_first(write)

    def save_best(self) -> None:
        """If it is better than what is on disk."""

        def write() -> None:
            if self._best is not None:
                write_checkpoint(self.folder / BEST, *self._best)
                self._best = None

        parallel.from_first(write)

    def best(self) -> dict[str, Tensor]:
        """The weights of the best network that was saved."""
        return parallel.from_first(lambda: read_checkpoint(self.folder / BEST).tensors)


def has_learned(folder: Path) -> bool:
    """Whether there is anything to lose: a run that failed as it began may begin again."""
    return (folder / BEST).exists() or (folder / LAST).exists()


def refuse_held(folder: Path) -> NoReturn:
    raise InputError(
        f"{folder}: it holds a run already; go on with it by --resume, or choose another --out"
    )


def _to_compare(about: Mapping[str, Any]) -> dict[str, Any]:
    """Data that were moved are still the same: their packs tell.

    What follows from the rest is left out: runs of earlier versions did not record it.
    """

    def without(names: Collection[str], told: object) -> object:
        if not isinstance(told, Mapping):
            return told
        return {name: value for name, value in told.items() if name not in names}

    kept = {name: value for name, value in about.items() if name != "experiment"}
    model, data = about.get("model"), about.get("data")
    if isinstance(model, Mapping) and "image" in model:  # a MAC's, and as "fit" has it
        kept["model"] = without(FOLLOWS, model)
    if isinstance(data, Mapping):
        kept["data"] = {name: without(PLACES, told) for name, told in data.items()}
    return kept


def _is_like(fresh: Any, value: Any) -> bool:
    """Whether a number, or a list of them, may have become of what a new run has there."""
    if isinstance(fresh, list):
        return isinstance(value, list) and all(
            type(number) in (int, float) and abs(number) < FAR for number in value
        )
    kinds = (int, float) if isinstance(fresh, float) else (type(fresh),)
    return type(value) in kinds and min(fresh, 0) <= value < FAR  # as nothing is that is no number


# --- randomness ------------------------------------------------------------------------------


def _randomness() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_randomness(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Of this process, unless more go on than were stopped."""
    own = f"random/{parallel.rank()}"
    try:
        if f"{own}/cpu" in tensors:
            torch.set_rng_state(tensors[f"{own}/cpu"])
        if f"{own}/cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors[f"{own}/cuda"])
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{path}: what it kept of randomness is none ({error})") from None
