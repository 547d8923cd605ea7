"""A step of learning against one that is written out, in float64 and by hand."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from macnet.data.batches import Batch, Batches
from macnet.data.questions import UNKNOWN
from macnet.data.vocab import ANSWERS
from macnet.errors import InputError
from macnet.models.registry import System
from macnet.training.objectives import Scored, answers
from macnet.training.recipes import Recipe
from macnet.training.step import Learner, chosen_weights
from tiny_lessons import CALM, dataset, plan, result, trainer

STEPS = 9
WORDS = len(dataset(1).vocabulary)
CPU = torch.device("cpu")


class Toy(nn.Module):
    """It knows how bright an image is, and which words were read."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6)
        self.output = nn.Linear(7, len(ANSWERS))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor, questions: Tensor) -> Tensor:
        bright = images.double().mean((1, 2, 3)) / 255
        bright = bright.repeat_interleave(len(questions) // len(images))
        self.seen += self.training
        logits: Tensor = self.output(
            torch.cat([self.embedding(questions).mean(1), bright[:, None]], 1)
        )
        return logits


TOY = System("toy", "Toy", lambda config, fit: Toy())


def batches() -> Batches:
    """Groups of three of an image's four questions: of every other group one counts."""
    return Batches(dataset(5), images=2, questions=3, seed=1)


def toy() -> Toy:
    torch.manual_seed(0)
    return Toy().double()


def learn(recipe: Recipe, network: nn.Module, steps: int = STEPS) -> Learner:
    learner = Learner(TOY, network, answers, recipe, batches(), CPU)
    for step in range(steps):
        learner.step(step, rate=0.01 / (1 + step))
    return learner


def by_hand(recipe: Recipe, network: Toy) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """The weights, their average, and the sum of the gradients' norms."""
    weights: dict[str, Tensor] = dict(network.named_parameters())
    average = {name: w.detach().clone() for name, w in weights.items()}
    first = {name: torch.zeros_like(w) for name, w in weights.items()}
    second = {name: torch.zeros_like(w) for name, w in weights.items()}
    norms, source = 0.0, batches()
    for t in range(1, STEPS + 1):
        lr, batch = 0.01 / t, next(source)
        real = [k for k, which in enumerate(batch.which.tolist()) if which != UNKNOWN]
        logits = network(batch.images, batch.questions)
        each = [-logits[k].log_softmax(0)[batch.answers[k]] for k in real]
        loss = sum(each) / len(real)
        gradients = dict(zip(weights, torch.autograd.grad(loss, [*weights.values()]), strict=True))
        norm = math.sqrt(sum((g**2).sum().item() for g in gradients.values()))
        norms += norm
        with torch.no_grad():
            for name, w in weights.items():
                g = gradients[name]
                if recipe.clip and norm > recipe.clip:
                    g = g * recipe.clip / norm
                if recipe.optimiser == "adamw":
                    w -= lr * recipe.weight_decay * w
                else:
                    g = g + recipe.weight_decay * w
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g**2
                m, v = first[name] / (1 - 0.9**t), second[name] / (1 - 0.999**t)
                w -= lr * m / (v.sqrt() + 1e-8)
                decay = recipe.average
                if recipe.average_warm_up:  # before this, t − 1 steps were made
                    decay = min(decay, (1 + t - 1) / (10 + t - 1))
                average[name] = decay * average[name] + (1 - decay) * w
    return {name: w.detach() for name, w in weights.items()}, average, norms


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip": 0.3},
        {"clip": 0, "average": 0.5},
        {"average_warm_up": True, "average": 0.6},
        {"weight_decay": 0.1, "clip": 0.3},
        {"weight_decay": 0.1, "optimiser": "adamw"},
    ],
)
def test_steps_are_those_written_out(changes: dict[str, Any]) -> None:
    recipe = Recipe(**changes)
    network = toy()
    weights, average, norms = by_hand(recipe, copy.deepcopy(network))
    learner = learn(recipe, network)
    evaluated = dict(learner.evaluated().named_parameters())
    for name, weight in network.named_parameters():
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(evaluated[name], average[name], rtol=0, atol=1e-6)
    assert learner.meters().gradient_norm == pytest.approx(norms, rel=1e-5)
    assert norms / STEPS > 0.3, "or nothing would be clipped anywhere"


