"""PG+EE learns programs, their execution, and both together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from macnet.data.question_arrays import UNKNOWN
from macnet.data.vocab import END, PAD, PROGRAM_TOKENS
from macnet.errors import InputError
from macnet.models.system import Stage
from macnet.models.systems.pg_ee import (
    PG_EE,
    PGEE,
    STAGES,
    forward_with_programs,
    learn_execution,
    learn_jointly,
    learn_programs,
)
from macnet.training.step import trainable_parameters
from pg_ee_loops import up_to_end, write_alone
from small_pg_ee import FEATURES, SMALL, batch_of, network_for, undecided, words_of
from system_checks import (
    NoWaiting,
    images_of,
)
from transcription import assert_close, gradients

# --- objectives ------------------------------------------------------------------------------


def test_programs_are_learned_by_the_mean_over_tokens_and_ends() -> None:
    network, batch = network_for(), batch_of(images_of(FEATURES))
    batch.programs[1], batch.programs[6] = PAD, PAD  # fillers
    batch.answers[2] = UNKNOWN  # which says nothing about the program
    total, count, right = 0.0, 0, 0
    for b, words in enumerate(words_of(batch)):
        if b in (1, 6):
            continue
        tokens = [token for token in batch.programs[b].tolist() if token] + [END]
        logits = write_alone(network.generator, words, tokens[:-1])
        total -= sum(row.log_softmax(0)[t].item() for row, t in zip(logits, tokens, strict=True))
        count += len(tokens)
        right += logits.argmax(1).tolist() == tokens
    found = learn_programs(PG_EE, network, batch)
    assert found.total.item() == pytest.approx(total, rel=1e-5)
    assert [found.counted, found.correct, found.labelled] == [count, right, 6]


def test_programs_that_were_learned_are_counted() -> None:
    network, batch = network_for(), batch_of(images_of(FEATURES))
    with torch.no_grad():
        written = network.generator.write(batch.questions)
    rows = [up_to_end(row) for row in written.tolist()]
    ended = [END in row and len(row) > 1 and PAD not in row for row in rows]
    assert any(ended)
    mine = [row[:-1] if ok else [8] for row, ok in zip(rows, ended, strict=True)]
    programs = torch.tensor([row + [PAD] * (8 - len(row)) for row in mine])
    found = learn_programs(PG_EE, network, batch._replace(programs=programs))
    assert found.correct == sum(ended)
    _, same = forward_with_programs(network, batch._replace(programs=programs))
    assert same.tolist() == ended


@pytest.mark.parametrize("length", [4, 8])
def test_programs_that_are_too_long_are_refused(length: int) -> None:
    network, batch = network_for(program_length=length), batch_of(images_of(FEATURES))
    with pytest.raises(InputError) as caught:
        learn_programs(PG_EE, network, batch)
    assert str(caught.value) == (
        f"programs have up to 8 functions, but `model.program_length` is {length}; give at least 9"
    )
    learn_programs(PG_EE, network_for(program_length=9), batch)


@pytest.mark.parametrize("source", ["written", "true"])
def test_execution_is_learned_by_the_programs_of_the_configuration(source: Any) -> None:
    network, batch = network_for(executor_learns_from=source), batch_of(images_of(FEATURES))
    batch.answers[3], batch.answers[5] = UNKNOWN, -2  # a filler, and one out of the vocabulary
    programs = batch.programs
    if source == "written":
        programs = network.generator.write(batch.questions)
    logits = network.executor.literal(batch.images, programs)
    real = [b for b in range(8) if b not in (3, 5)]
    wanted = -sum(logits[b].log_softmax(0)[batch.answers[b]] for b in real)
    found = learn_execution(PG_EE, network, batch)
    assert isinstance(wanted, Tensor)
    assert found.total.item() == pytest.approx(wanted.item(), rel=1e-5)
    right = sum(int(logits[b].argmax() == batch.answers[b]) for b in real)
    assert [found.counted, found.correct, found.labelled] == [6, right, 7]
    parameters = [*network.parameters()]
    for one, other in zip(
        gradients(found.total, parameters), gradients(wanted, parameters), strict=True
    ):
        assert_close(one, other.to(one), "gradient", tolerance=1e-5)  # the loss is float32


def test_both_are_learned_by_reinforce() -> None:
    network, batch = undecided(network_for()), batch_of(images_of(FEATURES))
    batch.answers[3], batch.answers[5] = UNKNOWN, -2
    real = [b for b in range(8) if b not in (3, 5)]
    torch.manual_seed(5)
    programs = network.generator.write(batch.questions, sample=True)
    assert {END in row for row in programs.tolist()} == {True, False}, "some end, some do not"
    logits = network.executor.literal(batch.images, programs)
    batch.answers[0] = logits[0].argmax()  # or none could be right
    costs = [float(logits[b].argmax() != batch.answers[b]) for b in real]
    baseline = 0.9 * 1 + 0.1 * sum(costs) / len(costs)
    total: Any = 0
    for b, cost in zip(real, costs, strict=True):
        total = total - logits[b].log_softmax(0)[batch.answers[b]]
        tokens = up_to_end(programs[b].tolist())
        rows = write_alone(network.generator, words_of(batch)[b], tokens[:-1])
        for row, token in zip(rows, tokens, strict=True):
            total = total + (cost - baseline) * row.log_softmax(0)[token]
    torch.manual_seed(5)
    found = learn_jointly(PG_EE, network, batch)
    assert network.baseline.mean.item() == pytest.approx(baseline)
    assert found.total.item() == pytest.approx(total.item(), rel=1e-5)
    right = len(costs) - int(sum(costs))
    assert [found.counted, found.correct, found.labelled] == [6, right, 7]
    assert right > 0
    parameters = [*network.parameters()]
    for one, other in zip(
        gradients(found.total, parameters), gradients(total, parameters), strict=True
    ):
        assert_close(one, other.to(one), "gradient", tolerance=1e-4)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_fillers_alone_are_worth_nothing(stage: Stage) -> None:
    network, batch = network_for(), batch_of(images_of(FEATURES))
    batch = batch._replace(
        answers=torch.full((8,), UNKNOWN), programs=torch.zeros_like(batch.programs)
    )
    found = stage.objective(PG_EE, network, batch)
    assert [value.item() for value in found] == [0, 0, 0, 0]
    assert not any(g.any() for g in gradients(found.total, [*network.parameters()]))
    assert network.baseline.mean == 1


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_trains_what_it_is_about(stage: Stage, low: bool) -> None:
    network, batch = network_for().float(), batch_of(images_of(FEATURES).float())
    parts = stage.recipe(PG_EE.training.paper).trainable
    trained = trainable_parameters(network, parts)
    assert {name.split(".")[0] for name in trained} == {
        "generator": {"generator"},
        "executor": {"executor"},
        "joint": {"generator", "executor"},
    }[stage.name]
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        found = stage.objective(PG_EE, network, batch)
    found.total.backward()
    for name, weight in network.named_parameters():
        unused = "bank" in name  # not every module is in the programs of this batch
        if name in trained and not unused:
            assert weight.grad is not None, name
            assert weight.grad.any(), name
        if name not in trained:
            assert weight.grad is None, name


def test_stages_are_as_long_and_as_fast_as_published() -> None:
    recipes = [stage.recipe(PG_EE.training.paper) for stage in STAGES]
    assert [recipe.lr for recipe in recipes] == pytest.approx([5e-4, 1e-4, 5e-5])
    steps = [recipe.epochs * 700_000 / 64 for recipe in recipes]
    assert steps == pytest.approx([20_000, 100_000, 100_000])
    assert {(r.optimizer, r.clip, r.ema, r.weight_decay) for r in recipes} == {("adam", 0, 0, 0)}
    assert all(recipe.images * recipe.questions == 64 for recipe in recipes)


class RootIsExist(nn.Module):
    """An execution engine that answers 1 where the root is `exist`, else 0."""

    def forward(self, images: Tensor, programs: Tensor) -> Tensor:
        is_exist = (programs[:, 0] == PROGRAM_TOKENS.index("exist")).double()
        return torch.stack([1 - is_exist, is_exist, 0 * is_exist, 0 * is_exist], 1)


@pytest.mark.parametrize("objective", [learn_programs, learn_jointly])
def test_the_generator_never_waits_for_the_device(objective: Any) -> None:
    network, batch = network_for(), batch_of(images_of(FEATURES))
    network.executor = RootIsExist()  # type: ignore[assignment]
    objective(PG_EE, network, batch)
    with NoWaiting():  # type: ignore[no-untyped-call]
        objective(PG_EE, network, batch).total.backward()


def test_reinforce_finds_the_programs_that_give_the_answer() -> None:
    torch.manual_seed(0)
    network = PGEE(replace(SMALL, units=16, embedding=12), FEATURES)
    network.executor = RootIsExist()  # type: ignore[assignment]
    batch = batch_of(images_of(FEATURES, 32).float(), [1] * 128)
    optimizer = torch.optim.Adam(network.generator.parameters(), lr=3e-2)
    for _ in range(40):
        optimizer.zero_grad()
        (learn_jointly(PG_EE, network, batch).total / 128).backward()
        optimizer.step()
    assert network.baseline.mean < 0.5
    assert (network.generator.write(batch.questions)[:, 0] == PROGRAM_TOKENS.index("exist")).all()


# --- learning --------------------------------------------------------------------------------


def test_64_questions_are_learned_stage_by_stage() -> None:
    torch.manual_seed(0)
    config = replace(SMALL, embedding=12, units=16, layers=1, channels=8, pooled=8, hidden=16)
    network = PGEE(config, FEATURES)
    answers = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(2))
    batch = batch_of(images_of(FEATURES, 16).float(), answers.tolist())
    for stage, steps in zip(STAGES, (200, 200, 3), strict=True):
        parts = stage.recipe(PG_EE.training.paper).trainable
        weights = trainable_parameters(network, parts)
        optimizer = torch.optim.Adam(weights.values(), lr=2e-2 if stage.name != "joint" else 1e-4)
        for step in range(steps):
            if step % 10 == 0:
                with torch.no_grad():
                    logits, same = forward_with_programs(network, batch)
                right = int((logits.argmax(1) == answers).sum())
                if {"generator": same.all(), "executor": right == 64}.get(stage.name, False):
                    break
            optimizer.zero_grad()
            found = stage.objective(PG_EE, network, batch)
            (found.total / found.counted).backward()
            optimizer.step()
        assert same.all(), f"{same.sum()} of 64 programs after {stage.name}"
        assert stage.name == "generator" or right == 64, f"{right} of 64 after {stage.name}"


def test_whether_a_program_is_the_true_one() -> None:
    network, batch = network_for(), batch_of(images_of(FEATURES))
    logits, written = network.answer(batch.images, batch.questions)
    for width in (1, 4, 8, 20):  # shorter and longer than what is written
        programs = torch.zeros(8, width, dtype=torch.int64)
        wanted = []
        for b, row in enumerate(written.tolist()):
            tokens = up_to_end(row)
            if len(tokens) - 1 <= width and b % 2:
                programs[b, : len(tokens) - 1] = torch.tensor(tokens[:-1])
            wanted.append([t for t in programs[b].tolist() if t] + [END] == tokens)
        found, same = forward_with_programs(network, batch._replace(programs=programs))
        assert found.equal(logits)
        assert same.tolist() == wanted
    assert any(wanted)
    _, same = forward_with_programs(network, batch._replace(programs=programs[:, :0]))
    assert same.shape == (8,)
