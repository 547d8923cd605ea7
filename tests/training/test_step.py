"""A step of learning against one that is written out, in float64 and by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from macnet.data.batches import Batch, Batches
from macnet.data.question_arrays import UNKNOWN
from macnet.data.vocab import ANSWERS
from macnet.errors import InputError
from macnet.models.objectives import LossSums, answer_loss
from macnet.models.recipe import Recipe
from macnet.models.system import System
from macnet.training.step import OPTIMIZERS, Learner, check_state, trainable_parameters
from tiny_training import CALM, dataset, plan, result, trainer

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


TOY = System(
    name="toy",
    table1_row="MAC",
    description="",
    build=lambda config, data_spec: Toy(),
    presets={"toy": None},
)


def batches() -> Batches:
    """Groups of three of an image's four questions: of every other group one counts."""
    return Batches(dataset(5), images=2, questions=3, seed=1)


def toy() -> Toy:
    torch.manual_seed(0)
    return Toy().double()


def learn(recipe: Recipe, network: nn.Module, steps: int = STEPS) -> Learner:
    learner = Learner(network, partial(answer_loss, TOY), recipe, batches(), CPU)
    for step in range(steps):
        learner.step(step, rate=0.01 / (1 + step))
    return learner


def by_hand(recipe: Recipe, network: Toy) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """The weights, their average, and the sum of the gradients' norms."""
    weights: dict[str, Tensor] = dict(network.named_parameters())
    ema = {name: w.detach().clone() for name, w in weights.items()}
    first = {name: torch.zeros_like(w) for name, w in weights.items()}
    second = {name: torch.zeros_like(w) for name, w in weights.items()}
    norms, source = 0.0, batches()
    for t in range(1, STEPS + 1):
        lr, batch = 0.01 / t, next(source)
        real = [k for k, which in enumerate(batch.question_index.tolist()) if which != UNKNOWN]
        logits = network(batch.images, batch.questions)
        each = [-logits[k].log_softmax(0)[batch.answers[k]] for k in real]
        loss = sum(each) / len(real)
        gradients = dict(zip(weights, torch.autograd.grad(loss, [*weights.values()]), strict=True))
        norm = math.sqrt(sum((g**2).sum().item() for g in gradients.values()))
        norms += norm
        with torch.no_grad():
            for name, w in weights.items():
                g = gradients[name]
                length = g.norm().item() if recipe.clip_each else norm
                if recipe.clip and length > recipe.clip:
                    g = g * recipe.clip / length
                if recipe.optimizer == "adamw":
                    w -= lr * recipe.weight_decay * w
                else:
                    g = g + recipe.weight_decay * w
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g**2
                m, v = first[name] / (1 - 0.9**t), second[name] / (1 - 0.999**t)
                w -= lr * m / (v.sqrt() + 1e-8)
                decay = recipe.ema
                if recipe.ema_warmup:  # before this, t − 1 steps were made
                    decay = min(decay, (1 + t - 1) / (10 + t - 1))
                ema[name] = decay * ema[name] + (1 - decay) * w
    return {name: w.detach() for name, w in weights.items()}, ema, norms


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip": 0.3},
        {"clip": 0.3, "clip_each": True},
        {"clip": 0, "clip_each": True},
        {"clip": 0, "ema": 0.5},
        {"ema_warmup": True, "ema": 0.6},
        {"weight_decay": 0.1, "clip": 0.3},
        {"weight_decay": 0.1, "optimizer": "adamw"},
    ],
)
def test_steps_are_those_written_out(changes: dict[str, Any]) -> None:
    recipe = Recipe(**changes)
    network = toy()
    weights, ema, norms = by_hand(recipe, copy.deepcopy(network))
    learner = learn(recipe, network)
    ema_network = dict(learner.ema_network().named_parameters())
    for name, weight in network.named_parameters():
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(ema_network[name], ema[name], rtol=0, atol=1e-6)
    assert learner.meters().gradient_norm == pytest.approx(norms, rel=1e-5)
    assert norms / STEPS > 0.3, "or nothing would be clipped anywhere"


def test_meters_count_labelled_questions() -> None:
    learner = Learner(toy(), partial(answer_loss, TOY), Recipe(lr=0), batches(), CPU)
    source, right, asked, loss = batches(), 0, 0, 0.0
    for step in range(STEPS):
        learner.step(step, rate=0.0)
        batch = next(source)
        logits = learner.network(batch.images, batch.questions)
        for k in range(6):
            if batch.question_index[k] != UNKNOWN:
                asked += 1
                right += int(logits[k].argmax() == batch.answers[k])
                loss -= logits[k].log_softmax(0)[batch.answers[k]].item()
    found = learner.meters()
    assert found[1:4] == (asked, right, asked)
    assert found.loss == pytest.approx(loss)
    assert asked < 6 * STEPS, "there were fillers"
    assert found.since(found) == (0, 0, 0, 0, 0)


def test_parts_that_are_not_named_are_frozen() -> None:
    network = toy()
    before = {name: w.detach().clone() for name, w in network.named_parameters()}
    learner = learn(Recipe(trainable=("output",), weight_decay=0.1), network)
    after, ema = (dict(of.named_parameters()) for of in (network, learner.ema_network()))
    for name in before:
        assert torch.equal(before[name], after[name]) == name.startswith("embedding"), name
        assert torch.equal(before[name], ema[name]) == name.startswith("embedding"), name
    assert network.embedding.weight.grad is None
    assert not network.embedding.weight.requires_grad
    assert learn(Recipe(), network) is not None
    assert not torch.equal(before["embedding.weight"], network.embedding.weight), "free again"


