"""PG+EE and N2NMN, which write programs, are trained in stages; and stopped, and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from broken_off import StoppedAfter
from macnet import distributed
from macnet.checkpoint import load_trained, read_checkpoint
from macnet.configuration import with_changes
from macnet.errors import InputError
from macnet.models.registry import SYSTEMS
from macnet.models.system import uniform_answer_loss
from macnet.training.log import read_log
from macnet.training.plan import TrainingPlan
from macnet.training.training_data import TrainingData
from processes import in_processes
from program_training import (
    CPU,
    NAMES,
    PROGRAMS,
    STAGES,
    small_plan,
    trainer,
    training_data,
    with_programs,
)
from tiny_training import TINY, assert_equal, dataset, plan, result, small_and_quick


@pytest.fixture(scope="module", autouse=True)
def _small_and_quick() -> Iterator[None]:
    with small_and_quick():
        yield


# --- stopped and resumed ---------------------------------------------------------------------

MODERN = {"ema": 0.9, "optimizer": "muon", "schedule": "cosine", "precision": "bfloat16"}


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_stopped_after_every_step_ends_as_if_it_never_was(
    name: str, tmp_path: Path
) -> None:
    made = small_plan(name)
    trainer(tmp_path / "whole", made).train()
    ends = [x for x in read_log(tmp_path / "whole/log.jsonl") if x["kind"] == "end"]
    assert [line["stage"] for line in ends] == STAGES[name]
    assert [line["step"] for line in ends] == {"pg-ee": [1, 3, 3], "n2nmn": [3, 3]}[name]
    for _ in range(sum(line["step"] for line in ends) - 1):
        with StoppedAfter(1), pytest.raises(KeyboardInterrupt, match="the same with `resume`"):
            trainer(tmp_path / "run", made).train(resume=True)
    assert trainer(tmp_path / "run", made).train(resume=True)
    assert not trainer(tmp_path / "run", made).train(resume=True), "it was finished"
    assert_equal(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "changes", "stop"),
    [
        ("pg-ee", MODERN, 5),
        ("pg-ee", {"programs": 5}, 1),
        ("n2nmn", {**MODERN, "programs": 5}, 5),
    ],
)
def test_so_does_one_with_other_recipes(
    name: str, changes: dict[str, Any], stop: int, tmp_path: Path
) -> None:
    made = small_plan(name, **changes)
    trainer(tmp_path / "whole", made).train()
    with StoppedAfter(stop), pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "run", made).train()
    assert trainer(tmp_path / "run", made).train(resume=True)
    assert_equal(tmp_path / "run", tmp_path / "whole")


# --- stages ----------------------------------------------------------------------------------


def weights_after(folder: Path, made: TrainingPlan, data: TrainingData | None = None) -> Any:
    trainer(folder, made, data).train()
    return load_trained(folder).weights


def test_stages_train_what_they_are_about_one_after_another(tmp_path: Path) -> None:
    made = small_plan("pg-ee", lr=2e-2)  # enough for some right answers, and so for rewards
    torch.manual_seed(made.seed)
    before = made.system.build(made.model, training_data().data_spec()).state_dict()
    parts = ({"generator"}, {"executor"}, {"generator", "executor", "baseline"})
    for count, trained in enumerate(parts, start=1):
        few = with_changes(made.recipe, {"stages": tuple(STAGES["pg-ee"][:count])})
        after = weights_after(tmp_path / str(count), replace(made, recipe=few))
        moved = {key for key in after if not torch.equal(before[key], after[key])}
        assert {key.split(".")[0] for key in moved} == trained
        before = after


def test_the_best_generator_is_that_of_the_best_programs(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"images": 4, "epochs": 130, "stages": ("generator",), "lr": 4e-3}
    made = plan("pg-ee", {**TINY["pg-ee"], "units": 16}, ema=0, validate_every=5, **recipe)
    trainer(tmp_path / "run", made).train()
    lines = [x for x in read_log(tmp_path / "run/log.jsonl") if x["kind"] == "validation"]
    shares = [line["accuracy"]["programs"] for line in lines]
    assert max(shares) > 0
    assert len({line["accuracy"]["overall"] for line in lines}) == 1, "answers are not learned"
    best = load_trained(tmp_path / "run").metadata
    assert best["step"] == lines[shares.index(max(shares))]["step"] > lines[0]["step"]
    # Where programs are not known at validation, answers tell nothing: the last is the best.
    data = replace(training_data(), val=with_programs(dataset(4, 1), ("", "", "", "")))
    trainer(tmp_path / "other", made, data).train()
    assert load_trained(tmp_path / "other").metadata["step"] == lines[-1]["step"]


def test_cloning_starts_below_what_counts_as_divergence() -> None:
    """The loss of a layout of 10 tokens is large, and that of 20 larger."""
    spec = training_data().data_spec()
    for steps, times in ((10, 8), (20, 16)):
        made = plan("n2nmn", {**TINY["n2nmn"], "training_steps": steps})
        stage, later = made.stages
        network = made.system.build(made.model, spec)
        data = training_data()
        source = data.open(made.recipe, None, seed=0, device=CPU, position=0, workers=0)
        found = stage.objective(made.system, network, source.gather(source.sample()))
        loss = (found.total / found.counted).item()
        assert loss == pytest.approx(stage.uniform_loss(made.model, spec), rel=0.1)
        assert loss > times * uniform_answer_loss(None, spec)
        assert later.uniform_loss(made.model, spec) == uniform_answer_loss(None, spec)


def test_layouts_that_are_too_long_are_no_end_of_training(tmp_path: Path) -> None:
    """A batch that nothing is learned from has no loss."""
    long = "exist relate[left] unique filter_color[red] relate[left] unique filter_color[red] scene"
    made = plan("n2nmn", {**TINY["n2nmn"], "training_steps": 2}, epochs=1, ema=0)
    trainer(tmp_path / "run", made, training_data((long,) * 4)).train()
    first = read_log(tmp_path / "run/log.jsonl")[0]
    assert (first["stage"], first["loss"]) == ("cloning", 0)


# --- CLEVR-Humans ----------------------------------------------------------------------------


def test_fine_tuning_on_people_s_questions_changes_the_generator_only(tmp_path: Path) -> None:
    made = small_plan("pg-ee", programs=9, lr=2e-2)
    before = weights_after(tmp_path / "run", made)
    start = load_trained(tmp_path / "run")
    recipe = made.system.training.find_recipe("humans")
    assert (recipe.stages, recipe.trainable) == (("joint",), ("generator",))
    tuned = replace(
        made,
        start=start,
        recipe=with_changes(recipe, {"images": 2, "questions": 4, "epochs": 0.5}),
    )
    data = training_data(("", "", "", ""))
    after = weights_after(tmp_path / "tuned", tuned, data)
    moved = {key for key in after if not torch.equal(before[key], after[key])}
    weights = {key for key in moved if "running" not in key and "tracked" not in key}
    assert {key.split(".")[0] for key in weights} == {"generator", "baseline"}
    log = read_log(tmp_path / "tuned/log.jsonl")
    assert {line["stage"] for line in log} == {"joint"}
    assert log[0]["lr"] == 1e-4, "as published"
    assert "programs" not in log[-2]["accuracy"], "there are none to compare with"
    assert load_trained(tmp_path / "tuned").programs == 9, "those it learned from before"
    for more, known in ((5, 9), (12, 12), (0, 0)):
        again = replace(made, start=start, recipe=replace(made.recipe, programs=more))
        assert again.programs == known, "of both trainings; 0 stands for all"


def test_no_fine_tuning_of_n2nmn_is_published() -> None:
    with pytest.raises(InputError, match="no fine-tuning on CLEVR-Humans is published"):
        SYSTEMS["n2nmn"].training.find_recipe("humans")


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_questions_without_programs_are_refused_at_once(name: str, tmp_path: Path) -> None:
    some = replace(training_data(), train=with_programs(dataset(), (*PROGRAMS[:3], "")))
    none = replace(dataset(), questions=replace(dataset().questions, programs=np.zeros((48, 0))))
    for data, lacking in (
        (some, 12),
        (training_data(("", "", "", "")), 48),
        (replace(training_data(), train=none), 48),
    ):
        with pytest.raises(InputError) as caught:
            trainer(tmp_path / "run", small_plan(name), data).train()
        assert str(caught.value) == (
            f"made of seed 0: training needs programs: {lacking} of 48 questions have no CLEVR "
            "program; train on questions that have one, or another preset"
        )
        assert not (tmp_path / "run").exists()
    # Only the first stage needs them; the others alone are no row of the paper's.
    last = small_plan(name, stages=(STAGES[name][-1],), epochs=0.2)
    trainer(tmp_path / "run", last, some).train()
    assert load_trained(tmp_path / "run").share is None


def test_replayed_questions_need_programs_too(tmp_path: Path) -> None:
    data = replace(training_data(), replay=with_programs(dataset(), ("",) * 4), replay_share=0.5)
    with pytest.raises(InputError, match="training needs programs: 48 of 48"):
        trainer(tmp_path / "run", small_plan("pg-ee"), data).train()


def test_a_number_of_programs_is_no_number_if_others_are_replayed(tmp_path: Path) -> None:
    data = replace(training_data(), replay=with_programs(dataset()), replay_share=0.5)
    with pytest.raises(InputError, match="leave out one of `programs` and `replay`"):
        trainer(tmp_path / "run", small_plan("n2nmn", programs=9), data).train()
    assert not (tmp_path / "run").exists()


def test_programs_that_are_too_long_are_refused(tmp_path: Path) -> None:
    made = plan("pg-ee", {**TINY["pg-ee"], "program_length": 5})
    with pytest.raises(InputError, match=r"`model.program_length` is 5; give at least 7"):
        trainer(tmp_path / "run", made).train()
    assert not [*(tmp_path / "run").glob("*.safetensors")]


# --- two processes ---------------------------------------------------------------------------


def train_both(folder: Path) -> None:
    own = folder if distributed.is_rank_zero() else folder / "not the first"
    with small_and_quick():
        for name in NAMES:
            first = STAGES[name][:-1]  # samples of the last are each process's own
            made = small_plan(name, epochs=0.34, optimizer="muon", stages=tuple(first))
            trainer(own / name, made).train()
            if distributed.size() > 1:
                trainer(own / f"{name} to the end", small_plan(name, epochs=0.2)).train()


def test_processes_learn_what_one_learns(tmp_path: Path) -> None:
    in_processes(train_both, tmp_path / "two")
    train_both(tmp_path / "one")
    for name in NAMES:
        (_, curve), (_, their_curve) = (result(tmp_path / n / name) for n in ("one", "two"))
        for line, other in zip(curve, their_curve, strict=True):
            assert other.keys() == line.keys()
            assert other["step"] == line["step"]
            if "loss" in line:
                assert other["loss"] == pytest.approx(line["loss"], rel=1e-4)
                assert other["gradient_norm"] == pytest.approx(line["gradient_norm"], rel=1e-3)
        found, wanted = (learned(tmp_path / n / name) for n in ("one", "two"))
        for key, value in wanted.items():
            if "running" not in key:
                assert (found[key] - value).norm() <= 1e-3 * value.norm() + 1e-4, key
        log = read_log(tmp_path / f"two/{name} to the end/log.jsonl")
        assert [x["stage"] for x in log if x["kind"] == "end"] == STAGES[name]


def learned(run: Path) -> dict[str, Tensor]:
    tensors = read_checkpoint(run / "last.safetensors").tensors
    return {key: t.double() for key, t in tensors.items() if key.startswith("network")}
