"""Every preset builds a network that answers a batch, of pictures and of features."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from macnet.data.batches import Batch
from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.presets import PRESETS as MAC_PRESETS
from macnet.models.registry import PRESETS, SYSTEMS, find_preset
from macnet.models.system import System
from macnet.paper import TABLE_1

pytestmark = pytest.mark.usefixtures("narrow_backbone")
FEATURES = DataSpec(9, 4, 13, pixels=False, channels=6, height=4, width=5)
PICTURES = DataSpec(9, 4, 13, pixels=True, channels=3, height=16, width=24)
SMALL = {"d": 8, "p": 2, "embedding": 5, "units": 7, "hidden": 6, "channels": 3}


def batch(data_spec: DataSpec) -> Batch:
    """Two images and three questions about each."""
    torch.manual_seed(0)
    images = (
        torch.randn(2, data_spec.height, data_spec.width, data_spec.channels)
        .half()
        .permute(0, 3, 1, 2)
    )
    if data_spec.pixels:
        images = torch.randint(0, 256, (2, data_spec.height, data_spec.width, 3), dtype=torch.uint8)
    questions = torch.randint(1, data_spec.vocabulary, (6, 7))
    lengths = torch.full((6,), 7)
    answers, types = torch.randint(0, data_spec.answers, (6,)), torch.randint(0, 13, (6,))
    return Batch(images, questions, lengths, answers, types, questions, torch.arange(6))


@pytest.mark.parametrize("data_spec", [FEATURES, PICTURES], ids=["features", "pictures"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_answers_what_it_was_made_to_fit(name: str, data_spec: DataSpec) -> None:
    system, config = find_preset(name)
    if getattr(config, "backbone", None) == "strided" and not data_spec.pixels:
        with pytest.raises(InputError, match="the data are features, but this preset"):
            system.build(config, data_spec)
        return
    assert is_dataclass(config)
    assert not isinstance(config, type)
    changes = {f.name: SMALL[f.name] for f in fields(config) if f.name in SMALL}
    smaller: Any = replace(config, **changes)
    network = system.build(smaller, data_spec)
    logits = system.forward(network, batch(data_spec))
    assert logits.shape == (6, data_spec.answers)
    assert logits.isfinite().all()


def test_systems_are_known_by_their_names() -> None:
    rows = {system.table1_row for system in SYSTEMS.values()}
    rows |= {row for system in SYSTEMS.values() for row in system.program_rows.values()}
    assert rows == {row for row in TABLE_1 if row != "Human"}
    assert all(name == system.name for name, system in SYSTEMS.items())
    assert {preset.system.name for preset in PRESETS.values()} == {*SYSTEMS}


def test_a_configuration_is_that_of_what_is_built() -> None:
    """Of what is looked at, the data decide; every other field stays."""
    for name in PRESETS:
        system, config = find_preset(name)
        for data_spec in (FEATURES, PICTURES):
            resolved = system.resolve(config, data_spec)
            if name not in MAC_PRESETS:
                assert resolved == config
                continue
            image = "pixels" if data_spec.pixels else "features"
            assert (resolved.image, resolved.channels) == (image, 1024 if data_spec.pixels else 6)
            assert replace(resolved, image=config.image, channels=config.channels) == config


def test_a_baseline_is_in_table_1_as_published_only() -> None:
    for name in (name for name in PRESETS if name not in MAC_PRESETS):
        system, config = find_preset(name)
        assert system.find_row(config) == system.table1_row
        if name != "q-type":
            assert system.find_row(replace(config, units=7)) is None


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_a_system_is_described_in_five_lines_with_its_paper(system: System) -> None:
    lines = system.description.splitlines()
    assert 2 <= len(lines) <= 5
    assert max(map(len, lines)) <= 78
    assert lines[0].endswith(".")
    assert re.search(r"[\w.] \((19|20)\d\d\), \"\w", " ".join(lines))
    assert [*system.summaries] == [*system.presets]
    assert all(0 < len(summary) <= 57 for summary in system.summaries.values())


def test_a_preset_without_a_line_is_an_error() -> None:
    with pytest.raises(ValueError, match="`variants` must describe each preset"):
        replace(SYSTEMS["mac"], variants={})


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"`preset` is 'lsmt'; choose one of paper, .*, lstm, "):
        find_preset("lsmt")


@pytest.mark.parametrize("row", ["mac", "CNN + LSTM", "FiLM"])
def test_a_mistyped_row_of_table_1_is_an_error(row: str) -> None:
    with pytest.raises(ValueError, match="the paper has no row"):
        replace(SYSTEMS["mac"], table1_row=row)


def test_a_system_that_the_paper_does_not_have_is_called_by_its_name() -> None:
    lstm = find_preset("lstm")
    assert lstm.system.label == "LSTM"
    ours = replace(lstm.system, name="ours", table1_row=None)
    assert ours.label == "ours"
    assert ours.find_row(lstm.config) is None


def test_a_mistyped_row_of_table_2_is_an_error() -> None:
    with pytest.raises(ValueError, match="the paper has no row 'w/ memory gates'"):
        replace(SYSTEMS["mac"], ablations={"w/ memory gates": {"gate": True}})


def test_no_two_systems_share_the_name_of_a_preset() -> None:
    assert len(PRESETS) == sum(len(system.presets) for system in SYSTEMS.values())


def test_only_mac_has_ablations() -> None:
    with pytest.raises(InputError, match="the paper ablates only MAC"):
        SYSTEMS["lstm"].ablate(find_preset("lstm").config, "w/ memory gate")


def test_features_other_than_the_published_are_named() -> None:
    n2nmn, vgg = SYSTEMS["n2nmn"], FEATURES._replace(channels=512, height=10, width=15)
    assert n2nmn.deviation(vgg) is None
    published = "N2NMN* was published with features of 512x10x15; here it has"
    assert n2nmn.deviation(FEATURES) == f"{published} features of 6x4x5."
    assert n2nmn.deviation(PICTURES) == f"{published} pixels."
    assert SYSTEMS["pg-ee"].deviation(PICTURES) is None
