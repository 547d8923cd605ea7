"""The loop: when it looks, validates and ends, what it says, and what it does not put up with."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from macnet.checkpoint import load_trained, read_checkpoint
from macnet.data.batches import Batch
from macnet.errors import InputError
from macnet.evaluation.accuracy import Results, measure
from macnet.models.objectives import LossSums, Objective, answer_loss
from macnet.models.registry import PRESETS, Preset
from macnet.models.system import Stage, System, TrainingSpec
from macnet.training import trainer as trainer_module
from macnet.training.log import read_log
from macnet.training.trainer import Trainer
from tiny_training import plan, result, trainer


@pytest.fixture(autouse=True)
def _no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "draw_curve", lambda *_: None)


def lines_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in read_log(folder / "log.jsonl") if line["kind"] == kind]


# --- when ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "validate", "validated"),
    [
        (4, 1, [3, 6, 9, 12]),
        (4, 2.0, [6, 12]),
        (2, 1 / 3, [1, 2, 3, 4, 5, 6]),
        (2.5, 1, [3, 6, 8]),  # the last step is always validated
        (0.01, 1, [1]),
        (1, 50, [3]),
    ],
)
def test_epochs_and_validations(
    epochs: float, validate: float, validated: list[int], tmp_path: Path
) -> None:
    """An epoch of 48 questions is three steps of 16."""
    trainer(tmp_path / "run", plan(epochs=epochs, validate_every=validate)).train()
    found = lines_of(tmp_path / "run", "validation")
    assert [line["step"] for line in found] == validated
    assert [line["epoch"] for line in found] == pytest.approx([step / 3 for step in validated])
    (end,) = lines_of(tmp_path / "run", "end")
    assert (end["reason"], end["step"]) == ("all epochs are over", validated[-1])
    assert end["questions"] == 16 * validated[-1]


class Scripted(Trainer):
    """Its validations give so many right answers of 32, one after another."""

    rights: Iterator[int]

    def _validate(self, network: nn.Module, *, show: bool = True) -> Results:
        right, val = next(self.rights, 0), self.training_data.val
        given = val.questions.answers.astype("int16")
        given[right:] = (given[right:] + 1) % 28
        return measure(val, given)


def scripted(folder: Path, rights: list[int], **recipe: Any) -> Scripted:
    made = plan(epochs=len(rights), **recipe)
    found = Scripted(folder, made, trainer(folder, made).training_data, device=torch.device("cpu"))
    found.rights = iter(rights)
    return found


@pytest.mark.parametrize(
    ("rights", "patience", "ends", "best"),
    [
        ([1, 2, 3, 4, 5], 2, 5, 5),
        ([9, 8, 7, 10, 5], 2, 3, 1),
        ([9, 8, 10, 9, 8, 30], 2, 5, 3),
        ([9, 9, 9, 30], 2, 3, 1),  # as good is not better
        ([9, 8, 7, 10, 5], 0, 5, 4),
        ([0, 0, 0], 1, 2, 1),
    ],
)
def test_early_stopping(
    rights: list[int], patience: int, ends: int, best: int, tmp_path: Path
) -> None:
    assert scripted(tmp_path / "run", rights, patience=patience).train()
    found = lines_of(tmp_path / "run", "validation")
    assert len(found) == ends
    assert [n for n, line in enumerate(found, start=1) if line["best"]][-1] == best
    (end,) = lines_of(tmp_path / "run", "end")
    assert end["reason"] == ("early stopping" if ends < len(rights) else "all epochs are over")
    metadata = load_trained(tmp_path / "run").metadata
    assert metadata["accuracy"]["overall"] == rights[best - 1] / 32


def test_the_log_averages_over_the_steps_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(epochs=3)  # nine steps
    trainer(tmp_path / "each", made).train()
    monkeypatch.setattr("macnet.training.loop.LOG_LINES", 1)
    trainer(tmp_path / "three", made).train()
    each, three = (lines_of(tmp_path / name, "train") for name in ("each", "three"))
    assert [line["step"] for line in each] == [*range(1, 10)]
    assert [line["step"] for line in three] == [3, 6, 9]
    for n, line in enumerate(three):
        for name in ("loss", "accuracy", "gradient_norm"):
            mean = sum(single[name] for single in each[3 * n : 3 * n + 3]) / 3
            assert line[name] == pytest.approx(mean), name
    assert result(tmp_path / "each")[0][0].equal(result(tmp_path / "three")[0][0])


def test_the_steps_before_early_stopping_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("macnet.training.loop.LOG_LINES", 1)  # a line in three steps
    made = scripted(tmp_path / "run", [9, 8, 7], validate_every=2 / 3, patience=1)
    assert made.train()
    each, last = lines_of(tmp_path / "run", "train")
    (end,) = lines_of(tmp_path / "run", "end")
    assert (each["step"], last["step"], end["step"]) == (3, 4, 4)
    monkeypatch.undo()
    scripted(tmp_path / "all", [9, 8, 7], validate_every=2 / 3, patience=1).train()
    assert last["loss"] == lines_of(tmp_path / "all", "train")[3]["loss"]


def test_the_authors_rule_sees_the_loss_of_whole_epochs(tmp_path: Path) -> None:
    trainer(tmp_path / "run", plan(epochs=3, schedule="authors")).train()
    losses = read_checkpoint(tmp_path / "run/last.safetensors").metadata["state"]["epoch_losses"]
    steps = [line["loss"] for line in lines_of(tmp_path / "run", "train")]
    assert losses == pytest.approx([sum(steps[k : k + 3]) / 3 for k in (0, 3, 6)])


# --- what it says ----------------------------------------------------------------------------


def test_what_is_said_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer(tmp_path / "run", plan(epochs=2)).train()
    out, err = capsys.readouterr()
    assert out == ""
    said = err.splitlines()
    validation = r"epoch {}\.00: val \d+\.\d\d% \| Exist \d+\.\d"
    # Validations once each, and where a stage ends its last line; no line of a bar within a bar.
    assert len(said) == 3
    assert re.fullmatch(validation.format(1), said[0])
    assert re.fullmatch(
        r"training 96/96, [\d,.]+ questions/s, 0:00 left, loss \d\.\d{4}, lr 3\.0e-03", said[1]
    )
    assert re.fullmatch(validation.format(2), said[2])


# --- divergence ------------------------------------------------------------------------------


def test_a_learning_rate_that_is_far_too_high(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(InputError, match="will not recover") as failure:
        trainer(folder, plan(lr=1e3, epochs=20), save_every=0).train()
    assert re.fullmatch(
        rf"{folder}: the loss was [\d.e+infa]+ at step \d+, at a learning rate of 1\.0e\+03, and "
        r"training will not recover; try a smaller `recipe\.lr`, a longer `recipe\.warmup`, "
        r"a small `recipe\.clip` or `recipe\.precision` float32 "
        r"\(last\.safetensors is of an earlier, sound step\)",
        str(failure.value),
    )
    (end,) = lines_of(folder, "end")
    assert end["reason"] == "diverged"
    kept = read_checkpoint(folder / "last.safetensors")
    assert 0 < kept.metadata["state"]["step"] < end["step"]
    assert all(tensor.isfinite().all() for tensor in kept.tensors.values())


def train_by(patch: pytest.MonkeyPatch, objective: Objective) -> None:
    """Let the preset `paper` be trained by another objective."""
    system, config = PRESETS["paper"]
    training = TrainingSpec(stages=(Stage(name="training", objective=objective),))
    patch.setitem(PRESETS, "paper", Preset(replace(system, training=training), config))


@pytest.mark.parametrize("of", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_ends_the_run(
    of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the loss, or only in its gradient, at the seventh step; six steps are kept."""
    steps = iter(range(1, 100))

    def sometimes(system: System, network: nn.Module, batch: Batch) -> LossSums:
        found = answer_loss(system, network, batch)
        if next(steps) == 7:
            weight = next(network.parameters())
            broken = (weight.sum() * 0).sqrt() if of == "gradient" else math.nan * weight.sum()
            return found._replace(total=found.total + broken)
        return found

    train_by(monkeypatch, sometimes)
    folder = tmp_path / "run"
    with pytest.raises(InputError, match=r"at step 7, .* \(last.safetensors is of an earlier"):
        trainer(folder, save_every=0).train()
    kept = read_checkpoint(folder / "last.safetensors")
    assert kept.metadata["state"]["step"] == 6
    assert all(tensor.isfinite().all() for tensor in kept.tensors.values())
    assert load_trained(folder).network() is not None
    # The same command goes on from there, and this time all is well.
    trainer(folder).train(resume=True)
    monkeypatch.undo()
    monkeypatch.setattr(trainer_module, "draw_curve", lambda *_: None)
    trainer(tmp_path / "unbroken").train()
    assert result(folder)[1] == result(tmp_path / "unbroken")[1]


