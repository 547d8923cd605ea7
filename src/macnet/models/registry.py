"""Every system that can be trained, and the presets by which people ask for them.

To the loop a system is a network, built from a configuration to fit the data, and a way to ask it
about a batch. How it is trained is in `training.recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from macnet.data.batches import Batch
from macnet.errors import InputError
from macnet.models.config import MACConfig
from macnet.models.mac import MACNetwork
from macnet.models.presets import PRESETS as MAC_PRESETS
from macnet.models.presets import find_row
from macnet.models.systems.baselines import (
    CNNLSTMConfig,
    CNNLSTMNetwork,
    LSTMConfig,
    LSTMNetwork,
)
from macnet.models.systems.prior import Prior, PriorConfig


class Fit(NamedTuple):
    """What a network must fit."""

    vocabulary: int
    """Words, the padding among them."""
    answers: int
    pixels: bool
    """Whether images are pictures (N, H, W, 3) of bytes; else they are features (N, C, H, W)."""
    channels: int
    height: int
    width: int


def look_and_read(network: nn.Module, batch: Batch) -> Tensor:
    """Logits (B, answers) of a network that sees images and questions and nothing else."""
    logits: Tensor = network(batch.images, batch.questions)
    return logits


def know_the_type(network: nn.Module, batch: Batch) -> Tensor:
    """Logits (B, answers) of one that is told the types of questions and nothing else."""
    logits: Tensor = network(batch.types)
    return logits


@dataclass(frozen=True)
class System:
    """A way to answer questions about images."""

    name: str
    row: str
    """Its name in the paper's table 1."""
    build: Callable[[Any, Fit], nn.Module]
    """From its configuration and what it must fit."""
    answer: Callable[[nn.Module, Batch], Tensor] = look_and_read
    """Logits (B, answers) for a batch."""
    find_row: Callable[[Any], str | None] = lambda config: None
    """The label that a configuration has in the paper's tables 1 and 2, if it is there."""
    fitted: Callable[[Any, Fit], Any] = lambda config, fit: config
    """The configuration of what is built: some of its fields may follow from the data."""


class Preset(NamedTuple):
    """A configuration that has a name, and the system it configures."""

    system: System
    config: Any  # a frozen dataclass


def _prior(_: PriorConfig, fit: Fit) -> nn.Module:
    return Prior(answers=fit.answers)


def _lstm(config: LSTMConfig, fit: Fit) -> nn.Module:
    return LSTMNetwork(config, vocabulary=fit.vocabulary, answers=fit.answers)


def _cnn_lstm(config: CNNLSTMConfig, fit: Fit) -> nn.Module:
    return CNNLSTMNetwork(config, **fit._asdict())


def _fitted_mac(config: MACConfig, fit: Fit) -> MACConfig:
    if fit.pixels:
        return replace(config, image="pixels")
    return replace(config, image="features", channels=fit.channels)


def _mac(config: MACConfig, fit: Fit) -> nn.Module:
    config = _fitted_mac(config, fit)
    return MACNetwork(config, vocabulary=fit.vocabulary, answers=fit.answers)


def _only(row: str, published: Any) -> Callable[[Any], str | None]:
    return lambda config: row if config == published else None


Q_TYPE = System(
    "q-type",
    "Q-type baseline",
    _prior,
    know_the_type,
    _only("Q-type baseline", PriorConfig()),
)
LSTM = System("lstm", "LSTM", _lstm, find_row=_only("LSTM", LSTMConfig()))
CNN_LSTM = System("cnn-lstm", "CNN+LSTM", _cnn_lstm, find_row=_only("CNN+LSTM", CNNLSTMConfig()))
MAC = System("mac", "MAC", _mac, find_row=find_row, fitted=_fitted_mac)

SYSTEMS: Mapping[str, System] = {system.name: system for system in (Q_TYPE, LSTM, CNN_LSTM, MAC)}
"""In the order of table 1."""

PRESETS: Mapping[str, Preset] = {
    **{name: Preset(MAC, config) for name, config in MAC_PRESETS.items()},
    "q-type": Preset(Q_TYPE, PriorConfig()),
    "lstm": Preset(LSTM, LSTMConfig()),
    "cnn-lstm": Preset(CNN_LSTM, CNNLSTMConfig()),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise InputError(f"--preset is {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
