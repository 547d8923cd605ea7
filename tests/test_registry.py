"""Every preset builds a network that answers a batch, of pictures and of features."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from macnet.data.batches import Batch
from macnet.errors import InputError
from macnet.models.presets import PRESETS as MAC_PRESETS
from macnet.models.registry import PRESETS, SYSTEMS, Fit, find_preset

FEATURES = Fit(vocabulary=9, answers=4, pixels=False, channels=6, height=4, width=5)
PICTURES = Fit(vocabulary=9, answers=4, pixels=True, channels=3, height=16, width=24)
SMALL = {"d": 8, "p": 2, "embedding": 5, "units": 7, "hidden": 6, "channels": 3}


def batch(fit: Fit) -> Batch:
    """Two images and three questions about each."""
    torch.manual_seed(0)
    images = torch.randn(2, fit.height, fit.width, fit.channels).half().permute(0, 3, 1, 2)
    if fit.pixels:
        images = torch.randint(0, 256, (2, fit.height, fit.width, 3), dtype=torch.uint8)
    questions = torch.randint(1, fit.vocabulary, (6, 7))
    lengths = torch.full((6,), 7)
    answers, types = torch.randint(0, fit.answers, (6,)), torch.randint(0, 13, (6,))
    return Batch(images, questions, lengths, answers, types, questions, torch.arange(6))


@pytest.mark.parametrize("fit", [FEATURES, PICTURES], ids=["features", "pictures"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_answers_what_it_was_made_to_fit(name: str, fit: Fit) -> None:
    system, config = find_preset(name)
    assert is_dataclass(config)
    assert not isinstance(config, type)
    changes = {f.name: SMALL[f.name] for f in fields(config) if f.name in SMALL}
    smaller: Any = replace(config, **changes)
    network = system.build(smaller, fit)
    logits = system.answer(network, batch(fit))
    assert logits.shape == (6, fit.answers)
    assert logits.isfinite().all()


def test_systems_are_known_by_their_names() -> None:
    assert [system.row for system in SYSTEMS.values()] == [
        "Q-type baseline",
        "LSTM",
        "CNN+LSTM",
        "MAC",
    ]
    assert all(name == system.name for name, system in SYSTEMS.items())
    assert {preset.system.name for preset in PRESETS.values()} == {*SYSTEMS}


def test_a_configuration_is_that_of_what_is_built() -> None:
    """Of what is looked at, the data decide; every other field stays."""
    for name in PRESETS:
        system, config = find_preset(name)
        for fit in (FEATURES, PICTURES):
            fitted = system.fitted(config, fit)
            if name not in MAC_PRESETS:
                assert fitted == config
                continue
            image = "pixels" if fit.pixels else "features"
            assert (fitted.image, fitted.channels) == (image, 1024 if fit.pixels else 6)
            assert replace(fitted, image=config.image, channels=config.channels) == config


def test_a_baseline_is_in_table_1_as_published_only() -> None:
    for name in ("q-type", "lstm", "cnn-lstm"):
        system, config = find_preset(name)
        assert system.find_row(config) == system.row
        if name != "q-type":
            assert system.find_row(replace(config, units=7)) is None


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"--preset is 'lsmt'; choose one of paper, .*, lstm, "):
        find_preset("lsmt")
