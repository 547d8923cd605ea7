"""`macnet.evaluate`: what a report holds, and what the arguments mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import macnet
from macnet.checkpoint import resolve_run
from macnet.data.question_arrays import UNKNOWN
from macnet.errors import InputError
from macnet.evaluation.evaluate import Report
from small_data import write_data
from tiny_networks import write_network


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and a dataset, not to be changed."""
    root = tmp_path_factory.mktemp("evaluated")
    write_data(root / "data")
    write_network(root / "run")
    return root


def evaluate(root: Path, split: str = "val", *, need_answers: bool = False) -> Report:
    return macnet.evaluate(
        root / "run",
        root / "data",
        split=split,
        need_answers=need_answers,
        cache=root / "cache",
        device="cpu",
        workers=1,
    )


def test_a_report_holds_results_predictions_and_metadata(root: Path) -> None:
    report = evaluate(root)
    assert report.results is not None
    questions = report.dataset.questions
    correct = int((report.predictions == questions.answers).sum())
    assert report.accuracy == report.results.overall.value == correct / 8
    assert (report.results.overall.correct, report.results.overall.total) == (correct, 8)
    assert report.results.groups["Count"].total == report.results.groups["Exist"].total == 4
    assert (report.device, report.precision) == ("cpu", "float32")
    assert report.network.path == resolve_run(root / "run")
    assert report.paper is None
    assert report.occlusion is None
    record = json.loads(json.dumps(report.to_record(), allow_nan=False))
    assert record["results"]["overall"]["correct"] == correct
    assert record["questions"] == 8
    assert record["run"] == str(root / "run/best.safetensors")


def test_a_report_is_printed_as_its_tables(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = evaluate(root)
    report.show()
    shown = capsys.readouterr().out.rstrip()
    assert str(report) == shown
    assert shown.splitlines()[0] == f"MAC on {root}/data/questions/CLEVR_val_questions.json"


def test_without_answers_there_are_predictions_only(root: Path) -> None:
    report = evaluate(root, "test")
    assert report.results is None
    assert report.accuracy is None
    assert str(report) == ""
    assert report.predictions.shape == (6,)
    assert (report.predictions != UNKNOWN).all()
    assert report.to_record()["results"] is None
    with pytest.raises(InputError, match="come without answers, so only `predictions` can be made"):
        evaluate(root, "test", need_answers=True)


def test_lines_are_logged_before_the_work(root: Path) -> None:
    lines: list[str] = []
    macnet.evaluate(
        root / "run", root / "data", cache=root / "cache", device="cpu", workers=1, log=lines.append
    )
    assert lines == [
        f"{root}/run/best.safetensors is evaluated on the questions of val of {root}/data, on cpu",
        "8 questions about 4 images",
    ]


def test_errors_name_arguments(root: Path) -> None:
    with pytest.raises(InputError, match=r"^`world_seed` is given, but .*data is what to evaluate"):
        macnet.evaluate(root / "run", root / "data", world_seed=3, device="cpu")
    with pytest.raises(InputError, match="it does not say what it was validated on; give `data`"):
        macnet.evaluate(root / "run", device="cpu")
    with pytest.raises(InputError, match=r"^`images` is given, but there is no `data`"):
        macnet.evaluate(root / "run", world_images=2, images="x", device="cpu")
    with pytest.raises(InputError, match=r"^`device` is 'tpu'"):
        macnet.evaluate(root / "run", root / "data", device="tpu")
