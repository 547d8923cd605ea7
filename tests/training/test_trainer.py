"""Networks are trained: a MAC, and a system of two stages that the loop has never heard of."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from broken_off import StoppedAfter, assert_no_failure_matters
from macnet.checkpoint import load_trained, read_checkpoint
from macnet.data.batches import Batch
from macnet.data.question_arrays import UNKNOWN
from macnet.data.spec import DataSpec
from macnet.data.vocab import PAD, PROGRAM_TOKENS
from macnet.evaluation.accuracy import measure
from macnet.evaluation.predict import Predictor
from macnet.models.objectives import LossSums
from macnet.models.registry import PRESETS, Preset
from macnet.models.system import Stage, System, TrainingSpec
from macnet.training import trainer as trainer_module
from macnet.training.log import read_log
from macnet.training.plan import TrainingPlan
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from tiny_training import CALM, assert_equal, dataset, plan, same, trainer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_curve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "curve" not in request.node.name:
        monkeypatch.setattr(trainer_module, "draw_curve", lambda *_: None)


# --- one stage -------------------------------------------------------------------------------


def test_a_small_mac_learns_64_questions_by_heart(tmp_path: Path) -> None:
    same_ones = TrainingData(dataset(16), dataset(16))
    made = plan(model={**CALM, "d": 32}, epochs=30, lr=5e-3, patience=0, validate_every=5)
    Trainer(tmp_path / "run", made, same_ones, device=CPU).train()
    trained = load_trained(tmp_path / "run")
    assert trained.metadata["accuracy"] == {"overall": 1.0, "Exist": 1.0}
    with Predictor(same_ones.val) as answering:
        results = measure(same_ones.val, *answering(trained.system, trained.network()))
    assert (results.overall.correct, results.overall.total) == (64, 64)


def test_a_run_leaves_a_curve(tmp_path: Path) -> None:
    made = plan(epochs=2)
    assert trainer(tmp_path / "run", made).train()
    curve = tmp_path / "run/curve.png"
    assert curve.read_bytes().startswith(b"\x89PNG")
    curve.unlink()  # as if it had been killed just before
    assert not trainer(tmp_path / "run", made).train(resume=True)
    assert curve.exists()


def test_seeds(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        trainer(tmp_path / name, plan(seed=seed, epochs=1)).train()
    assert_equal(tmp_path / "again", tmp_path / "one")
    one, other = (load_trained(tmp_path / name).weights for name in ("one", "other"))
    assert not same(one, other)


@pytest.mark.parametrize("steps", [5, 99])
def test_what_validations_opened_is_closed(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, whether or not it came to the end."""
    closed: list[Predictor] = []
    monkeypatch.setattr(Predictor, "close", lambda answering: closed.append(answering))
    with StoppedAfter(steps), suppress(KeyboardInterrupt):
        trainer(tmp_path / "run", plan(epochs=2)).train()
    assert len(closed) == 1


# --- two stages ------------------------------------------------------------------------------


