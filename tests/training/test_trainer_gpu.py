"""On a GPU: the captured step against the same step launched piece by piece."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import program_training
from broken_off import StoppedAfter
from macnet.checkpoint import load_trained, read_checkpoint
from macnet.clevr.world import World
from macnet.data.block_encoder import world_texts
from macnet.data.vocab import Vocabulary
from macnet.training import trainer as trainer_module
from macnet.training.log import read_log
from macnet.training.loop import READ_EVERY
from macnet.training.plan import TrainingPlan
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from tiny_training import CALM, SMALL, dataset, plan, trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SAME = 2e-3  # of a loss: sums in another order, of which Adam makes steps near gradients of nought
LOW = 5e-2  # of a loss, in bfloat16

# A running mean may be near nought, and then its rounding is large beside it.
NOISE = re.compile(r"image\.features\.[147]\.running_mean")


@pytest.fixture(autouse=True)
def _log_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "draw_curve", lambda *_: None)
    monkeypatch.setitem(READ_EVERY, "cuda", 1)  # and so in the log


def calm(**recipe: Any) -> TrainingPlan:
    """Thirty steps without dropout."""
    model = {**CALM, "d": 64, "p": 3, "embedding": 32}
    return plan(model=model, **{"epochs": 10, "lr": 3e-4, "validate_every": 10, **recipe})


def losses(folder: Path, made: TrainingPlan, **options: Any) -> list[float]:
    """Of every step."""
    trainer(folder, made, device="cuda", **options).train()
    return recorded(folder)


def recorded(folder: Path) -> list[float]:
    lines = read_log(folder / "log.jsonl")
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_graph_is_what_it_holds(precision: str, optimizer: str, tmp_path: Path) -> None:
    changing = {"schedule": "cosine", "warmup": 2, "ema_warmup": True, "clip": 1}
    own = {"adam": {"lr": 3e-4}, "muon": {"lr": 3e-3, "weight_decay": 0.1}}[optimizer]
    made = calm(precision=precision, optimizer=optimizer, **own, **changing)
    graph = losses(tmp_path / "graph", made)
    eager = losses(tmp_path / "eager", made, capture=False)
    assert len(graph) == len(eager) == 30
    assert graph == pytest.approx(eager, rel=SAME if precision == "float32" else LOW)
    assert graph[-1] < 0.8 * graph[0]
    one, other = (load_trained(tmp_path / name).weights for name in ("graph", "eager"))
    if precision == "float32":
        for name, value in one.items():
            if not NOISE.search(name):
                off = (value.double() - other[name].double()).norm()
                assert off <= 1e-2 * value.double().norm(), name


SIZES: dict[str, dict[str, Any]] = {  # for which there are kernels
    "sa-mlp": {"units": 32},
    "rn": {"g": 64, "units": 32, "dropout": 0},
    "film": {"units": 256, "channels": 16},
}


@pytest.mark.parametrize("name", SIZES)
def test_a_graph_of_another_system_is_what_it_holds(name: str, tmp_path: Path) -> None:
    """By kernels of its own, in bfloat16, and nearly by torch's in float32.

    With float32, the first epoch is compared. Afterwards the two part, on a CPU as well: FiLM's
    losses by a tenth of themselves in the second, and by half later, as it has few cells to
    normalise over.
    """

    def made(precision: str) -> TrainingPlan:
        recipe: dict[str, Any] = {
            "epochs": 5,
            "lr": 3e-4,
            "schedule": "constant",
            "validate_every": 5,
        }
        return plan(name, SIZES[name], weight_decay=0, precision=precision, **recipe)

    graph = losses(tmp_path / "graph", made("bfloat16"))
    eager = losses(tmp_path / "eager", made("bfloat16"), capture=False)
    full = losses(tmp_path / "full", made("float32"))
    assert len(graph) == len(eager) == 15
    assert graph == pytest.approx(eager, rel=LOW, abs=LOW)
    assert graph[:3] == pytest.approx(full[:3], rel=2 * LOW)
    assert graph[-1] < 0.8 * graph[0]


PROGRAM_SIZES: dict[str, dict[str, Any]] = {  # for which there are kernels
    "pg-ee": {"embedding": 8, "units": 16, "channels": 16, "pooled": 8, "hidden": 16},
    "n2nmn": {"embedding": 8, "units": 16, "map_dim": 16},
}


@pytest.mark.parametrize("name", PROGRAM_SIZES)
def test_a_graph_of_programs_is_what_it_holds(name: str, tmp_path: Path) -> None:
    """In all stages; those that sample are only run, since a graph draws other numbers."""
    data, losses = program_training.training_data(), {}
    recipe: dict[str, Any] = {"epochs": 5, "lr": 3e-4, "validate_every": 5, "weight_decay": 0}
    for precision, capture in (("bfloat16", True), ("bfloat16", False), ("float32", True)):
        made = plan(name, PROGRAM_SIZES[name], precision=precision, **recipe)
        folder = tmp_path / f"{precision} {capture}"
        Trainer(folder, made, data, device=torch.device("cuda"), capture=capture).train()
        lines = read_log(folder / "log.jsonl")
        ends = [line["stage"] for line in lines if line["kind"] == "end"]
        assert ends == program_training.STAGES[name]
        sampling = {stage.name for stage in made.stages if stage.learns_policy}
        losses[precision, capture] = [
            line["loss"]
            for line in lines
            if line["kind"] == "train" and line["stage"] not in sampling
        ]
    graph, eager, full = losses.values()
    assert graph == pytest.approx(eager, rel=LOW, abs=LOW)
    assert graph[:3] == pytest.approx(full[:3], rel=2 * LOW)


def test_a_graph_holds_the_augmentation_of_images(tmp_path: Path) -> None:
    """With nothing learned, it alone makes losses differ from step to step."""
    same_batch = TrainingData(dataset(4), dataset(4))
    for name, most in (("changed", 5), ("unchanged", 0)):
        made = calm(lr=0.0, epochs=12, shift=most, rotation=most, jitter=most / 100)
        Trainer(tmp_path / name, made, same_batch, device=torch.device("cuda")).train()
    assert len({*recorded(tmp_path / "changed")}) == 12
    low, *_, high = sorted(recorded(tmp_path / "unchanged"))
    assert low == pytest.approx(high, rel=SAME)


def test_a_gpu_learns_what_a_cpu_learns(tmp_path: Path) -> None:
    made = calm()
    found = losses(tmp_path / "gpu", made)
    trainer(tmp_path / "cpu", made).train()
    assert found == pytest.approx(recorded(tmp_path / "cpu"), rel=1e-2)


def test_low_precision(tmp_path: Path) -> None:
    """Seen on a CPU: losses off by 0.8% of themselves at most."""
    low = losses(tmp_path / "low", calm(precision="bfloat16"))
    full = losses(tmp_path / "full", calm())
    assert low == pytest.approx(full, rel=LOW)
    assert low != full


def test_validations_do_not_disturb(tmp_path: Path) -> None:
    """Not even after each step, and in the middle of a graph's memory."""
    often = losses(tmp_path / "often", calm(validate_every=1 / 3))
    once = losses(tmp_path / "once", calm())
    assert often == pytest.approx(once, rel=SAME)
    found, wanted = (
        [line for line in read_log(tmp_path / name / "log.jsonl") if line["kind"] != "train"]
        for name in ("often", "once")
    )
    assert len(found) == 31
    assert len(wanted) == 2
    assert found[-2]["accuracy"]["overall"] == pytest.approx(
        wanted[0]["accuracy"]["overall"], abs=1 / 16
    )


