"""Checkpoints: files of tensors that say themselves what they are.

They are safetensors files, whose header holds the description as JSON and a checksum of all that
follows. Nothing in them is ever executed. A new one takes the place of the old one only when it is
whole and on the disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from macnet.configuration import SIZES, changed
from macnet.data.vocab import Vocabulary
from macnet.disk import refuse_no_file, write_safely
from macnet.errors import InputError, is_about_memory, not_finite
from macnet.models.registry import Fit, System, find_preset

FORMAT = 1
BEST, LAST = "best.safetensors", "last.safetensors"
NEW_WORD = 0.01  # the spread of new words' vectors, as clevr-iep has it
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FIRST_WEIGHTS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)


class Checkpoint(NamedTuple):
    about: dict[str, Any]
    tensors: dict[str, Tensor]


def write_checkpoint(path: Path, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format": FORMAT, **about}, sort_keys=True)
    write_safely(path, save(plain, {"macnet": text, "checksum": _checksum(text, plain)}))


def read_checkpoint(path: Path) -> Checkpoint:
    refuse_no_file(path)
    if not path.is_file():
        raise InputError(f"{path}: it is no checkpoint, nor a file of any kind")
    path.open("rb").close()  # which says why it may not be read; the next takes it for missing
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, RuntimeError) as error:
        if is_about_memory(error):
            raise MemoryError(str(error)) from None
        raise InputError(f"{path}: it is damaged, or no checkpoint ({error})") from None
    if "macnet" not in header:
        raise InputError(f"{path}: these weights do not say what they are of; not a checkpoint")
    if header.get("checksum") != _checksum(header["macnet"], tensors):
        raise InputError(f"{path}: it is damaged; its content is not as it was written")
    try:
        about = json.loads(header["macnet"])
        written = about["format"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InputError(f"{path}: what it says of itself makes no sense") from None
    if written != FORMAT:
        raise InputError(f"{path}: written in format {written!r:.40}, by another version")
    return Checkpoint(about, tensors)


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\t{tensor.dtype}\t{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- networks from checkpoints ---------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A network that has learned, and what is to be known of it."""

    system: System
    config: Any
    fit: Fit
    vocabulary: Vocabulary
    weights: Mapping[str, Tensor]
    about: Mapping[str, Any]
    path: Path

    @property
    def row(self) -> str | None:
        """Its label in the paper's tables 1 and 2, if it is there."""
        return self.system.find_row(self.config)

    @property
    def share(self) -> float | None:
        """Of the training questions, how many it learned from; None if that is no such share."""
        experiment = self.about.get("experiment")
        if isinstance(experiment, Mapping):
            return experiment.get("share")
        return share_of(self.about["data"].get("train"))  # as written before it was recorded

    def refuse_another(self, system: System, vocabulary: Vocabulary) -> None:
        """What goes on from here is the same system, and its words keep their ids."""
        if self.system is not system:
            raise InputError(
                f"{self.path}: it is of the system {self.system.name}, but {system.name} is trained"
            )
        own, theirs = self.vocabulary, vocabulary
        if (own.tokenising, own.answers) != (theirs.tokenising, theirs.answers):
            raise InputError(f"{self.path}: it cuts up texts, or answers, otherwise than the data")
        for n, (a, b) in enumerate(zip_longest(own.words, theirs.words[: len(own)])):
            if a != b:
                raise InputError(
                    f"{self.path}: it knows other words: its word {n} is {a!r}, that of the data "
                    f"{'nothing' if b is None else repr(b)}; pack the data with its vocabulary"
                )

    def network(self) -> nn.Module:
        with _Unfilled():
            network = self.system.build(self.config, self.fit)
        load_weights(network, self.weights, self.path)
        return network.eval()

    def _check(self) -> None:
        """Before memory is taken: that the weights are those of the network it describes."""
        network = build_on_meta(self.system, self.config, self.fit)
        check_tensors(self.weights, network.state_dict(), self.path)


