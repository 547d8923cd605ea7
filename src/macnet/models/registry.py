"""Every system that can be trained, and the presets by which people ask for them.

To add a system, write its file in `models/systems` and name its entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from macnet.errors import InputError
from macnet.models.presets import MAC
from macnet.models.system import System
from macnet.models.systems.baselines import CNN_LSTM, LSTM
from macnet.models.systems.film import FILM, FILM_PIXELS
from macnet.models.systems.n2nmn import N2NMN
from macnet.models.systems.pg_ee import PG_EE
from macnet.models.systems.question_type_prior import Q_TYPE
from macnet.models.systems.relation_network import RN, RN_PIXELS
from macnet.models.systems.stacked_attention import SA_MLP

SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        *(MAC, Q_TYPE, LSTM, CNN_LSTM, SA_MLP, N2NMN, PG_EE),
        *(RN, RN_PIXELS, FILM, FILM_PIXELS),
    )
}


class Preset(NamedTuple):
    """A named configuration, and the system it configures."""

    system: System
    config: Any  # a frozen dataclass


PRESETS: Mapping[str, Preset] = {
    name: Preset(system, config)
    for system in SYSTEMS.values()
    for name, config in system.presets.items()
}


def find_preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise InputError(f"`preset` is {name!r}; choose one of {', '.join(PRESETS)}")
    return PRESETS[name]
