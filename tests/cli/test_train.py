"""`macnet train`, from the command line to a run, and what it refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from macnet.checkpoint import load_trained
from macnet.cli import main
from macnet.cli import train as command
from macnet.files import locked_folder
from macnet.models.registry import PRESETS
from macnet.training import trainer
from macnet.training.log import read_log
from small_data import QUICK, SMALL, metadata_of, run_train, sentence

pytestmark = pytest.mark.usefixtures("here")


# --- a run -----------------------------------------------------------------------------------


def test_a_run_is_trained_and_its_best_is_shown(
    data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_train(data, "--out", "run", "--seed", "3", "--ablation", "w/ memory gate")
    of_network, on_features, *said = capsys.readouterr().out.splitlines()
    size = sum(tensor.numel() for tensor in load_trained(here / "run").network().parameters())
    assert of_network == (
        f"training MAC: preset paper with changes, {size:,} parameters, recipe paper with changes; "
        "images are pixels of 16x16"
    )
    assert on_features.startswith("The paper's MAC learns from ResNet-101 features of CLEVR's ima")
    words = "the vocabulary holds every word of"
    assert said[0] == f"training on 16 questions about 8 images; {words} 16 questions"
    assert said[1] == f"validating on 8 questions about 4 images; {words} 8 questions"
    right = 100 * load_trained(here / "run").metadata["accuracy"]["overall"]
    assert said[2].startswith(f"run: best validation accuracy {right:.2f}% (8 questions), ")
    assert said[2].endswith(" s; curve in run/curve.png")
    assert said[3] == f"MAC on {data}/questions/CLEVR_val_questions.json"
    assert any(line.split()[:2] == ["Overall", f"{right:.2f}"] for line in said)
    run = metadata_of(here / "run")
    assert (run["preset"], run["seed"], run["start"]) == ("paper", 3, None)
    model = run["model"]
    assert (model["d"], model["p"], model["embedding"], model["gate"]) == (8, 2, 6, True)
    assert model["image"] == "pixels"
    assert run["experiment"] == {"row": None, "share": 1.0}
    assert (run["recipe"]["lr"], run["recipe"]["clip"]) == (0.01, 8)
    assert (run["data_spec"]["pixels"], run["data_spec"]["height"], run["data_spec"]["width"]) == (
        True,
        16,
        16,
    )
    lines = read_log(here / "run/log.jsonl")
    # Eight images of two questions, four at once, for two epochs.
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [2, 4]
    assert (here / "cache").is_dir()


@pytest.mark.parametrize(
    ("preset", "row", "small"),
    [
        ("q-type", "Q-type baseline", ""),
        ("lstm", "LSTM", "--model.embedding 4 --model.units 6 --model.hidden 8"),
        ("cnn-lstm", "CNN+LSTM", "--model.units 6 --model.hidden 8 --model.channels 2"),
        ("sa-mlp", "CNN+LSTM+SA+MLP", "--model.units 6 --model.hidden 8 --model.attention_units 4"),
        ("rn-pixels", "CNN+LSTM+RN†‡", "--model.g 8 --model.f 8 --model.units 6"),
        ("film-pixels", "CNN+GRU+FiLM‡", "--model.units 6 --model.channels 4 --model.pooled 8"),
        ("n2nmn", "N2NMN*", "--model.units 6 --model.embedding 6 --model.map_dim 4"),
        (
            "pg-ee",
            "pg-ee (9 programs)",
            "--model.units 6 --model.channels 4 --model.pooled 8 --model.hidden 6 --programs 9",
        ),
    ],
)
def test_the_other_systems(
    preset: str, row: str, small: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"--preset {preset} --out run {small} --size 16x16 --device cpu --workers 1 "
    given += "--recipe.epochs 2 --recipe.images 8 --recipe.questions 2"
    assert main(["train", str(data), *given.split()]) == 0
    said = capsys.readouterr().out
    assert f"\n{row} on {data}" in said
    assert said.startswith(f"training {row}: preset {preset}")
    assert "ResNet" not in said
    assert ("in the paper" in said) == (not small)  # as published, or smaller
    assert main(["evaluate", "run", "--device", "cpu", "--workers", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"{row} on {data}")


def test_a_large_network_on_a_cpu_is_warned_of(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["--preset=small", "--size=16x16", "--workers=1", "--device=cpu", "--recipe.epochs=1"]
    warning = (
        "On a CPU, a network of 0 million weights learns from a few questions a second; use a GPU, "
        "or --preset small, a MAC that two cores can train."
    )
    for most, count in ((command.MANY_WEIGHTS, 0), (100_000, 1)):
        monkeypatch.setattr(command, "MANY_WEIGHTS", most)
        assert main(["train", str(data), "--out", str(most), *small]) == 0
        said = capsys.readouterr().err.splitlines()
        assert said[:1].count(warning) == count, said
    assert command.MANY_WEIGHTS < 9_293_560  # the weights of `pixels`


def test_a_finished_run_has_nothing_to_do(
    made: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    run_train(data, "--out", made, "--cache", made.parent / "cache", "--resume")
    said = capsys.readouterr().out
    assert f"{made}: this run is finished already; nothing to do\n" in said
    assert "best validation accuracy" in said
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_data_that_were_moved_are_still_the_same(
    made: Path, data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, here / "moved")  # with its files' times
    run_train(here / "moved", "--out", made, "--cache", made.parent / "cache", "--resume")
    assert "this run is finished already" in capsys.readouterr().out


def test_the_same_command_gives_the_same_network(made: Path, data: Path, here: Path) -> None:
    run_train(data, "--out", "run")
    one, other = (load_trained(run).weights for run in (made, here / "run"))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    run_train(data, "--out", "other", "--seed", "1")
    other = load_trained(here / "other").weights
    assert not all(np.array_equal(one[name], other[name]) for name in one)


def test_an_interruption_says_how_to_go_on(
    data: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(self: Any, *, resume: bool) -> bool:
        raise KeyboardInterrupt("stopped after step 3 and saved; `resume` goes on from there")

    monkeypatch.setattr(trainer.Trainer, "train", stop)
    run_train(data, "--out", "run", code=130)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "macnet: stopped after step 3 and saved; --resume goes on from there"


def test_of_several_processes_one_complains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert main(["train", "--preset", "none", "--out", "run"]) == 2
    assert capsys.readouterr().err == ""


def test_two_processes_are_one_run(data: Path, here: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    given = ["train", str(data), "--out", "run", *SMALL.split(), *QUICK.split()]
    command = [*launch, "-m", "macnet", *given]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("training on 16 questions") == 1
    assert done.stdout.count("run: best validation accuracy") == 1
    steps = [line["step"] for line in read_log(here / "run/log.jsonl") if "accuracy" in line]
    assert max(steps) == 4  # of four images, two to each


# --- what it refuses -------------------------------------------------------------------------


def test_a_folder_with_a_run(made: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = f"train {data} --out {made} --cache {made.parent}/cache {SMALL} {QUICK}".split()
    assert sentence(capsys, *run) == (
        f"{made}: it holds a run already; go on with it with --resume, or choose another --out"
    )
    assert sentence(capsys, *run, "--resume", "--recipe.lr", "0.5") == (
        f"{made}: it holds a run of another configuration: recipe.lr is 0.01 there and 0.5 here; "
        "choose another --out"
    )
    said = sentence(capsys, "train", "nowhere", "--out", made)  # before anything is packed
    assert said.startswith(f"{made}: it holds a run already")
    with locked_folder(made):
        said = sentence(capsys, *run, "--resume")
    assert said == f"{made}: another run is at work here; wait for its end"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--preset nets", "--preset is 'nets'; choose one of paper, pixels,"),
        ("--recipe slow", "--recipe is 'slow'; choose paper, fast or humans"),
        (
            "--recipe humans",
            "--recipe is humans, which fine-tunes a trained network; give it as --from",
        ),
        ("--preset q-type --recipe humans", "--recipe is humans, but no fine-tuning on CLEVR-Hum"),
        ("--model.d -3", "--model.d is -3; it must be a whole number from 1"),
        ("--recipe.lr nan", "--recipe.lr is nan; it must be a number from 0"),
        ("--overrides o.toml", "o.toml: there is no such file"),
        ("--split trainB", "{}: it has no split 'trainB'; it has test, train, val"),
        ("--val-split valA", "{}: it has no split 'valA'; it has test, train, val"),
        ("--val-split test", "{}/questions/CLEVR_test_questions.json: its questions have no answ"),
        ("--val nowhere", "nowhere: there is no such folder"),
        ("--replay nowhere", "nowhere: there is no such folder"),
        ("--replay-share 1", "--replay-share is 1.0; it must lie between 0 and 1"),
        ("--size 16", "--size is '16'; it must be two positive numbers"),
        ("--min-count 0", "--min-count is 0; it must be at least 1"),
        ("--validate-on 0", "--validate-on is 0; it must be at least 1"),
        ("--preset pg-ee --programs ten", "--programs is 'ten'; it must be NUMBER|all; see macnet"),
        ("--preset pg-ee --programs 0", "--programs is 0; it must be a number from 1, or all"),
        ("--preset pg-ee --recipe.programs -1", "--recipe.programs is -1; it must be a whole num"),
        ("--preset n2nmn --programs 17", "a subset of 17 questions is asked for, but there are 16"),
        ("--programs 5", "--recipe.programs is 5, but paper does not learn from programs in the"),
        (
            "--preset pg-ee --recipe.trainable executor",
            "--recipe.trainable is executor, but the stage generator of pg-ee always trains "
            "generator; leave it out, or choose others as --recipe.stages",
        ),
        ("--preset pg-ee --recipe.stages all", "--recipe.stages is 'all'; choose among generator"),
        (
            "--preset pg-ee --model.program-length 0",
            "--model.program-length is 0; it must be a whol",
        ),
        ("--preset n2nmn --recipe humans", "--recipe is humans, but no fine-tuning on CLEVR-Human"),
        ("--subset-images 2", "a subset's share is 2.0; it must lie in (0, 1]"),
        ("--subset-images 0.1 --subset-questions 0.1", "--subset-questions and --subset-images"),
        ("--seed -1", "--seed is -1; it must be a whole number from 0"),
        ("--save-every nan", "--save-every is nan; it must be a number from 0"),
        ("--world-images 3", "--world-images is given, but {} is what to learn from"),
        ("--device tpu", "--device is 'tpu'"),
        ("--workers 0", "--workers is 0; it must be at least 1"),
        ("--vocabulary v.json --tokenizer mac", "--tokenizer is mac, but v.json says itself how"),
    ],
)
def test_bad_options(
    options: str, expected: str, data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, "train", data, "--out", "run", *options.split())
    assert said.startswith(expected.format(data))
    assert not (here / "run").exists()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--split val", "--split is given, but there is no DATA"),
        ("--replay x", "--replay is given, but there is no DATA"),
        ("--min-count 3", "--min-count is given, but there is no DATA"),
        ("--subset-questions 0.1 --world-val-images 1 --size 24x16", "--subset-questions is given"),
        ("--world-val-images 0", "0 images of 'val' are asked for; one is the least"),
        ("--size 8x8", "--size is 8x8; it must be at least 24x16"),
        (
            "--preset pg-ee --programs 5 --world-val-images 1 --size 24x16 --device cpu",
            "an endless world has no subset; give --world-images",
        ),
    ],
)
def test_bad_options_of_a_world(
    options: str,
    expected: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    assert sentence(capsys, "train", "--out", "run", *options.split()).startswith(expected)
    assert not (here / "run").exists()


def test_an_empty_split(data: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(data, "part")
    (here / "part/questions/CLEVR_val_questions.json").write_text(
        '{"info": {"split": "val"}, "questions": []}'
    )
    said = sentence(capsys, "train", "part", "--out", "run", "--size", "16x16")
    assert said.startswith("part/questions/CLEVR_val_questions.json: ")
    assert not (here / "run").exists()


# --- help ------------------------------------------------------------------------------------


def test_help_shows_the_preset_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for name in ("paper", "reference"):
        with pytest.raises(SystemExit):
            main(["train", f"--preset={name}", "--help-all"])
        shown[name] = " ".join(capsys.readouterr().out.replace("│", " ").split())
    uniform = "Word vectors are initialised uniformly between this and 1. (default: "
    assert f"{uniform}0.0)" in shown["paper"]
    assert f"{uniform}-1.0)" in shown["reference"]
    assert "--model.image" not in shown["paper"]
    of_recipes = shown["paper"].partition("--recipe NAME")[2].partition("--overrides")[0]
    assert {"paper", "fast", "humans"} <= set(re.findall(r"[\w-]+", of_recipes))


def test_help_shows_the_usual_options_and_help_all_shows_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = {}
    for ask in ("-h", "--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["train", ask])
        said = capsys.readouterr().out
        assert "See `macnet train --help-all` for all options" in " ".join(said.split())
        flags[ask] = set(re.findall(r"^\W{0,3}(?:h, )?(--[\w.-]+)", said, re.MULTILINE))
    assert flags["-h"] == flags["--help"] < flags["--help-all"]
    assert 15 < len(flags["--help"]) < 25
    assert {"--preset", "--out", "--resume", "--from", "--size", "--cache"} <= flags["--help"]
    assert {"--val-split", "--model.d", "--recipe.lr"} <= flags["--help-all"] - flags["--help"]


def test_help_lists_the_presets_and_opens_with_the_one_that_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = {}
    for preset in ((), ("--preset", "lstm")):
        with pytest.raises(SystemExit):
            main(["train", *preset, "--help"])
        said[preset] = capsys.readouterr().out
        _, listed = said[preset].split("\nPresets:\n")
        lines = listed.partition("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == [*PRESETS]
        assert max(map(len, lines)) <= 80
    plain, lstm = said.values()
    assert plain.split("\n\n")[1].startswith("Train a network")
    _, label, described, *_ = lstm.split("\n\n")
    assert label == "LSTM"
    assert described.startswith(PRESETS["lstm"].system.description.split("\n")[0])


def test_other_help_loads_no_torch() -> None:
    script = (
        "import sys\nfrom macnet.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    for arguments in (["--help"], ["generate", "--help"], ["evaluate", "--help"]):
        command = [sys.executable, "-c", script, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