def build_on_meta(system: System, config: Any, fit: Fit) -> nn.Module:
    """A network of shapes alone, which takes no memory."""
    with torch.device("meta"), _Unfilled():
        return system.build(config, fit)


class _Unfilled(TorchFunctionMode):
    """Networks are built in here without first weights, which those of a checkpoint replace.

    To draw them takes longer than to read these; and on the device meta, torch would load its
    compiler for it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        if func in FIRST_WEIGHTS:
            return given["tensor"]
        return (torch.empty if func is torch.randn else func)(*args, **given)


def open_trained(run: Path) -> Trained:
    """The best of a run by its folder, or any checkpoint of weights by its file."""
    path = run / BEST if run.is_dir() else run
    if run.is_dir() and not path.exists():
        raise InputError(f"{run}: there is no {path.name} in it; has it been validated yet?")
    about, tensors = read_checkpoint(path)
    if "model" not in about or "standing" in about:
        raise InputError(f"{path}: it is for going on with training; give the folder or {BEST}")
    vocabulary = Vocabulary.from_record(about.get("vocabulary"), str(path))
    try:
        preset, fit = find_preset(about["preset"]), Fit(**about["fit"])
        config = preset.system.fitted(changed(preset.config, about["model"]), fit)
        if (fit.vocabulary, fit.answers) != (len(vocabulary), len(vocabulary.answers)):
            raise ValueError("its words, or answers, are more or fewer than it was made for")
        if type(fit.pixels) is not bool or not all(
            type(size) is int and 0 <= size <= SIZES for size in fit[3:]
        ):
            raise ValueError("it was made for images of no size, or of one that none have")
        if not isinstance(about["data"]["val"], Mapping):
            raise ValueError("it does not say what it was validated on")
    except (InputError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: it describes no network that is known ({error})") from None
    trained = Trained(preset.system, config, fit, vocabulary, tensors, about, path)
    trained._check()
    return trained


def share_of(train: object) -> float | None:
    """Of the questions of a training set, by what is recorded of it, the share that counts.

    All count of an endless world too. None where images were left out, or whole images chosen:
    that is a part, but no share of the questions as the paper takes it.
    """
    if not isinstance(train, Mapping) or train.get("left out"):
        return None
    rules = train.get("subsets", [])
    if rules == []:
        return 1.0
    try:
        (rule,) = rules
        return float(rule["share"]) if rule["by"] == "question" else None
    except (TypeError, ValueError, LookupError):
        return None


def write_halved(trained: Trained, path: Path) -> None:
    """One small file to give away: the weights in half precision, half as many bytes."""
    halves = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in trained.weights.items()
    }
    for name, tensor in halves.items():
        if not trained.weights[name].isfinite().all():
            raise not_finite(trained.path, f"its weights {name!r}")
        if not tensor.isfinite().all():
            raise InputError(f"{trained.path}: {name!r} holds numbers too large for a half float")
    write_checkpoint(path, trained.about, halves)


def load_weights(network: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Into a network of the same shapes; an embedding may have more words, which are then new."""
    own = network.state_dict()
    for name, new in weights.items():
        if name.endswith("embedding.weight") and name in own and new.dim() > 0:
            room = own[name]
            room[len(new) :].normal_(std=NEW_WORD)
            own[name] = room[: len(new)]
    check_tensors(weights, own, path)
    for name, room in own.items():
        room.copy_(weights[name])
        # A sum is a tenth of the work, and only where it is not finite, a weight may not be.
        if room.is_floating_point() and not room.sum().isfinite() and not room.isfinite().all():
            raise not_finite(path, f"its weights {name!r}")


def check_tensors(
    found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path, *, exact: bool = False
) -> None:
    """Those of a file have the names and shapes that are wanted, and are numbers of that kind.

    Those that are wanted may be on the device meta. Only `exact` types are as precise.
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
