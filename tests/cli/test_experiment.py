"""The paper's experiment, by the commands that docs/training.md gives for it; what a run says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from macnet.checkpoint import load_trained
from macnet.cli import main
from macnet.data import resnet
from macnet.training.trainer import Trainer
from small_data import QUICK, SMALL, metadata_of, write_data

PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text()
(LINES,) = re.findall(r"## The paper's experiment\n.*?```sh\n(.*?)```", PAGE, re.DOTALL)
OPTIONS = {
    "extract": "--device cpu",
    "train": f"{SMALL} {QUICK.replace('0.01', '1e-4')}",
    "evaluate": "--device cpu --workers 1",
}


def shallow(weights: None, stage: int) -> resnet.ResNet101:
    """A ResNet of one block a stage, of random weights; its features have the right shape."""
    torch.manual_seed(0)
    return resnet.ResNet101(stage).eval()


def test_its_commands_run_as_written(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resnet, "BLOCKS", (1, 1, 1, 1))
    monkeypatch.setattr("macnet.data.extract.load_resnet", shallow)
    write_data(here / "CLEVR", counts={"train": 2, "val": 1})
    for line in LINES.splitlines():
        program, *given = shlex.split(line)
        assert program == "macnet"
        assert main([*given, *OPTIONS[given[0]].split()]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^training MAC: .*; images are features of 1024x14x14$", said, re.MULTILINE)
    assert "not from pixels" not in said
    model = metadata_of(here / "RUN")["model"]
    assert (model["image"], model["channels"]) == ("features", 1024)
    assert load_trained(here / "RUN").config.image == "features"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--preset paper", "MAC: preset paper, "),
        ("--preset reference --ablation 'gate bias -1'", "MAC: preset reference, gate bias −1, "),
        ("--preset pixels", "MAC: preset pixels, "),
        ("--model.p 4", "MAC: preset paper with changes, "),
        ("--preset lstm", "LSTM: preset lstm, "),
        ("--preset q-type", "Q-type baseline: preset q-type, 0 parameters, recipe paper; "),
        ("--recipe fast", " parameters, recipe fast; images are pixels of 128x128"),
        ("--recipe.lr 1", " parameters, recipe paper with changes; images are pixels of 128x128"),
    ],
)
def test_the_first_line_says_what_is_trained(
    given: str,
    said: str,
    data: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(self: Trainer, *, resume: bool) -> bool:
        raise KeyboardInterrupt("enough")

    monkeypatch.setattr(Trainer, "train", stop)
    shared = ["--device", "cpu", "--workers", "1", "--cache", str(data.parent / "first")]
    assert main(["train", str(data), "--out", "run", *shared, *shlex.split(given)]) == 130
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("training ")
    assert said in first
    # The sentence is for the MACs that the paper has from features, not for ours or for others.
    of_features = not re.search("pixels|lstm|q-type", given)
    assert second.startswith("The paper's MAC learns from ResNet-101 features") == of_features
