"""Every system of table 1 that is trained from answers alone can be stopped, asked and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import macnet
from broken_off import StoppedAfter
from closeness import off_by
from macnet.data.spec import DataSpec
from macnet.models.registry import SYSTEMS, find_preset
from macnet.training import trainer as trainer_module
from macnet.training.plan import TrainingPlan
from tiny_training import TINY, assert_equal, plan, trainer

pytestmark = pytest.mark.usefixtures("narrow_backbone")
NAMES = ["sa-mlp", "rn", "rn-pixels", "film", "film-pixels"]


def small_plan(name: str, **recipe: Any) -> TrainingPlan:
    """The published recipe, but for its batches: two epochs of three steps."""
    return plan(name, TINY[name.removesuffix("-pixels")], epochs=2, ema=0, **recipe)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_can_be_stopped_asked_and_exported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "draw_curve", lambda *_: None)  # which takes its time
    made, run = small_plan(name), tmp_path / "run"
    trainer(tmp_path / "whole", made).train()
    with StoppedAfter(4), pytest.raises(KeyboardInterrupt):
        trainer(run, made).train()
    trainer(run, made).train(resume=True)
    assert_equal(run, tmp_path / "whole")

    macnet.export(run, tmp_path / "one.safetensors")
    image = np.full((20, 30, 3), 200, np.uint8)
    own, exported = (
        macnet.load(path).ask(image, "is it bright").probabilities
        for path in (run, tmp_path / "one.safetensors")
    )
    assert exported == pytest.approx(own, abs=1e-3)  # its weights are halves


def test_published_protocols_of_fine_tuning_name_parts_that_there_are() -> None:
    for name in NAMES:
        spec = find_preset(name).system.training
        if spec.humans is None:
            assert name.startswith("rn")
            continue
        recipe = spec.find_recipe("humans")
        assert recipe.trainable == (("generator",) if name.startswith("film") else ("question",))
        assert recipe.lr == {"sa-mlp": 1e-4}.get(name, 3e-4)


@pytest.mark.parametrize("name", ["sa-mlp", "rn", "film"])
@pytest.mark.parametrize("pixels", [False, True], ids=["features", "pixels"])
def test_low_precision_stays_close(name: str, pixels: bool) -> None:
    """Features in halves, and products in bfloat16."""
    made = small_plan(name)
    size = (3, 20, 24) if pixels else (6, 5, 4)
    torch.manual_seed(0)
    network = made.system.build(made.model, DataSpec(9, 4, 13, pixels, *size)).eval()
    images = torch.randn(2, *size).half()
    if pixels:
        images = torch.randint(0, 256, (2, 20, 24, 3), dtype=torch.uint8)
    questions = torch.randint(1, 9, (6, 5))
    wanted = network(images.float() if not pixels else images, questions)
    with torch.autocast("cpu", torch.bfloat16):
        found = network(images, questions)
    assert found.isfinite().all()
    assert off_by(found, wanted) < 5e-2


def test_augmentation_belongs_to_the_relation_network_that_was_published_with_it() -> None:
    """Features cannot be augmented, and `rn` takes them."""
    recipe = SYSTEMS["rn-pixels"].training.paper
    assert recipe.shift == 8
    assert recipe.rotation == pytest.approx(np.degrees(0.05), abs=1e-3)
    assert SYSTEMS["rn"].training.paper.rotation == 0


@pytest.mark.parametrize("name", ["sa-mlp", "film"])
def test_fine_tuning_changes_the_published_parts_only(name: str, tmp_path: Path) -> None:
    parts = find_preset(name).system.training.find_recipe("humans").trainable
    made = small_plan(name, trainable=parts, validate_every=2)
    learner = trainer(tmp_path / "run", made)
    torch.manual_seed(made.seed)
    before = made.system.build(made.model, learner.training_data.data_spec()).state_dict()
    learner.train()
    after = macnet.load(tmp_path / "run").network.state_dict()
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    weights = {key for key in changed if "running" not in key and "tracked" not in key}
    assert weights
    assert all(key.startswith(parts) for key in weights)
    assert any("running_mean" in key for key in changed - weights)  # normalisation still moves
