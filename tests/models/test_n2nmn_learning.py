"""N2NMN learns: its objectives are those written out, in both stages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet.data.batches import Batch
from macnet.data.question_arrays import UNKNOWN, program_ids
from macnet.data.spec import DataSpec
from macnet.models.objectives import LossSums
from macnet.models.systems.layouts import EOS, TOKENS, layout_names, layouts_of
from macnet.models.systems.n2nmn import (
    N2NMN,
    N2NMNConfig,
    N2NMNNetwork,
    clone,
    forward_layouts,
    policy_search,
)
from system_checks import NoWaiting, data_spec, images_of, padded, with_random_state
from transcription import assert_close, gradients

SMALL = N2NMNConfig(embedding=5, units=6, layers=2, map_dim=7, training_steps=6, steps=9)
PROGRAMS = [
    "exist filter_color[red] scene",
    "count filter_shape[cube] relate[left] unique filter_size[large] scene",
    "query_color unique same_size unique filter_shape[cube] scene",
    "equal_integer count filter_color[red] scene count filter_color[blue] scene",
]


def batch_of(images: Tensor, answers: list[int]) -> Batch:
    """Four questions about each image, which are the same for all images."""
    n, ids = len(images), [program_ids(program.split()) for program in PROGRAMS]
    programs = torch.tensor([[*row, *[0] * (9 - len(row))] for row in ids]).repeat(n, 1)
    questions = padded([[5, 1, 6], [5, 2, 6, 7], [5, 3], [5, 4, 6]]).repeat(n, 1)
    index = torch.arange(4 * n)
    lengths = (questions != 0).sum(1)
    return Batch(images, questions, lengths, torch.tensor(answers), index, programs, index)


def some_batch() -> tuple[N2NMNNetwork, Batch]:
    sizes = data_spec(False, 2, 3)
    torch.manual_seed(0)
    network = with_random_state(N2NMNNetwork(SMALL, sizes), training=False)
    return network, batch_of(images_of(sizes), [0, 1, 2, 3, 3, 2, 1, 0])


def test_cloning_sums_costs_of_answers_and_layouts() -> None:
    network, batch = some_batch()
    batch.answers[1], batch.answers[2] = UNKNOWN, -2  # a filler, and one out of the vocabulary
    batch.programs[4] = 0
    layouts = layouts_of(batch.programs, SMALL.training_steps)
    writing = network.generator.follow(network.generator.read(batch.questions), layouts, None)
    logits, _ = network.execute(batch.images, network.generator.read(batch.questions), writing)
    real = [0, 3, 5, 6, 7]
    wanted = 0.0
    for b in real:
        wanted -= logits[b].log_softmax(0)[batch.answers[b]].item()
        for t, token in enumerate(layouts[b].tolist()):
            wanted -= writing.logits[b, t].log_softmax(0)[token].item()
    found = clone(N2NMN, network, batch)
    best = logits.argmax(1)
    assert found.total.item() == pytest.approx(wanted, rel=1e-5)
    assert found.counted == len(real)
    assert found.correct == sum(int(best[b] == batch.answers[b]) for b in real)
    assert found.labelled == len(real) + 1, "that out of the vocabulary is wrong"


@pytest.mark.parametrize("objective", [clone, policy_search])
def test_fillers_alone_are_worth_nothing(objective: Any) -> None:
    network, batch = some_batch()
    batch = batch._replace(
        answers=torch.full((8,), UNKNOWN), programs=torch.zeros_like(batch.programs)
    )
    found: LossSums = objective(N2NMN, network, batch)
    assert [value.item() for value in found] == [0, 0, 0, 0]
    assert not any(g.any() for g in gradients(found.total, [*network.parameters()]))
    assert network.baseline.mean == 0.5


def test_policy_search_is_reinforce_with_entropy() -> None:
    network, batch = some_batch()
    batch.answers[1] = UNKNOWN
    known = [b for b in range(8) if b != 1]
    torch.manual_seed(4)
    found = policy_search(N2NMN, network, batch)
    torch.manual_seed(4)
    question = network.generator.read(batch.questions)
    writing = network.generator.write(question, SMALL.training_steps, sample=True)
    logits, _ = network.execute(batch.images, question, writing)
    costs = [-logits[b].log_softmax(0)[batch.answers[b]] for b in known]
    mean = 0.99 * 0.5 + 0.01 * torch.stack(costs).mean().item()
    assert network.baseline.mean.item() == pytest.approx(mean)
    total: Any = 0
    for b, cost in zip(known, costs, strict=True):
        total += cost
        for t, token in enumerate(writing.layouts[b].tolist()):
            p = writing.logits[b, t].softmax(0)
            total += (cost.item() - mean) * p[token].log()
            total += SMALL.entropy * sum(share * share.log() for share in p if share > 0)
    assert found.total.item() == pytest.approx(total.item(), rel=1e-5)
    assert found.counted == found.labelled == 7
    parameters = [*network.parameters()]
    pairs = zip(gradients(found.total, parameters), gradients(total, parameters), strict=True)
    for one, other in pairs:
        assert_close(one, other, "gradient", tolerance=1e-4)  # log-probabilities are float32


@pytest.mark.parametrize("objective", [clone, policy_search])
def test_training_never_waits_for_the_device(objective: Any) -> None:
    network, batch = some_batch()
    objective(N2NMN, network, batch)  # tables are copied to a device once
    with NoWaiting():  # type: ignore[no-untyped-call]
        objective(N2NMN, network, batch).total.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    for wait in (lambda x: x[x > 0], torch.nonzero, lambda x: x[0].item(), lambda x: bool(x[0])):
        with NoWaiting(), pytest.raises(AssertionError):  # type: ignore[no-untyped-call]
            wait(batch.answers)


def learner(sizes: DataSpec) -> tuple[N2NMNNetwork, torch.optim.Optimizer]:
    torch.manual_seed(0)
    config = N2NMNConfig(embedding=12, units=16, layers=1, map_dim=16, training_steps=6, steps=8)
    network = N2NMNNetwork(config, sizes)
    return network, torch.optim.Adam(network.parameters(), lr=3e-2)


def test_64_questions_are_cloned() -> None:
    sizes = data_spec(False, 2, 3)
    network, optimizer = learner(sizes)
    answers = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(2))
    batch = batch_of(images_of(sizes, 16).float(), answers.tolist())
    for step in range(200):
        if step % 10 == 0:
            with torch.no_grad():
                logits, same = forward_layouts(network, batch)
            if same.all() and logits.argmax(1).equal(answers):
                return
        optimizer.zero_grad()
        (clone(N2NMN, network, batch).total / 64).backward()
        optimizer.step()
    raise AssertionError(f"{(logits.argmax(1) == answers).sum()} of 64, layouts of {same.sum()}")


def test_policy_search_finds_cheaper_layouts() -> None:
    """Only Describe can tell answers apart here: modules are fixed, and the policy is learned."""
    sizes = data_spec(False, 2, 3)
    network, optimizer = learner(sizes)
    network.executor.requires_grad_(False)
    for name, layer in network.executor.named_modules():
        if name.endswith("answers") and isinstance(layer, nn.Linear):
            layer.weight.zero_()
            layer.bias.copy_(torch.tensor([5.0 * (name == "describe.answers"), 0, 0, 0]))
    batch = batch_of(images_of(sizes, 4).float(), [0] * 16)

    def cost() -> Tensor:
        with torch.no_grad():
            return F.cross_entropy(network(batch.images, batch.questions), batch.answers)

    assert cost() > 1
    for _ in range(30):
        optimizer.zero_grad()
        (policy_search(N2NMN, network, batch).total / 16).backward()
        optimizer.step()
    assert cost() < 0.1


def test_whether_a_layout_is_the_true_one() -> None:
    network, batch = some_batch()
    answers = network.answer(batch.images, batch.questions)
    logits, same = forward_layouts(network, batch._replace(programs=batch.programs * 0))
    assert logits.equal(answers.logits)
    assert not same.any(), "without programs none is"
    names = [layout_names(program.split()) for program in PROGRAMS] * 2
    written = [[TOKENS[t] for t in row if t != EOS] for row in answers.layouts.tolist()]
    _, same = forward_layouts(network, batch)
    assert same.tolist() == [one == other for one, other in zip(names, written, strict=True)]