@pytest.mark.parametrize(("steps", "optimizer"), [(1, "adam"), (12, "adam"), (12, "muon")])
def test_a_resumed_run_goes_on(steps: int, optimizer: str, tmp_path: Path) -> None:
    """Before a graph was captured, and after."""
    made = calm(optimizer=optimizer)
    whole = losses(tmp_path / "whole", made)
    with StoppedAfter(steps), pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "run", made, device="cuda").train()
    assert read_checkpoint(tmp_path / "run/last.safetensors").metadata["state"]["step"] == steps
    trainer(tmp_path / "run", made, device="cuda").train(resume=True)
    assert recorded(tmp_path / "run") == pytest.approx(whole, rel=SAME)
    found, wanted = (
        read_checkpoint(tmp_path / name / "last.safetensors").tensors for name in ("run", "whole")
    )
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if name.startswith(("network", "ema")) and not NOISE.search(name):
            off = (found[name].double() - value.double()).norm()
            assert off <= 1e-2 * value.double().norm(), name
    steps_made = [t for name, t in found.items() if name.startswith("optimizer/step")]
    assert {int(t) for t in steps_made} == {30}
    has_momentum = any(name.startswith("optimizer/momentum") for name in found)
    assert has_momentum == (optimizer == "muon")


def test_dropout_differs_from_step_to_step(tmp_path: Path) -> None:
    """A graph draws anew each time it is run: with nothing learned, losses still differ."""
    drops = dict.fromkeys(SMALL["dropout"], 0.5)  # type: ignore[call-overload]
    made = calm(lr=0.0, epochs=4)
    made = replace(made, model=replace(made.model, dropout=type(made.model.dropout)(**drops)))
    same_batch = TrainingData(dataset(4), dataset(4))
    Trainer(tmp_path / "run", made, same_batch, device=torch.device("cuda")).train()
    found = recorded(tmp_path / "run")
    assert len(found) == len({*found}) == 4


def test_a_graph_of_an_endless_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("macnet.training.training_data.EPOCH", 160)  # ten steps
    part = dataset(8, 1, Vocabulary.build([*world_texts(), "is it bright dark yes or no"]))
    val = replace(part, images=np.zeros((8, 32, 32, 3), np.uint8))
    endless = TrainingData(World(seed=1, width=32, height=32), val)
    for name, capture in (("graph", True), ("eager", False)):
        Trainer(
            tmp_path / name,
            calm(epochs=3, validate_every=3),
            endless,
            device=torch.device("cuda"),
            capture=capture,
        ).train()
    graph, eager = (recorded(tmp_path / name) for name in ("graph", "eager"))
    assert len(graph) == 30
    assert graph == pytest.approx(eager, rel=SAME)