def test_batch_normalization_of_frozen_parts_follows_the_data() -> None:
    """As in the published fine-tuning of FiLM on CLEVR-Humans."""

    class Normalized(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(len(ANSWERS))

        def forward(self, images: Tensor, questions: Tensor) -> Tensor:
            logits: Tensor = self.norm(super().forward(images, questions))
            return logits

    network = Normalized().double()
    before = {name: tensor.clone() for name, tensor in network.norm.state_dict().items()}
    learner = learn(Recipe(trainable=("embedding",)), network)
    for of in (network, learner.ema_network()):
        for name, tensor in of.get_submodule("norm").state_dict().items():
            assert torch.equal(tensor, before[name]) == (name in ("weight", "bias")), name


def test_a_part_that_is_not_there() -> None:
    with pytest.raises(InputError, match="'outpu', but the network has no such part; it has embed"):
        trainable_parameters(toy(), ("outpu",))


def test_without_an_average_the_network_itself_is_evaluated() -> None:
    network = toy()
    learner = learn(Recipe(ema=0), network)
    assert learner.ema_network() is network
    assert not [name for name in learner.state() if name.startswith("ema")]


def test_the_average_knows_what_buffers_know() -> None:
    learner = learn(Recipe(), toy())
    assert learner.ema_network() is not learner.network
    assert learner.ema_network().get_buffer("seen") == STEPS
    assert not learner.ema_network().training
    assert learner.network.training


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon"])
def test_a_restored_learner_goes_on_bit_for_bit(optimizer: Any) -> None:
    """A learner that is restored goes on as the other would have, to the bit."""
    recipe = Recipe(optimizer=optimizer, ema_warmup=True, weight_decay=0.01)
    whole = learn(recipe, toy())
    half = learn(recipe, toy(), 4)
    source = batches()
    for _ in range(4):
        next(source)
    other = Learner(Toy().double(), partial(answer_loss, TOY), recipe, source, CPU)
    other.restore({name: tensor.clone() for name, tensor in half.state().items()})
    for step in range(4, STEPS):
        other.step(step, rate=0.01 / (1 + step))
    wanted, found = whole.state(), other.state()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


class Counting(torch.optim.SGD):
    """Its learning rate falls by a count of steps, a plain number, and by a row of a weight."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            state["count"] = state.get("count", 0) + 1
            state["share"] = state.get("share", 1.0) * 0.9
            state["row"] = state.get("row", torch.zeros(len(weight))) + 1
            rate = state["share"] * self.param_groups[0]["lr"] / state["count"]
            weight.sub_(weight.grad, alpha=rate / float(state["row"].sum()))


OTHERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
    "counting": Counting,
}


@pytest.mark.parametrize("name", OTHERS)
def test_any_optimizer_is_restored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it keeps: tensors of any shape, and plain numbers."""

    def make(weights: Any, lr: float, **_: Any) -> torch.optim.Optimizer:
        return OTHERS[name](weights, lr=lr)

    monkeypatch.setitem(OPTIMIZERS, "adam", make)
    recipe = Recipe(ema=0.9)
    whole, half = learn(recipe, toy()), learn(recipe, toy(), 4)
    kept = {name: tensor.clone() for name, tensor in half.state().items()}
    check_state(kept, toy(), recipe, Path("last"))
    source = batches()
    for _ in range(4):
        next(source)
    other = Learner(Toy().double(), partial(answer_loss, TOY), recipe, source, CPU)
    other.restore(kept)
    for step in range(4, STEPS):
        other.step(step, rate=0.01 / (1 + step))
    wanted, found = whole.state(), other.state()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    some = next(name for name in kept if name.startswith("optimizer/"))
    with pytest.raises(InputError, match=f"last: the checkpoint has no '{some}'"):
        check_state({n: t for n, t in kept.items() if n != some}, toy(), recipe, Path("last"))
    with pytest.raises(InputError, match=f"last: '{some}' is .*wanted"):
        check_state({**kept, some: torch.zeros(3, 2, 1)}, toy(), recipe, Path("last"))


def test_a_part_that_no_question_uses() -> None:
    """It has no gradient, and so no state to be kept."""

    class Idle(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.idle = nn.Linear(2, 2)

    network = Idle().double()
    learner = learn(Recipe(), network)
    assert not [name for name in learner.state() if "optimizer" in name and "idle" in name]
    other = Learner(Idle().double(), partial(answer_loss, TOY), Recipe(), batches(), CPU)
    other.restore(learner.state())
    other.step(STEPS, 0.1)
    assert torch.equal(other.network.get_parameter("idle.weight"), network.idle.weight)


def test_a_network_without_weights() -> None:
    """A network without weights, such as a table of counts, sees every batch all the same."""

    def guess(system: System, network: nn.Module, batch: Batch) -> LossSums:
        one = torch.ones(())
        return LossSums(one, one * len(batch.question_index), one, one)

    learner = Learner(nn.Identity(), partial(guess, TOY), Recipe(), batches(), CPU)
    learner.step(0, 0.1)
    assert learner.optimizer is None
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
