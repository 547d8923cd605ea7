"""Training whose attention is guided: what it learns, how it resumes, and where it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import macnet
from broken_off import StoppedAfter
from known_scenes import VOCABULARY, scenes_dataset
from macnet.clevr.world import World
from macnet.cli import main
from macnet.data.batches import Batch, GuidedBatch
from macnet.data.dataset import Dataset
from macnet.data.endless import EndlessBatches
from macnet.data.generated import pack_generated
from macnet.errors import InputError
from macnet.evaluation.evaluate import evaluate
from macnet.models.cells import object_cells
from macnet.models.guide import guide_loss, guided_answer_loss
from macnet.models.mac import MACNetwork
from macnet.models.objectives import LossSums, answer_loss
from macnet.models.presets import MAC, preset
from macnet.models.recipe import Recipe
from macnet.paper import find_published
from macnet.training import training_data as training_data_module
from macnet.training.plan import make_plan
from macnet.training.step import Learner
from macnet.training.train import Run
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from small_data import metadata_of
from tiny_training import assert_equal, plan, small_and_quick

WORLD = World(
    seed=2, width=32, height=24, num_objects=(2, 3), families=("zero_hop",), questions_per_image=4
)
RECIPE = Recipe(images=8, questions=4, optimizer="muon", lr=5e-3)
NETWORK: dict[str, Any] = {
    **{"d": 16, "p": 2, "embedding": 8, "widths": (8, 12, 16), "blocks": (0, 0, 0), "gate": True}
}
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture(scope="module", autouse=True)
def _small_and_quick() -> Iterator[None]:
    """An epoch of the endless world is 6 steps of 32 questions."""
    with small_and_quick(workers=False), pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_data_module, "EPOCH", 192)
        yield


# --- a network that is guided -----------------------------------------------------------------


def network() -> MACNetwork:
    torch.manual_seed(0)
    return MACNetwork(preset("pixels", **NETWORK), vocabulary=len(VOCABULARY), answers=28)


def learn(weight: float, steps: int, recipe: Recipe = RECIPE) -> MACNetwork:
    """What a network learns in so many steps, with a guide or none."""
    net = network()
    objective = partial(answer_loss, MAC)
    if weight:
        objective = partial(guided_answer_loss, MAC, weight=weight)
    with EndlessBatches(WORLD, VOCABULARY, images=8, guided=weight > 0) as source:
        learner = Learner(net, objective, recipe, source, CPU)
        for number in range(steps):
            learner.step(number, RECIPE.lr)
    return net.eval()


@cache
def held_out() -> GuidedBatch:
    with EndlessBatches(WORLD, VOCABULARY, images=40, split="val", guided=True) as source:
        batch = next(source)
    assert isinstance(batch, GuidedBatch)
    return batch


def share_on_references(net: MACNetwork) -> float:
    """The mean attention of all steps to the cells that show what the questions refer to."""
    batch, shares = held_out(), []
    with torch.no_grad():
        _, steps = net.trace(batch.images, batch.questions)
    shows = object_cells(batch.objects)
    for b, references in enumerate(batch.references.tolist()):
        if references:
            own = [shows[b // 4, o] for o in range(10) if references >> o & 1]
            cells = torch.stack(own).any(0)
            shares += [float(step.knowledge[b, cells].sum()) for step in steps]
    return float(np.mean(shares))


def test_a_guided_network_attends_to_what_its_questions_are_about() -> None:
    alone, guided = (share_on_references(learn(weight, 30)) for weight in (0, 1))
    assert guided > alone + 0.15


def test_images_may_move() -> None:
    """Masks follow: the loss on what is shifted is that of the shifted masks."""
    net = learn(1.0, 3, replace(RECIPE, shift=4, rotation=10, jitter=0.1))
    assert all(weight.isfinite().all() for weight in net.parameters())


def test_the_loss_of_a_batch_is_the_sum_over_its_parts() -> None:
    """So processes that share a batch add up to what one would learn, gradients included."""
    net, whole = network().double().eval(), held_out()

    def part(start: int, stop: int) -> GuidedBatch:
        images, *columns = whole
        some = slice(4 * start, 4 * stop)
        batch = Batch(images[start:stop], *(column[some] for column in columns))
        return GuidedBatch.of(batch, whole.objects[start:stop], whole.references[some])

    def results(batch: GuidedBatch) -> tuple[LossSums, torch.Tensor]:
        sums = guided_answer_loss(MAC, net, batch, weight=0.7)
        slopes = torch.autograd.grad(sums.total, [*net.parameters()], allow_unused=True)
        return sums, torch.cat([s.flatten() for s in slopes if s is not None])

    (sums, slopes), first, second = results(whole), results(part(0, 13)), results(part(13, 40))
    for total, a, b in zip(sums, first[0], second[0], strict=True):
        torch.testing.assert_close(total, a + b)
    torch.testing.assert_close(slopes, first[1] + second[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_guided_step_is_captured() -> None:
    """In a graph, which nothing may wait for; and it learns what steps one by one do."""
    losses = []
    for capture in (False, True):
        net, device = network().cuda(), torch.device("cuda")
        objective = partial(guided_answer_loss, MAC, weight=1.0)
        recipe = replace(RECIPE, precision="bfloat16")
        with EndlessBatches(WORLD, VOCABULARY, images=8, device=device, guided=True) as source:
            learner = Learner(net, objective, recipe, source, device, capture=capture)
            for number in range(10):
                learner.step(number, RECIPE.lr)
        batch = held_out()
        with torch.no_grad():
            _, steps = net.eval().trace(batch.images.cuda(), batch.questions.cuda())
            loss = guide_loss(steps, batch.objects.cuda(), batch.references.cuda())
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


# --- a run -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def val(small_blocks: int, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    cache = tmp_path_factory.mktemp("cache")
    return pack_generated(
        WORLD, VOCABULARY, split="val", images=5, cache=cache, device="cpu", workers=0
    )


def trainer(folder: Path, val: Dataset, **recipe: Any) -> Trainer:
    few = {"epochs": 2, "images": 8, "questions": 4, "guide": 0.5, **recipe}
    return Trainer(
        folder, plan(model=NETWORK, **few), TrainingData(WORLD, val), device=CPU, save_every=3600
    )


@pytest.mark.parametrize("stop", [2, 8])
def test_a_run_resumes_bit_for_bit(stop: int, tmp_path: Path, val: Dataset) -> None:
    trainer(tmp_path / "unbroken", val).train()
    with StoppedAfter(stop), pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "stopped", val).train()
    with pytest.raises(InputError, match=r"of another configuration: recipe\.guide is 0\.5 there"):
        trainer(tmp_path / "stopped", val, guide=0).train(resume=True)
    trainer(tmp_path / "stopped", val).train(resume=True)
    assert_equal(tmp_path / "stopped", tmp_path / "unbroken")


def test_without_a_guide_nothing_is_known_of_references(
    tmp_path: Path, val: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Batch] = []

    def watched(system: Any, net: nn.Module, batch: Batch) -> LossSums:
        seen.append(batch)
        return answer_loss(system, net, batch)

    made = trainer(tmp_path / "run", val, guide=0)
    stage = replace(made.plan.stages[0], objective=watched)
    monkeypatch.setattr(type(made.plan), "stages", (stage,))
    monkeypatch.setattr("macnet.data.block_encoder.referenced_set", None)
    made.train()
    assert len(seen) == 12
    assert not any(isinstance(batch, GuidedBatch) for batch in seen)


# --- macnet.train ----------------------------------------------------------------------------


def train(folder: Path, out: str, guide: float = 0.1, **options: Any) -> Run:
    few = {"epochs": 0.1, "images": 4, "questions": 2, "guide": guide}
    usual: dict[str, Any] = {
        **{"preset": "sa-mlp", "size": (32, 24), "world_val_images": 4},
        **{"cache": folder / "cache", "device": "cpu", "recipe_changes": few},
    }
    return macnet.train(out=folder / out, **{**usual, **options})


def test_no_number_of_the_paper_stands_beside_it(tmp_path: Path) -> None:
    own, guided = (train(tmp_path, f"guide {g}", g) for g in (0, 0.1))
    assert own.load().row == guided.load().row == "CNN+LSTM+SA+MLP"
    assert (own.load().share, guided.load().share) == (1, None)
    assert find_published(own.load().row, own.load().share) is not None
    assert evaluate(guided, cache=tmp_path / "cache", device="cpu").paper is None
    record = metadata_of(guided.folder)
    assert record["recipe"]["guide"] == 0.1
    assert record["experiment"] == {"row": "CNN+LSTM+SA+MLP", "share": None}
    tuned = train(tmp_path, "tuned", 0, start=guided)
    assert tuned.load().share is None, "nor beside what was trained from it"


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", "--out", str(tmp_path / "run"), "--cache", str(tmp_path / "cache")]
    small = "--preset small --size 32x24 --device cpu --world-val-images 4 --recipe.guide 0.1"
    quick = "--recipe.epochs 0.1 --recipe.images 4 --recipe.questions 2"
    assert main([*given, *small.split(), *quick.split()]) == 0
    said = capsys.readouterr().out
    assert "without an end; attention is guided to the objects that programs refer to" in said
    assert "paper" not in said.partition("validating")[2]


REFUSED: dict[str, dict[str, Any]] = {
    "fixed": {"world_images": 4},
    "fresh": {"world_images": 4, "fresh_questions": True},
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_that_does_not_tell_where_objects_are(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"`recipe\.guide` is 0\.1, but a fixed dataset does not"):
        train(tmp_path, "refused", **REFUSED[name])
    assert not (tmp_path / "refused").exists()


def test_features_and_replay_are_such_data(val: Dataset) -> None:
    features = scenes_dataset(5, features=True)
    for data in (TrainingData(WORLD, val, val, 0.5), TrainingData(features, features)):
        with pytest.raises(InputError, match=r"`recipe\.guide` is 1, but a fixed dataset does not"):
            data.check(replace(RECIPE, guide=1), None)
    TrainingData(WORLD, val).check(replace(RECIPE, guide=1), None)


@pytest.mark.parametrize("name", ["lstm", "film-pixels", "pg-ee"])
def test_systems_without_steps_of_attention(name: str) -> None:
    with pytest.raises(InputError, match=rf"`recipe\.guide` is 0\.5, but {name} does not reason"):
        make_plan(name, recipe_changes={"guide": 0.5})
