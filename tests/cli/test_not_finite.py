"""A network whose numbers are not finite is refused by every command, in the same words."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import macnet
from macnet.checkpoint import BEST, read_checkpoint, write_checkpoint
from macnet.errors import InputError, NotFiniteError
from macnet.training.step import Learner
from small_data import sentence
from tiny_networks import HEIGHT, WIDTH, write_network
from tiny_training import plan, trainer

QUESTION = "What color is the cube?"
POISONS = {"nan": math.nan, "infinite": math.inf, "huge": 1e38}
COMMANDS = {
    "ask": ["ask", "scene.png", QUESTION, "--model", "run"],
    "explain": ["explain", "scene.png", QUESTION, "--model", "run", "--out", "out.png"],
    "evaluate": ["evaluate", "run", "--world-images", "1", "--device", "cpu"],
    "attention": ["evaluate", "run", "--attention", "--world-images", "1"],
}
pytestmark = pytest.mark.usefixtures("small_blocks")
WHY = "are not finite numbers; it diverged in training or was damaged, so take another checkpoint"


def poison(run: Path, number: float) -> None:
    """One weight of the last layer; a huge one is finite, but not what is made of it."""
    metadata, weights = read_checkpoint(run / BEST)
    if math.isfinite(number):
        weights["output.hidden.bias"][0] = number
        weights["output.answers.weight"][:, 0] = number
    else:
        weights["output.hidden.weight"][0] = number
    write_checkpoint(run / BEST, metadata, weights)


@pytest.fixture
def run(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    scene = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    Image.fromarray(scene).save("scene.png")
    return write_network(here / "run")


@pytest.mark.parametrize("number", POISONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_refused(
    command: str, number: str, run: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    poison(run, POISONS[number])
    what = "its answers" if number == "huge" else "its weights 'output.hidden.weight'"
    assert sentence(capsys, *COMMANDS[command]) == f"run/{BEST}: {what} {WHY}"
    assert not (here / "out.png").exists()


def test_not_given_away(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    poison(run, math.nan)
    told = sentence(capsys, "export", "run", "small.safetensors")
    assert told == f"run/{BEST}: its weights 'output.hidden.weight' {WHY}"
    poison(run, math.inf)
    with pytest.raises(NotFiniteError):
        macnet.load(run)


def test_large_logits_are_answers(run: Path) -> None:
    """That a sum of theirs is too large for a float32 is no fault."""
    metadata, weights = read_checkpoint(run / BEST)
    weights["output.answers.bias"].fill_(3e38)
    weights["output.answers.bias"][5] = 3.1e38
    write_checkpoint(run / BEST, metadata, weights)
    model = macnet.load(run)
    assert model.ask("scene.png", QUESTION).answer == model.trained.vocabulary.answers[5]


def test_a_step_too_far_is_found_at_validation(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a step is that before it: of the last, only validation shows what became."""
    step = Learner.step

    def too_far(self: Learner, number: int, rate: float) -> None:
        step(self, number, rate)
        with torch.no_grad():
            next(self.network.parameters()).fill_(math.nan)

    monkeypatch.setattr(Learner, "step", too_far)
    with pytest.raises(
        InputError, match=r"answers at validation were not finite at step 1, .* will"
    ):
        trainer(here / "new", plan(epochs=1 / 3, validate_every=1 / 3, ema=0)).train()
    assert not (here / "new" / BEST).exists()
