"""MAC's presets and ablations by name, and its entry in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from macnet.configuration import with_changes
from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.config import DATA_FIELDS, NO_DROPOUT, Dropout, MACConfig
from macnet.models.mac import MACNetwork
from macnet.models.recipe import FAST
from macnet.models.system import System, TrainingSpec

PAPER = MACConfig()
"""The equations of Section 2 as printed, with the basic write unit."""

REFERENCE = MACConfig(
    embedding_low=-1.0,
    lstm="d/2",
    control="reference",
    c0="question",
    read="reference",
    optional_steps="reference",
    output="reference",
    dropout=Dropout(
        words=0.15,
        variational_words=False,
        question=0.08,
        image=0.18,
        control=0.0,
        memory=0.15,
        memory_again=0.15,
        knowledge=0.15,
        interaction=0.15,
        output=0.15,
    ),
)
"""The authors' published code as its first configuration has it (args.txt)."""

REFERENCE_RECURRENT = replace(REFERENCE, control="reference-recurrent", c0="learned")
"""The same with a recurrent control (args1.txt)."""

PIXELS = replace(PAPER, d=384, lstm="d/2", image="pixels", coordinates=True, dropout=NO_DROPOUT)
"""The paper's equations on pixels, without a ResNet in front: the network that is shipped.

It is smaller, gets the coordinates of image cells, and has no dropout, because an endless world
never repeats an image.
"""

SMALL = replace(PIXELS, d=64, p=4, embedding=64, widths=(16, 32, 64), blocks=(0, 0, 0))
"""A MAC on pixels that two CPU cores can train; no residual blocks. `make run` changes a little."""

PRESETS: Mapping[str, MACConfig] = {
    "paper": PAPER,
    "pixels": PIXELS,
    "small": SMALL,
    "reference": REFERENCE,
    "reference-recurrent": REFERENCE_RECURRENT,
}

ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "MAC": {},
    "state dimension 256": {"d": 256},
    "state dimension 128": {"d": 128},
    "unshared weights": {"share_weights": False},
    "attention over word vectors": {"attend": "word vectors"},
    "w/o word-attention": {"attend": "nothing"},
    "question vector as control": {"control": "question", "attend": "nothing"},
    "w/o control": {"control": "none", "attend": "nothing"},
    "w/o memory-control separation": {"separate": False},
    "w/o direct KB elements": {"direct_knowledge": False},
    "retrieved → memory": {"write": "retrieved"},
    "W · retrieved + b → memory": {"write": "projected"},
    "only memory gate": {"write": "retrieved", "gate": True},
    "w/ self-attention": {"self_attention": True},
    "w/ memory gate": {"gate": True},
    "w/ self-attention and memory gate": {"self_attention": True, "gate": True},
    "gate bias 0": {"gate": True, "gate_bias": 0.0},
    "gate bias 1": {"gate": True, "gate_bias": 1.0},
    "gate bias −1": {"gate": True, "gate_bias": -1.0},
    "prediction w/o question": {"output_question": False},
}
"""What each row of table 2 changes, by the paper's labels."""


def preset(name: str, **changes: Any) -> MACConfig:
    """The configuration of that name, with changes to its fields: preset("paper", p=4).

    Dropout can be changed in part: preset("reference", dropout={"memory": 0.2}).
    """
    if str(name) not in PRESETS:
        raise InputError(f"`preset` is {name!r}; choose one of {', '.join(PRESETS)}")
    return with_changes(PRESETS[name], changes)


def ablation(row: str, base: str = "paper", **changes: Any) -> MACConfig:
    """A row of table 2 by its label, as a change to a preset: ablation("w/ memory gate", p=4)."""
    config: MACConfig = MAC.ablate(preset(base), row)
    return with_changes(config, changes)


def find_row(config: MACConfig) -> str | None:
    """The row of table 2 that a network is, of any preset but `small`; None if it is none."""
    own = _compared(vars(config))
    for base in (config for config in PRESETS.values() if config.p == PAPER.p):
        for row, changes in ABLATIONS.items():
            if _compared({**vars(base), **changes}) == own:
                return row
    return None


def _compared(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that follow from the data, and those that no row of table 2 changes."""
    free = (*DATA_FIELDS, "widths", "blocks", "dropout")
    return {name: value for name, value in fields.items() if name not in free}


def _resolve(config: MACConfig, data_spec: DataSpec) -> MACConfig:
    if data_spec.pixels:
        return replace(config, image="pixels")
    return replace(config, image="features", channels=data_spec.channels)


def _build(config: MACConfig, data_spec: DataSpec) -> MACNetwork:
    sizes = {"vocabulary": data_spec.vocabulary, "answers": data_spec.answers}
    return MACNetwork(_resolve(config, data_spec), **sizes)


MAC = System(
    name="mac",
    table1_row="MAC",
    description="""\
MAC by the paper's equations: twelve attention steps.
In each step a control unit attends to the words of the question, a read unit
to the image as control and memory direct it, and a write unit updates the
memory. The answer is classified from question and memory. Hudson and Manning
(2018), "Compositional Attention Networks for Machine Reasoning".""",
    variants={
        "pixels": "MAC from pixels with a CNN of its own, as it is shipped.",
        "small": "A small MAC from pixels, which two CPU cores can train.",
        "reference": "MAC as in the authors' code (args.txt).",
        "reference-recurrent": "The same with a recurrent control (args1.txt).",
    },
    build=_build,
    presets=PRESETS,
    # The paper fine-tunes on CLEVR-Humans, but says neither at what rate, nor for how long, nor
    # which parts. That both datasets are mixed (`replay`) is advice of the authors' elsewhere.
    training=TrainingSpec(humans={}, fast={**FAST, "epochs": 16}),
    trace=MACNetwork.trace,
    ablations=ABLATIONS,
    data_fields=DATA_FIELDS,
    resolve=_resolve,
    table_row=find_row,
)
