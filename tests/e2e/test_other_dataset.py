"""A dataset that is not CLEVR, from training to an answer: 3,000 answers, no types, no programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

import macnet
from macnet.cli import main

ANSWERS = 3000
COLORS = {"night": 10, "dusk": 110, "noon": 230}
MODEL = {
    "d": 16,
    "p": 2,
    "embedding": 8,
    "widths": (4, 6, 8),
    "dropout": dict.fromkeys(["words", "question", "image", "control", "memory", "output"], 0.0),
}
RECIPE = {"images": 3, "questions": 200, "epochs": 8, "lr": 0.02, "patience": 0, "ema": 0.9}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three images; mostly one question about each, and thousands with an answer of their own."""
    root = tmp_path_factory.mktemp("data")
    for name, brightness in COLORS.items():
        Image.new("RGB", (30, 20), (brightness,) * 3).save(root / f"{name}.png")
    names = list(COLORS)
    rare = [
        {"image": f"{names[i % 3]}.png", "question": "which number", "answer": f"number {i}"}
        for i in range(ANSWERS - 3)
    ]
    daily = [{"image": f"{n}.png", "question": "what time is it", "answer": n} for n in names]
    (root / "train.json").write_text(json.dumps([*rare, *daily * 1000]))
    (root / "val.json").write_text(
        json.dumps([*daily, {"image": "noon.png", "question": "who is it", "answer": "nobody"}])
    )
    return root


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> macnet.Run:
    folder = tmp_path_factory.mktemp("runs")
    return macnet.train(
        data,
        out=folder / "run",
        preset="small",
        model=MODEL,
        recipe_changes=RECIPE,
        size=(24, 16),
        cache=folder / "cache",
        device="cpu",
        workers=1,
    )


def test_it_is_trained(run: macnet.Run) -> None:
    """Three of four validation questions; no network can know the answer of the fourth."""
    assert (run.results.overall.correct, run.results.overall.total) == (3, 4)
    spec = run.load().data_spec
    assert (spec.answers, spec.question_types) == (ANSWERS, 0)


def test_it_is_evaluated_on_what_it_was_validated_on(run: macnet.Run) -> None:
    report = macnet.evaluate(run, device="cpu", workers=1, cache=run.folder.parent / "cache")
    assert report.results is not None
    assert (report.accuracy, report.results.groups) == (0.75, {})
    assert report.paper is None or "in the paper" not in str(report)
    assert main(["evaluate", str(run.folder), "--device", "cpu", "--workers", "1"]) == 0


def test_it_is_asked(
    run: macnet.Run, data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = macnet.load(run)
    for name in COLORS:
        reply = model.ask(data / f"{name}.png", "What time is it?")
        assert reply.answer == name
        assert len(reply.probabilities) == ANSWERS
    with pytest.raises(macnet.InputError, match="no word of the question is in the network"):
        model.ask(data / "noon.png", "zzz qqq")
    exported = macnet.export(run, tmp_path / "small.safetensors")
    question = [str(data / "dusk.png"), "what time is it", "--model", str(exported)]
    assert main(["ask", *question]) == 0
    assert capsys.readouterr().out.startswith("dusk\n")