class Guided(nn.Module):
    """A generator guesses the program of a question; an executor runs it on the image."""

    baseline: Tensor

    def __init__(self, data_spec: DataSpec) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.EmbeddingBag(data_spec.vocabulary, 12, mode="sum", padding_idx=PAD),
            nn.Linear(12, len(PROGRAM_TOKENS)),
        )
        self.executor = nn.Embedding(len(PROGRAM_TOKENS), 2 * data_spec.answers)
        nn.init.zeros_(self.executor.weight)
        self.register_buffer("baseline", torch.zeros(()))

    def run(self, functions: Tensor, images: Tensor) -> Tensor:
        """(B,) functions, (N, H, W, 3) images → (B, answers)"""
        bright = (images.float().mean((1, 2, 3)) > 125).long()
        bright = bright.repeat_interleave(len(functions) // len(images))
        table = self.executor(functions).unflatten(1, (2, -1))
        logits: Tensor = table.take_along_dim(bright[:, None, None], 1).squeeze(1)
        return logits


def best_guess(network: Any, batch: Batch) -> Tensor:
    logits: Tensor = network.run(network.generator(batch.questions).argmax(1), batch.images)
    return logits


def clone(system: System, network: Any, batch: Batch) -> LossSums:
    """The cross-entropy of the programs' second functions, which tell the four texts apart."""
    logits, right = network.generator(batch.questions), batch.programs[:, 1]
    total = F.cross_entropy(logits, right, ignore_index=PAD, reduction="sum")
    asked = (right != PAD).sum()
    return LossSums(total, asked, (logits.argmax(1) == right).sum(), asked)


def reinforce(system: System, network: Any, batch: Batch) -> LossSums:
    """The executor learns to answer by a sampled program, the generator what is rewarded."""
    known = batch.answers != UNKNOWN
    log_p = network.generator(batch.questions).log_softmax(1)
    sampled = torch.multinomial(log_p.exp(), 1)
    logits = network.run(sampled.squeeze(1), batch.images)
    right = logits.argmax(1) == batch.answers
    with torch.no_grad():
        reward = right[known].float().mean()
        network.baseline.copy_(0.9 * network.baseline + 0.1 * reward)
    advantage = (right.float() - network.baseline) * known
    chosen = log_p.gather(1, sampled).squeeze(1)
    wrong = F.cross_entropy(logits, batch.answers, ignore_index=UNKNOWN, reduction="sum")
    return LossSums(wrong - (advantage * chosen).sum(), known.sum(), right.sum(), known.sum())


@dataclass(frozen=True)
class GuidedConfig:
    """Nothing to choose."""


GUIDED = System(
    name="guided",
    table1_row="PG+EE (700K prog.)*",
    description="",
    build=lambda config, data_spec: Guided(data_spec),
    presets={"guided": GuidedConfig()},
    forward=best_guess,
)
# It is validated at its end alone: before there is an executor, no answer tells what is best.
CLONING = Stage(
    name="clone",
    objective=clone,
    uses_programs=True,
    changes={"trainable": ("generator",), "epochs": 8, "validate_every": 8, "lr": 0.1},
)


def two_stages(begins: Literal["best", "last"] = "best", **changes: Any) -> TrainingSpec:
    second = Stage(name="reinforce", objective=reinforce, start_from=begins, changes=changes)
    return TrainingSpec(stages=(CLONING, second))


@pytest.fixture
def guided(monkeypatch: pytest.MonkeyPatch) -> TrainingPlan:
    set_training(monkeypatch, two_stages(epochs=6, lr=0.1))
    return plan("guided", validate_every=1, programs=43)


def set_training(patch: pytest.MonkeyPatch, training: TrainingSpec) -> None:
    system = replace(GUIDED, training=training)
    patch.setitem(PRESETS, "guided", Preset(system, GuidedConfig()))


def of_network(folder: Path, which: str) -> dict[str, Tensor]:
    tensors = read_checkpoint(folder / f"{which}.safetensors").tensors
    return {name.removeprefix("network/"): tensor for name, tensor in tensors.items()}


def test_two_stages_learn(
    guided: TrainingPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    set_training(monkeypatch, two_stages(epochs=12, lr=0.05))
    trainer(folder, guided).train()
    lines = read_log(folder / "log.jsonl")
    assert [line["stage"] for line in lines if line["kind"] == "end"] == ["clone", "reinforce"]
    first, second = (
        [line for line in lines if line["stage"] == stage and line["kind"] == "train"]
        for stage in ("clone", "reinforce")
    )
    assert first[-1]["accuracy"] == 1, "of programs"
    validations = [line for line in lines if line["kind"] == "validation"]
    before, after = (
        [line["accuracy"]["overall"] for line in validations if line["stage"] == stage][-1]
        for stage in ("clone", "reinforce")
    )
    assert before < 0.5 < after == 1
    assert second[0]["questions"] == first[-1]["questions"] + 16
    trained = load_trained(folder)
    assert 0.1 < trained.weights["baseline"] < 1

    set_training(monkeypatch, TrainingSpec(stages=(CLONING,)))
    trainer(tmp_path / "cloned", guided).train()
    cloned = of_network(tmp_path / "cloned", "last")
    torch.manual_seed(guided.seed)
    begun = Guided(TrainingData(dataset(), dataset()).data_spec()).state_dict()
    for name in begun:
        held = torch.equal(begun[name], cloned[name])
        assert held == (not name.startswith("generator")), name
        assert not torch.equal(trained.weights[name], cloned[name]), name


@pytest.mark.parametrize("begins", ["best", "last"])
def test_where_a_stage_begins(
    begins: Any, guided: TrainingPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_training(monkeypatch, TrainingSpec(stages=(CLONING,)))
    trainer(tmp_path / "cloned", guided).train()
    set_training(monkeypatch, two_stages(begins, epochs=1, lr=0.0))  # what begins stays
    trainer(tmp_path / "run", guided).train()
    wanted, found = of_network(tmp_path / "cloned", begins), of_network(tmp_path / "run", "last")
    weights = [name for name in wanted if name.startswith(("generator", "executor"))]
    assert [name for name in weights if "/" not in name]
    assert all(torch.equal(found[name], wanted[name]) for name in weights)
    best, last = (of_network(tmp_path / "cloned", which) for which in ("best", "last"))
    assert not torch.equal(best["generator.1.weight"], last["generator.1.weight"])


@pytest.mark.parametrize("steps", [23, 24, 25, 30, 42])
def test_stopped_in_either_stage(steps: int, guided: TrainingPlan, tmp_path: Path) -> None:
    trainer(tmp_path / "unbroken", guided).train()
    with StoppedAfter(steps), pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "run", guided).train()
    metadata = read_checkpoint(tmp_path / "run/last.safetensors").metadata
    assert metadata["state"]["stage"] == (steps > 24)
    trainer(tmp_path / "run", guided).train(resume=True)
    assert_equal(tmp_path / "run", tmp_path / "unbroken")


def test_failed_at_any_moment_between_stages(
    guided: TrainingPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(CLONING, changes={**CLONING.changes, "epochs": 1 / 3})
    _, second = two_stages(epochs=2 / 3, lr=0.1).stages
    set_training(monkeypatch, TrainingSpec(stages=(short, second)))
    guided = replace(guided, recipe=replace(guided.recipe, validate_every=1 / 3))
    assert assert_no_failure_matters(guided, tmp_path) > 20
