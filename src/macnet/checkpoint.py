"""Checkpoints: safetensors files that hold tensors and the metadata that describes them.

The header holds the metadata as JSON and a checksum of all that follows. Nothing in a checkpoint is
ever executed. A new one replaces the old one only when it is complete and on the disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from macnet.configuration import SIZES, with_changes
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError, is_out_of_memory, not_finite_error
from macnet.files import check_is_file, write_atomically
from macnet.models.mac import StepTrace
from macnet.models.registry import SYSTEMS, find_preset
from macnet.models.system import System
from macnet.paper import TABLE_1

FORMAT = 2
BEST, LAST = "best.safetensors", "last.safetensors"
SHIPPED = Path(__file__).parent / "weights" / "mac.safetensors"
NEW_EMBEDDING_STD = 0.01  # of the vectors of new words, as in clevr-iep
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INIT_FUNCTIONS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


RunLike: TypeAlias = str | PathLike[str] | None
"""A run by its folder, a file of weights or a `Run`; None is the network shipped with macnet."""


class Checkpoint(NamedTuple):
    """The content of a checkpoint file."""

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


def write_checkpoint(
    path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a checkpoint; `metadata` must be JSON."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format": FORMAT, **metadata}, sort_keys=True)
    write_atomically(path, save(plain, {"macnet": text, "checksum": _checksum(text, plain)}))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint; one that is damaged or of another format is refused."""
    check_is_file(path)
    if not path.is_file():
        raise InputError(f"{path}: this is not a regular file, so it is no checkpoint")
    path.open("rb").close()  # raises PermissionError, which safe_open reports as a missing file
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise MemoryError(str(error)) from None
        raise InputError(f"{path}: it is damaged, or no checkpoint ({error})") from None
    if "macnet" not in header:
        raise InputError(f"{path}: it has no metadata of macnet, so it is no checkpoint")
    if header.get("checksum") != _checksum(header["macnet"], tensors):
        raise InputError(f"{path}: it is damaged; its content does not match its checksum")
    try:
        metadata = json.loads(header["macnet"])
        written = metadata["format"]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{path}: its metadata cannot be read") from None
    if written != FORMAT:
        raise InputError(
            f"{path}: it was written in format {written!r:.40} by another version of macnet; this "
            f"version reads format {FORMAT}"
        )
    return Checkpoint(metadata, tensors)


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\t{tensor.dtype}\t{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- networks from checkpoints ---------------------------------------------------------------


@dataclass(frozen=True)
class TrainedNetwork:
    """A trained network: its weights, and all that is needed to build and use it."""

    system: System
    config: Any
    data_spec: DataSpec
    vocabulary: Vocabulary
    weights: Mapping[str, Tensor]
    metadata: Mapping[str, Any]
    path: Path

    @property
    def row(self) -> str | None:
        """The label of this network in the paper's tables 1 and 2, or None."""
        return self.system.find_row(self.config, self.programs)

    @property
    def label(self) -> str:
        """What reports call it: its row in the paper's table 1, else that of its system."""
        row = self.row
        return row if row and row in TABLE_1 else self.system.label_with(self.programs)

    @property
    def programs(self) -> int:
        """The number of questions whose programs it has learned from; 0 stands for all."""
        experiment = self.metadata.get("experiment")
        programs = experiment.get("programs") if isinstance(experiment, Mapping) else None
        return programs if isinstance(programs, int) else 0

    @property
    def share(self) -> float | None:
        """The share of the training questions it was trained on; None if it is no such share."""
        experiment = self.metadata.get("experiment")
        return experiment.get("share") if isinstance(experiment, Mapping) else None

    def check_compatible(self, system: System, vocabulary: Vocabulary) -> None:
        """Check that training of this system with this vocabulary can start from these weights."""
        if self.system is not system:
            raise InputError(
                f"{self.path}: it is of the system {self.system.name}, but {system.name} is trained"
            )
        own, theirs = self.vocabulary, vocabulary
        if (own.tokenizer, own.answers) != (theirs.tokenizer, theirs.answers):
            raise InputError(f"{self.path}: its tokenizer or its answers are not those of the data")
        for n, (a, b) in enumerate(zip_longest(own.words, theirs.words[: len(own)])):
            if a != b:
                raise InputError(
                    f"{self.path}: it has another vocabulary: its word {n} is {a!r}, that of the "
                    f"data {'missing' if b is None else repr(b)}; pack the data with its vocabulary"
                )

    def network(self) -> nn.Module:
        """Build the network with its weights, in evaluation mode."""
        with _SkipInit():
            network = self.system.build(self.config, self.data_spec)
        load_weights(network, self.weights, self.path)
        return network.eval()

    def tracer(
        self, network: nn.Module
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, list[StepTrace]]]:
        """The function from images and questions to logits and reasoning steps of the network."""
        if self.system.trace is None:
            lacks = "reasons in no steps" if self.system.programs else "has no attention to show"
            raise self._other_system(lacks, [s for s in SYSTEMS.values() if s.trace])
        return partial(self.system.trace, network)

    def check_explainable(self) -> None:
        """Check that there is something to show: reasoning steps, or programs."""
        if not (self.system.trace or self.system.programs):
            explainable = [s for s in SYSTEMS.values() if s.trace or s.programs]
            raise self._other_system("has no attention and no program to show", explainable)

    def _other_system(self, lacks: str, systems: Sequence[System]) -> InputError:
        *others, last = (system.name for system in systems)
        named = f"{', '.join(others)} or {last}" if others else last
        return InputError(
            f"{self.path}: it is of the system {self.system.name}, which {lacks}; take a network "
            f"of the system {named}"
        )

    def to_record(self) -> dict[str, Any]:
        """What a report records of the network, for JSON."""
        named = {name: self.metadata.get(name) for name in ("preset", "step")}
        return {"run": str(self.path.resolve()), **named, "row": self.row, "share": self.share}