def test_divergence_keeps_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was found at the third step, and nothing was saved since."""
    steps = iter(range(1, 100))

    def breaks(system: System, network: nn.Module, batch: Batch) -> LossSums:
        found = answer_loss(system, network, batch)
        return found._replace(total=found.total * (math.nan if next(steps) == 5 else 1))

    train_by(monkeypatch, breaks)
    with pytest.raises(InputError, match=r"at step 5, .* `recipe\.precision` float32$"):
        trainer(tmp_path / "run").train()
    assert load_trained(tmp_path / "run").metadata["step"] == 3


def test_divergence_before_anything_was_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`recipe\.precision` float32$"):
        trainer(tmp_path / "run", plan(lr=1e3, epochs=20)).train()
    assert not (tmp_path / "run/last.safetensors").exists()


def test_a_poor_guess_is_no_divergence(tmp_path: Path) -> None:
    """A loss of a few times that of guessing is what beginnings look like."""
    made = plan(lr=0.1, epochs=2, clip=0)
    assert trainer(tmp_path / "run", made).train()
    losses = [line["loss"] for line in lines_of(tmp_path / "run", "train")]
    assert max(losses) > math.log(28)


def test_a_dataset_that_is_smaller_than_a_batch(tmp_path: Path) -> None:
    small = plan(images=64, questions=4, epochs=2)
    trainer(tmp_path / "run", small).train()
    assert [line["step"] for line in lines_of(tmp_path / "run", "train")] == [1, 2]


def test_a_batch_that_is_far_larger_leaves_no_run_behind(tmp_path: Path) -> None:
    huge = plan(images=100_000, questions=4)
    with pytest.raises(InputError, match="but made of seed 0 makes 12 groups of 4 question"):
        trainer(tmp_path / "run", huge).train()
    assert not (tmp_path / "run").exists()


def test_the_log_counts_no_holes(tmp_path: Path) -> None:
    """Four questions an image in groups of three leave two holes in every second group."""
    trainer(tmp_path / "run", plan(questions=3, epochs=2)).train()
    ends = [line["questions"] for line in lines_of(tmp_path / "run", "validation")]
    assert ends == [48, 96]
