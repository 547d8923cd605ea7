"""Checkpoints that were made up, with a checksum that is right: refused before harm is done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from broken_off import StoppedAfter
from macnet.checkpoint import BEST, LAST, load_trained, read_checkpoint, write_checkpoint
from macnet.errors import InputError
from macnet.training import trainer as trainer_module
from macnet.training.plan import TrainingPlan
from tiny_networks import write_network
from tiny_training import plan, trainer

Tensors = dict[str, Tensor]
MOMENT = "optimizer/exp_avg/reasoner.m0"
STATE = "optimizer/{}/reasoner.m0"


@pytest.fixture(scope="module")
def made() -> TrainingPlan:
    return plan(optimizer="muon", epochs=1)


@pytest.fixture(scope="module")
def stopped(made: TrainingPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run that is to go on."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with StoppedAfter(2), pytest.raises(KeyboardInterrupt):
        trainer(folder, made).train()
    return folder


def resume(stopped: Path, made: TrainingPlan, metadata: dict[str, Any], tensors: Tensors) -> str:
    """What is said to a checkpoint of that; the run is left as it was."""
    sound = {path: path.read_bytes() for path in stopped.iterdir()}
    try:
        write_checkpoint(stopped / LAST, metadata, tensors)
        with pytest.raises(InputError) as refusal:
            trainer(stopped, made).train(resume=True)
        said = str(refusal.value)
        assert said.startswith(f"{stopped / LAST}: ")
        assert (stopped / "log.jsonl").read_bytes() == sound[stopped / "log.jsonl"]
        return said.removeprefix(f"{stopped / LAST}: ")
    finally:
        for path, content in sound.items():
            path.write_bytes(content)


FORGED: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "lacking": (lambda t: t.pop("network/reasoner.m0"), "the checkpoint has no 'network/reas"),
    "more": (lambda t: t.update(x=torch.zeros(1)), "the network has no 'x'"),
    "misshapen": (
        lambda t: t.update({"ema/reasoner.m0": torch.zeros(7)}),
        "'ema/reasoner.m0' is (7,), but (16,) is wanted",
    ),
    "of whole numbers": (
        lambda t: t.update({"network/reasoner.m0": torch.zeros(16, dtype=torch.int64)}),
        "'network/reasoner.m0' is of torch.int64, but torch.float32 is wanted",
    ),
    "half of a state": (lambda t: t.pop(MOMENT), f"the checkpoint has no '{MOMENT}'"),
    "a long step": (
        lambda t: t.update({STATE.format("step"): torch.zeros(3)}),
        f"'{STATE.format('step')}' is (3,), but () is wanted",
    ),
    "no meters": (lambda t: t.pop("meters"), "the checkpoint has no 'meters'"),
    "meters of nothing": (lambda t: t["meters"].fill_(math.nan), "its meters are at [nan, "),
    "meters reset": (lambda t: t["meters"].fill_(1), "its meters are at [1.0, "),
    "short randomness": (
        lambda t: t.update({"random/0/cpu": torch.zeros(16, dtype=torch.uint8)}),
        "its state of random numbers is none (",
    ),
    "randomness of floats": (
        lambda t: t.update({"random/0/cpu": torch.zeros(5056)}),
        "its state of random numbers is none (",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_tensors_are_refused(case: str, stopped: Path, made: TrainingPlan) -> None:
    forge, expected = FORGED[case]
    metadata, tensors = read_checkpoint(stopped / LAST)
    forge(tensors)
    assert resume(stopped, made, metadata, tensors).startswith(expected)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("stage", 1, "stage is 1, but the run has 1"),
        ("stage", -1, "stage is -1; no run has come so far"),
        ("step", "2", "step is '2'; no run has come so far"),
        ("step", 2.5, "step is 2.5; no run"),
        ("step", 10**12, "step is 1000000000000, but the stage has 3"),
        ("step", 10**30, "step is 1000000000000000000000000000000; no run"),
        ("questions", None, "questions is None; no run"),
        ("seconds", 1e300, "seconds is 1e+300; no run"),
        ("seconds", math.nan, "seconds is nan; no run"),
        ("log_size", 1e3, "log_size is 1000.0; no run"),
        ("finished", 0, "finished is 0; no run"),
        ("best_accuracy", [1], "best_accuracy is [1]; no run"),
        ("epoch_losses", 3, "epoch_losses is 3; no run"),
        ("epoch_losses", ["x"], "epoch_losses is ['x']; no run"),
        ("meters_at_log", [1.0], "its meters are at ["),
        ("meters_at_epoch", [1e9] * 5, "its meters are at ["),
        ("meters_at_epoch", [1e9] * 6, "its meters are at ["),
        ("luck", 1, "it does not say how far the run has come"),
    ],
)
def test_impossible_states(
    field: str, value: Any, expected: str, stopped: Path, made: TrainingPlan
) -> None:
    metadata, tensors = read_checkpoint(stopped / LAST)
    metadata["state"][field] = value
    assert (
        resume(stopped, made, metadata, tensors)
        .replace(",", "")
        .startswith(expected.replace(",", ""))
    )


@pytest.mark.parametrize("state", [None, 7, [], {}, {"step": 1}])
def test_no_state(state: Any, stopped: Path, made: TrainingPlan) -> None:
    metadata, tensors = read_checkpoint(stopped / LAST)
    said = resume(stopped, made, {**metadata, "state": state}, tensors)
    assert said.startswith("it does not say how far the run has come")


def test_a_sound_checkpoint_is_resumed(
    stopped: Path, made: TrainingPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """None of the above refuses what is sound, not even before the first step."""
    monkeypatch.setattr(trainer_module, "draw_curve", lambda *_: None)
    metadata, tensors = read_checkpoint(stopped / LAST)
    first = {name: t for name, t in tensors.items() if not name.startswith("optimizer/")}
    write_checkpoint(stopped / LAST, metadata, first)
    assert trainer(stopped, made).train(resume=True)


# --- networks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "part", "changes", "expected"),
    [
        ("paper", "model", {"p": 10**9}, "p is 1000000000; it must be a whole number from 1 to 1,"),
        ("paper", "model", {"d": 10**9}, "d is 1000000000; it must be a whole number from 1 to 65"),
        ("paper", "model", {"d": 60_000}, "is wanted; this is a checkpoint of another config"),
        ("paper", "model", {"p": 900}, "is wanted; this is a checkpoint of another config"),
        ("paper", "model", {"blocks": [0, 10**9, 0]}, "it must be 3 whole numbers from 0 to 1,000"),
        ("lstm", "model", {"layers": 10**9}, "layers is 1000000000; it must be a whole number"),
        ("cnn-lstm", "model", {"hidden": 60_000}, "is wanted; this is a checkpoint of another"),
        (
            "cnn-lstm",
            "data_spec",
            {"width": 60_000, "height": 60_000},
            "is wanted; this is a check",
        ),
        ("paper", "data_spec", {"width": 10**12}, "its data_spec has an impossible size"),
        ("paper", "data_spec", {"pixels": 7}, "its data_spec has an impossible size"),
        ("paper", "data_spec", {"channels": 10**12, "pixels": False}, "channels is 1000000000000"),
    ],
)
def test_a_network_that_no_memory_holds(
    preset: str, part: str, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    path = write_network(tmp_path, preset) / BEST
    metadata, tensors = read_checkpoint(path)
    write_checkpoint(path, {**metadata, part: {**metadata[part], **changes}}, tensors)
    start = time.monotonic()
    with pytest.raises(InputError, match=expected):
        load_trained(path)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bool, torch.float8_e5m2])
def test_weights_that_are_no_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    path = write_network(tmp_path) / BEST
    metadata, tensors = read_checkpoint(path)
    write_checkpoint(path, metadata, {**tensors, "reasoner.m0": torch.zeros(8, dtype=dtype)})
    with pytest.raises(InputError, match=f"'reasoner.m0' is of {dtype}, but torch.float32 is wan"):
        load_trained(path)


def test_a_loss_of_rewards_may_be_negative(made: TrainingPlan, tmp_path: Path) -> None:
    """As that of a stage that learns by REINFORCE: such a checkpoint is sound."""
    folder = tmp_path / "run"
    with StoppedAfter(2), pytest.raises(KeyboardInterrupt):
        trainer(folder, made).train()
    metadata, tensors = read_checkpoint(folder / LAST)
    tensors["meters"][0] = -1.0
    at_log = [-0.5, *metadata["state"]["meters_at_log"][1:]]
    write_checkpoint(
        folder / LAST,
        {**metadata, "state": {**metadata["state"], "meters_at_log": at_log}},
        tensors,
    )
    assert trainer(folder, made).train(resume=True)
