"""The network that comes with the package answers as it did when it was shipped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import macnet
from macnet.checkpoint import SHIPPED, load_trained
from macnet.clevr.render import Rendering, render
from macnet.clevr.world import World
from macnet.data.dataset import Dataset
from macnet.data.generated import pack_generated
from macnet.data.pack import pack_split
from macnet.data.splits import find_split
from macnet.evaluation.accuracy import Results, measure
from macnet.evaluation.predict import Predictor
from macnet.explain.model import Model
from real_clevr import real_clevr

RECORDED = json.loads((Path(__file__).parents[1] / "results" / "shipped.json").read_text())
IMAGES = 50
SMALL, REAL = f"the first {IMAGES} images of test of world 2", "clevr_val100"
ROUNDING = 1  # question, that another machine's rounding may decide otherwise


@pytest.fixture(scope="module")
def model() -> Model:
    return macnet.load()


def asked(model: Model, dataset: Dataset) -> Results:
    with Predictor(dataset) as answering:
        return measure(dataset, *answering(model.trained.system, model.network, show=False))


def assert_as_recorded(results: Results, recorded: Mapping[str, Any]) -> None:
    assert results.overall.total == recorded["overall"]["count"]
    assert abs(results.overall.correct - recorded["overall"]["right"]) <= ROUNDING
    for name, share in results.groups.items():
        assert share.total == recorded["columns"][name]["count"]
        assert abs(share.correct - recorded["columns"][name]["right"]) <= ROUNDING


def test_it_is_small_enough_to_ship() -> None:
    assert SHIPPED.stat().st_size == RECORDED["bytes"] <= 25_000_000


def render_first(scenes: np.ndarray, *settings: Any, **options: Any) -> Rendering:
    """The images that are asked about; the others of their block, which take longer, are black."""
    seen = render(scenes[:IMAGES], *settings, **options)
    others = len(scenes) - IMAGES
    return Rendering(*(torch.cat([x, x.new_zeros(others, *x.shape[1:])]) for x in seen))


def test_it_answers_a_fixed_set_of_another_world(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("macnet.clevr.stream.render", render_first)
    world = World(2, width=128, height=128)
    dataset = pack_generated(
        world,
        model.trained.vocabulary,
        split="test",
        images=IMAGES,
        cache=tmp_path,
        device="cpu",
        workers=0,
    )
    results = asked(model, dataset)
    assert_as_recorded(results, RECORDED["measured"][SMALL])
    assert results.overall.value > 0.98


def test_it_answers_real_questions_about_real_scenes(model: Model, tmp_path: Path) -> None:
    split = find_split(real_clevr(REAL), "val")
    dataset = pack_split(split, tmp_path, model.trained.vocabulary, size=(128, 128))
    results = asked(model, dataset)
    assert_as_recorded(results, RECORDED["measured"][REAL])
    assert results.overall.value > 0.98


def test_it_says_what_it_is() -> None:
    trained = load_trained(SHIPPED)
    assert (trained.row, trained.share, trained.config.image) == ("MAC", 1, "pixels")
    metadata = trained.metadata
    assert metadata["preset"] == "pixels"
    assert metadata["data"]["train"]["seed"] == 1
    assert metadata["accuracy"]["overall"] > 0.995