def test_meters_count_what_is_real() -> None:
    learner = Learner(TOY, toy(), answers, Recipe(lr=0), batches(), CPU)
    source, right, asked, loss = batches(), 0, 0, 0.0
    for step in range(STEPS):
        learner.step(step, rate=0.0)
        batch = next(source)
        logits = learner.network(batch.images, batch.questions)
        for k in range(6):
            if batch.which[k] != UNKNOWN:
                asked += 1
                right += int(logits[k].argmax() == batch.answers[k])
                loss -= logits[k].log_softmax(0)[batch.answers[k]].item()
    found = learner.meters()
    assert found[1:4] == (asked, right, asked)
    assert found.loss == pytest.approx(loss)
    assert asked < 6 * STEPS, "there were fillers"
    assert found.since(found) == (0, 0, 0, 0, 0)


def test_what_is_not_named_is_held_still() -> None:
    network = toy()
    before = {name: w.detach().clone() for name, w in network.named_parameters()}
    learner = learn(Recipe(trains=("output",), weight_decay=0.1), network)
    after, average = dict(network.named_parameters()), dict(learner.average.named_parameters())
    for name in before:
        assert torch.equal(before[name], after[name]) == name.startswith("embedding"), name
        assert torch.equal(before[name], average[name]) == name.startswith("embedding"), name
    assert network.embedding.weight.grad is None
    assert not network.embedding.weight.requires_grad
    assert learn(Recipe(), network) is not None
    assert not torch.equal(before["embedding.weight"], network.embedding.weight), "free again"


def test_a_part_that_is_not_there() -> None:
    with pytest.raises(InputError, match="'outpu', but the network has no such part; it has embed"):
        chosen_weights(toy(), ("outpu",))


def test_without_an_average_the_network_itself_is_evaluated() -> None:
    network = toy()
    learner = learn(Recipe(average=0), network)
    assert learner.evaluated() is network
    assert not [name for name in learner.state() if name.startswith("average")]


def test_the_average_knows_what_buffers_know() -> None:
    learner = learn(Recipe(), toy())
    assert learner.average is not learner.network
    assert learner.evaluated().get_buffer("seen") == STEPS
    assert not learner.evaluated().training
    assert learner.network.training


@pytest.mark.parametrize("optimiser", ["adam", "adamw", "muon"])
def test_state_is_all_there_is(optimiser: Any) -> None:
    """A learner that is restored goes on as the other would have, to the bit."""
    recipe = Recipe(optimiser=optimiser, average_warm_up=True, weight_decay=0.01)
    whole = learn(recipe, toy())
    half = learn(recipe, toy(), 4)
    source = batches()
    for _ in range(4):
        next(source)
    other = Learner(TOY, Toy().double(), answers, recipe, source, CPU)
    other.restore({name: tensor.clone() for name, tensor in half.state().items()})
    for step in range(4, STEPS):
        other.step(step, rate=0.01 / (1 + step))
    wanted, found = whole.state(), other.state()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_a_part_that_no_question_uses() -> None:
    """It has no gradient, and so no state to be kept."""

    class Idle(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Linear(2, 2)

    network = Idle().double()
    learner = learn(Recipe(), network)
    assert not [name for name in learner.state() if "optimiser" in name and "idle" in name]
    other = Learner(TOY, Idle().double(), answers, Recipe(), batches(), CPU)
    other.restore(learner.state())
    other.step(STEPS, 0.1)
    assert torch.equal(other.network.get_parameter("idle.weight"), network.idle.weight)


def test_nothing_to_learn() -> None:
    """A network without weights, such as a table of counts, sees every batch all the same."""

    def guess(system: System, network: nn.Module, batch: Batch) -> Scored:
        one = torch.ones(())
        return Scored(one, one * len(batch.which), one, one)

    learner = Learner(TOY, nn.Identity(), guess, Recipe(), batches(), CPU)
    learner.step(0, 0.1)
    assert learner.optimiser is None
    assert learner.meters() == (1, 6, 1, 1, 0)


def test_low_precision_learns_the_same_curve(tmp_path: Path) -> None:
    """On a CPU; bfloat16 has three digits. Seen: losses off by at most 0.02 of about 3."""
    losses = []
    for precision in ("float32", "bfloat16"):
        made = plan(model=CALM, precision=precision, epochs=3)
        trainer(tmp_path / precision, made).train()
        _, lines = result(tmp_path / precision)
        losses.append([line["loss"] for line in lines if line["kind"] == "train"])
    assert losses[1] == pytest.approx(losses[0], abs=0.1)
    assert losses[1] != losses[0]
    assert losses[1][-1] < losses[1][0]