def build_on_meta(system: System, config: Any, data_spec: DataSpec) -> nn.Module:
    """The network with shapes alone, which takes no memory."""
    with torch.device("meta"), _SkipInit():
        return system.build(config, data_spec)


class _SkipInit(TorchFunctionMode):
    """Builds networks without initializing weights, which those of a checkpoint replace.

    To initialize takes longer than to read; and on the meta device torch would load its compiler.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        if func in INIT_FUNCTIONS:
            return given["tensor"]
        return (torch.empty if func is torch.randn else func)(*args, **given)


def resolve_run(run: RunLike) -> Path:
    """The file of weights of a run: the best of its folder, or the file that is given."""
    if run is None:
        if not SHIPPED.exists():
            raise InputError(
                f"{SHIPPED}: the network that comes with macnet is missing; install macnet again, "
                "or give a run of your own"
            )
        return SHIPPED
    given = Path(run)
    if given.is_dir() and not (given / BEST).exists():
        raise InputError(f"{given}: there is no {BEST} in it; has it been validated yet?")
    return given / BEST if given.is_dir() else given


def load_trained(run: RunLike = None) -> TrainedNetwork:
    """The trained network of a run; nothing is built yet."""
    path = resolve_run(run)
    metadata, tensors = read_checkpoint(path)
    if "model" not in metadata or "state" in metadata:
        raise InputError(f"{path}: it is for resuming training; give the folder or {BEST}")
    vocabulary = Vocabulary.from_record(metadata.get("vocabulary"), str(path))
    try:
        preset, data_spec = find_preset(metadata["preset"]), DataSpec(**metadata["data_spec"])
        config = preset.system.resolve(with_changes(preset.config, metadata["model"]), data_spec)
        if (data_spec.vocabulary, data_spec.answers) != (len(vocabulary), len(vocabulary.answers)):
            raise ValueError("its vocabulary and its data_spec differ in size")
        if type(data_spec.pixels) is not bool or not all(
            type(size) is int and 0 <= size <= SIZES for size in data_spec if type(size) is not bool
        ):
            raise ValueError("its data_spec has an impossible size")
        if not isinstance(metadata["data"]["val"], Mapping):
            raise ValueError("it does not say what it was validated on")
    except (InputError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: its metadata describes no known network ({error})") from None
    # Before memory is taken: the weights must be those of the network that is described.
    check_tensors(tensors, build_on_meta(preset.system, config, data_spec).state_dict(), path)
    return TrainedNetwork(preset.system, config, data_spec, vocabulary, tensors, metadata, path)


def train_share(train: object) -> float | None:
    """The share of questions that were trained on, by the metadata of the training set.

    It is 1 for an endless world. None if images were left out, or if the subset is one of images:
    the paper's share is one of questions. Nor are new questions in every epoch a share of any.
    """
    if not isinstance(train, Mapping) or train.get("left_out") or train.get("fresh_questions"):
        return None
    rules = train.get("subsets", [])
    if rules == []:
        return 1.0
    try:
        (rule,) = rules
        return float(rule["share"]) if rule["by"] == "question" else None
    except (TypeError, ValueError, LookupError):
        return None


def export(run: RunLike, out: str | PathLike[str]) -> Path:
    """Write the best network of a run into one small file, in half precision."""
    out = Path(out)
    if out.suffix != ".safetensors":
        raise InputError(f"{out}: the name of a file of weights must end in .safetensors")
    if out.name in (BEST, LAST):
        raise InputError(f"{out}: files of runs have this name; choose another")
    trained = load_trained(run)
    halves = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in trained.weights.items()
    }
    for name, tensor in halves.items():
        if not trained.weights[name].isfinite().all():
            raise not_finite_error(trained.path, f"its weights {name!r}")
        if not tensor.isfinite().all():
            raise InputError(f"{trained.path}: {name!r} holds numbers too large for a half float")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(out, trained.metadata, halves)
    return out


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Copy weights into a network; its embedding may have more words, whose vectors are new."""
    own = network.state_dict()
    for name, new in weights.items():
        if name.endswith("embedding.weight") and name in own and new.dim() > 0:
            room = own[name]
            room[len(new) :].normal_(std=NEW_EMBEDDING_STD)
            own[name] = room[: len(new)]
    check_tensors(weights, own, path)
    for name, room in own.items():
        room.copy_(weights[name])
        # A sum is a tenth of the work, and only where it is not finite, a weight may not be.
        if room.is_floating_point() and not room.sum().isfinite() and not room.isfinite().all():
            raise not_finite_error(path, f"its weights {name!r}")


def check_tensors(
    found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path, *, exact: bool = False
) -> None:
    """Check that tensors of a file have the wanted names, shapes and types.

    The wanted ones may be on the meta device. Floats of another precision pass unless `exact`.
    """
    for name in [*wanted, *found]:
        if name not in found or name not in wanted:
            where = "the checkpoint" if name not in found else "the network"
            raise InputError(
                f"{path}: {where} has no {name!r}; this is a checkpoint of another configuration"
            )
    for name, room in wanted.items():
        new = found[name]
        if room.shape != new.shape:
            raise InputError(
                f"{path}: {name!r} is {tuple(new.shape)}, but {tuple(room.shape)} is wanted; this "
                "is a checkpoint of another configuration, or of other images"
            )
        inexact = not exact and room.dtype in FLOATS and new.dtype in FLOATS
        if room.dtype != new.dtype and not inexact:
            raise InputError(
                f"{path}: {name!r} is of {new.dtype}, but {room.dtype} is wanted; this is no "
                "checkpoint of this network"
            )
