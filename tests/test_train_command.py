"""`macnet train`, from the command line to a run: what it learns from, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from macnet.cli import evaluate, main
from macnet.cli import train as command
from macnet.data.community import write_questions_h5, write_vocab_json
from macnet.data.pack import pack_split, pack_vocabulary
from macnet.data.splits import find_split
from macnet.disk import alone_in
from macnet.models.registry import PRESETS
from macnet.training import trainer
from macnet.training.checkpoint import BEST, open_trained
from macnet.training.recipes import RECIPES
from macnet.training.record import read_record
from small_data import COUNTS, QUICK, SMALL, sentence, trains, write_data, write_humans

NEW = ("could", "a", "wug", "hide")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder. A curve takes longer to draw than these runs, and has its own tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MACNET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trainer, "draw_curve", lambda *_: None)
    return tmp_path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("small") / "data")


@pytest.fixture(scope="module")
def humans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_humans(tmp_path_factory.mktemp("people"))


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is over, not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    trains(data, "--out", folder / "run", "--cache", folder / "cache")
    return folder / "run"


def about(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_bytes())
    return found


# --- a run -----------------------------------------------------------------------------------


def test_a_run_is_trained_and_its_best_is_shown(
    data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trains(data, "--out", "run", "--seed", "3", "--ablation", "w/ memory gate")
    said = capsys.readouterr().out.splitlines()
    words = "the vocabulary holds every word of"
    assert said[0] == f"learning from 16 questions about 8 images; {words} 16 questions"
    assert said[1] == f"validated on 8 questions about 4 images; {words} 8 questions"
    right = 100 * open_trained(here / "run").about["accuracy"]["overall"]
    assert said[2].startswith(f"run: best validation accuracy {right:.2f}% (8 questions), ")
    assert said[2].endswith(" s; curve in run/curve.png")
    assert said[3] == f"MAC on {data}/questions/CLEVR_val_questions.json"
    assert any(line.split()[:2] == ["Overall", f"{right:.2f}"] for line in said)
    run = about(here / "run")
    assert (run["preset"], run["seed"], run["start"]) == ("paper", 3, None)
    model = run["model"]
    assert (model["d"], model["p"], model["embedding"], model["gate"]) == (8, 2, 6, True)
    assert (run["recipe"]["lr"], run["recipe"]["clip"]) == (0.01, 8)
    assert (run["fit"]["pixels"], run["fit"]["height"], run["fit"]["width"]) == (True, 16, 16)
    lines = read_record(here / "run/log.jsonl")
    # Eight images of two questions, four at once, for two epochs.
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [2, 4]
    assert (here / "cache").is_dir()


@pytest.mark.parametrize(
    ("preset", "row", "small"),
    [
        ("q-type", "Q-type baseline", ""),
        ("lstm", "LSTM", "--model.embedding 4 --model.units 6 --model.hidden 8"),
        ("cnn-lstm", "CNN+LSTM", "--model.units 6 --model.hidden 8 --model.channels 2"),
    ],
)
def test_the_other_systems(
    preset: str, row: str, small: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"--preset {preset} --out run {small} --size 16x16 --device cpu --workers 1 "
    given += "--recipe.epochs 2 --recipe.images 8 --recipe.questions 2"
    assert main(["train", str(data), *given.split()]) == 0
    assert f"\n{row} on {data}" in capsys.readouterr().out
    assert main(["evaluate", "run", "--device", "cpu", "--workers", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"{row} on {data}")


def test_a_finished_run_has_nothing_to_do(
    made: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    trains(data, "--out", made, "--cache", made.parent / "cache", "--resume")
    said = capsys.readouterr().out
    assert f"{made}: this run is finished already; nothing to do\n" in said
    assert "best validation accuracy" in said
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_data_that_were_moved_are_still_the_same(
    made: Path, data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, here / "moved")  # with its files' times
    trains(here / "moved", "--out", made, "--cache", made.parent / "cache", "--resume")
    assert "this run is finished already" in capsys.readouterr().out


def test_the_same_command_gives_the_same_network(made: Path, data: Path, here: Path) -> None:
    trains(data, "--out", "run")
    one, other = (open_trained(run).weights for run in (made, here / "run"))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    trains(data, "--out", "other", "--seed", "1")
    other = open_trained(here / "other").weights
    assert not all(np.array_equal(one[name], other[name]) for name in one)


def test_an_interruption_says_how_to_go_on(
    data: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(self: Any, *, resume: bool) -> bool:
        raise KeyboardInterrupt("stopped after step 3 and saved; --resume goes on from there")

    monkeypatch.setattr(trainer.Trainer, "train", stop)
    trains(data, "--out", "run", code=130)
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
    assert done.stdout.count("learning from 16 questions") == 1
    assert done.stdout.count("run: best validation accuracy") == 1
    steps = [line["step"] for line in read_record(here / "run/log.jsonl") if "accuracy" in line]
    assert max(steps) == 4  # of four images, two to each


# --- what it learns from ---------------------------------------------------------------------


def test_shares_and_a_few_to_validate_on(
    data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trains(data, "--out", "a", "--subset-questions", "0.5", "--validate-on", "5", "--seed", "7")
    assert "validated on 4 questions about 2 images" in capsys.readouterr().out
    sets = about(here / "a")["data"]
    assert sets["train"]["subsets"] == [{"by": "question", "share": 0.5, "seed": 7}]
    # At most five questions are those about two images of four, which have two each.
    assert sets["val"]["subsets"] == [{"by": "image", "share": 0.5, "seed": 7}]
    assert open_trained(here / "a").about["data"] == sets
    trains(data, "--out", "b", "--subset-images", "0.25", "--validate-on", "1")
    sets = about(here / "b")["data"]
    assert sets["train"]["subsets"] == [{"by": "image", "share": 0.25, "seed": 0}]
    assert sets["val"]["subsets"] == [{"by": "image", "share": 0.25, "seed": 0}]


def test_cogent_is_validated_on_its_own_condition(here: Path) -> None:
    write_data(here / "cogent", "A")
    trains("cogent", "--out", "run", "--split", "trainA")
    sets = about(here / "run")["data"]
    assert (sets["train"]["origin"], sets["val"]["place"]["split"]) == ("CoGenT", "valA")


def test_missing_images_may_be_left_out(
    data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, "part")
    (here / "part/images/train/CLEVR_train_000003.png").unlink()
    run = ("train", "part", "--out", "run", *SMALL.split(), *QUICK.split())
    assert "7 of 8 images are there, 1 are missing: CLEVR_train_000003" in sentence(capsys, *run)
    assert not (here / "run").exists()
    trains("part", "--out", "run", "--skip-missing")
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("learning from 14 questions about 7 images; ")
    assert first.endswith("; 2 are left out, their images are not there")


def write_features(path: Path, count: int) -> None:
    with h5py.File(path, "w") as file:
        file["features"] = np.random.default_rng(0).random((count, 6, 4, 4), np.float32)


def test_features_and_questions_of_the_community(
    data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = pack_vocabulary(data, "train", here / "cache")
    write_vocab_json(here / "vocab.json", words)
    for split in ("train", "val"):
        write_features(here / f"{split}_features.h5", COUNTS[split])
        found = find_split(data, split)
        packed = pack_split(found, here / "cache", words, size=(16, 16))
        write_questions_h5(here / f"{split}.h5", packed.questions)
    options = ["train.h5", "--vocabulary", "vocab.json", "--images", "train_features.h5"]
    run = ["--out", "run", *SMALL.split(), *QUICK.split()]
    assert sentence(capsys, "train", *options, *run) == (
        "train.h5: it holds one split only; say with --val what to validate on"
    )
    options += ["--val", "val.h5"]
    assert sentence(capsys, "train", *options, *run) == (
        "--images is train_features.h5, features of one split; say with --val-images where those "
        "are that are validated on"
    )
    trains(*options, "--val-images", "val_features.h5", "--out", "run")
    fit = about(here / "run")["fit"]
    assert fit == {
        "vocabulary": len(words),
        "answers": 28,
        "pixels": False,
        "channels": 6,
        "height": 4,
        "width": 4,
    }


def test_the_generated_world(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (command, evaluate):  # no worker need be started
        monkeypatch.setattr(module, "choose_share_of_workers", lambda _: 0)
    world = ("--world-seed", "4", "--world-val-images", "3")
    size = ("--size", "24x16")
    few = QUICK.replace("--recipe.epochs 2", "--recipe.epochs 0.00001").split()
    small = SMALL.replace("--size 16x16", "").split()
    assert main(["train", "--out", "endless", *world, *size, *small, *few]) == 0
    run = about(here / "endless")
    assert (run["data"]["train"]["seed"], run["data"]["train"]["width"]) == (4, 24)
    assert run["data"]["val"]["place"] == {"world_seed": 4, "split": "val", "count": 3}
    fixed = ("--world-images", "4")
    assert main(["train", "--out", "fixed", *world, *fixed, *size, *small, *few]) == 0
    run = about(here / "fixed")
    assert run["data"]["train"]["place"] == {"world_seed": 4, "split": "train", "count": 4}
    assert run["data"]["train"]["origin"] == "generated"
    capsys.readouterr()
    assert main(["evaluate", "fixed", "--json", "again.json"]) == 0
    assert "\nMAC on val of the generated world 4\n" in capsys.readouterr().out
    again = json.loads((here / "again.json").read_bytes())
    assert again["data"] == run["data"]["val"]
    assert (
        again["results"]["overall"]["accuracy"]
        == (open_trained(here / "fixed").about["accuracy"]["overall"])
    )
    other = ("--world-images", "2", "--world-seed", "9", "--split", "test", "--json", "other.json")
    assert main(["evaluate", "fixed", *other]) == 0
    place = json.loads((here / "other.json").read_bytes())["data"]["place"]
    assert place == {"world_seed": 9, "split": "test", "count": 2}


# --- what it goes on from --------------------------------------------------------------------


def test_people_ask_in_new_words(
    made: Path, data: Path, humans: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--images", str(data), *QUICK.split(), "--device", "cpu", "--workers", "1"]
    known = open_trained(made)
    assert main(["train", str(humans), "--from", str(made), "--out", "as-is", *quick]) == 0
    said = capsys.readouterr().out
    assert "8 of 8 questions hold words that the vocabulary lacks, 4 in all" in said
    same = open_trained(here / "as-is")
    assert same.vocabulary == known.vocabulary
    # Neither the network's shape nor the size of pictures was said: both are the checkpoint's.
    assert (same.config, same.fit) == (known.config, known.fit)
    assert about(here / "as-is")["start"] == str(made / BEST)

    mixed = ["--from", str(made / BEST), "--at-least", "8", "--mix", str(data)]
    assert main(["train", str(humans), *mixed, "--out", "grown", *quick]) == 0
    grown = open_trained(here / "grown")
    assert grown.vocabulary.words[: len(known.vocabulary)] == known.vocabulary.words
    assert set(grown.vocabulary.words[len(known.vocabulary) :]) == set(NEW)
    old = about(here / "grown")["data"]["old"]
    assert (old["share"], old["place"]["data"], old["origin"]) == (0.5, str(data), "CLEVR")
    # Two batches of people's questions to an epoch, and as many of the old ones.
    lines = read_record(here / "grown/log.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [4, 8]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--preset reference", "--preset is reference, but {} is a checkpoint of another preset"),
        ("--ablation MAC", "--ablation is given, but {} says itself what network it is of"),
        ("--tokenising mac", "--tokenising is given, but {}/best.safetensors has words of its own"),
        ("--vocabulary x", "--vocabulary is given, but {}/best.safetensors has words of its own"),
    ],
)
def test_a_checkpoint_says_itself_what_it_is_of(
    options: str, expected: str, made: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, "train", data, "--from", made, "--out", "run", *options.split())
    assert said.startswith(expected.format(made))


def test_a_checkpoint_of_another_shape_or_damaged(
    made: Path, data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wider = ("--model.d", "12", *QUICK.split())
    said = sentence(capsys, "train", data, "--from", made, "--out", "run", *wider)
    assert "this is a checkpoint of another configuration" in said
    content = bytearray((made / BEST).read_bytes())
    content[-7] ^= 1
    (here / BEST).write_bytes(content)
    assert f"{BEST}: it is damaged" in sentence(capsys, "train", data, "--from", BEST, "--out", "x")
    assert "there is no such file" in sentence(capsys, "train", data, "--from", "y", "--out", "x")
    assert not (here / "x").exists()


# --- what it refuses -------------------------------------------------------------------------


def test_a_folder_with_a_run(made: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = f"train {data} --out {made} --cache {made.parent}/cache {SMALL} {QUICK}".split()
    assert sentence(capsys, *run) == (
        f"{made}: it holds a run already; go on with it by --resume, or choose another --out"
    )
    assert sentence(capsys, *run, "--resume", "--recipe.lr", "0.5") == (
        f"{made}: it holds a run of another configuration: recipe.lr is 0.01 there and 0.5 here; "
        "choose another --out"
    )
    said = sentence(capsys, "train", "nowhere", "--out", made)  # before anything is packed
    assert said.startswith(f"{made}: it holds a run already")
    with alone_in(made):
        said = sentence(capsys, *run, "--resume")
    assert said == f"{made}: another run is at work here; wait for its end"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--preset nets", "--preset is 'nets'; choose one of paper, reference,"),
        ("--recipe slow", "--recipe is 'slow'; choose one of paper, fast"),
        ("--model.d -3", "--model.d is -3; it must be a whole number from 1"),
        ("--recipe.lr nan", "--recipe.lr is nan; it must be a number from 0"),
        ("--overrides o.toml", "o.toml: there is no such file"),
        ("--split trainB", "{}: it has no split 'trainB'; it has test, train, val"),
        ("--val-split valA", "{}: it has no split 'valA'; it has test, train, val"),
        ("--val-split test", "{}/questions/CLEVR_test_questions.json: its questions have no answ"),
        ("--val nowhere", "nowhere: there is no such folder"),
        ("--mix nowhere", "nowhere: there is no such folder"),
        ("--mix-share 1", "--mix-share is 1.0; it must lie between 0 and 1"),
        ("--size 16", "--size is '16'; it must be two positive numbers"),
        ("--at-least 0", "--at-least is 0; it must be at least 1"),
        ("--validate-on 0", "--validate-on is 0; it must be at least 1"),
        ("--subset-images 2", "a subset's share is 2.0; it must lie in (0, 1]"),
        ("--subset-images 0.1 --subset-questions 0.1", "--subset-questions and --subset-images"),
        ("--seed -1", "--seed is -1; it must be a whole number from 0"),
        ("--save-every nan", "--save-every is nan; it must be a number from 0"),
        ("--world-images 3", "--world-images is given, but {} is what to learn from"),
        ("--device tpu", "--device is 'tpu'"),
        ("--workers 0", "--workers is 0; it must be at least 1"),
        ("--vocabulary v.json --tokenising mac", "--tokenising is mac, but v.json says itself how"),
    ],
)
def test_what_cannot_be(
    options: str, expected: str, data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, "train", data, "--out", "run", *options.split())
    assert said.startswith(expected.format(data))
    assert not (here / "run").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--split val", "--split is given, but there is no DATA"),
        ("--mix x", "--mix is given, but there is no DATA"),
        ("--at-least 3", "--at-least is given, but there is no DATA"),
        ("--world-images 3 --compile", "--compile is for a world without an end; give no --world"),
        ("--subset-questions 0.1 --world-val-images 1 --size 24x16", "--subset-questions is given"),
        ("--world-val-images 0", "0 images of 'val' are asked for; one is the least"),
        ("--size 8x8", "--size is 8x8; it must be at least 24x16"),
    ],
)
def test_what_a_world_cannot_be(
    options: str,
    expected: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "choose_share_of_workers", lambda _: 0)
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
            main(["train", f"--preset={name}", "--help"])
        shown[name] = " ".join(capsys.readouterr().out.replace("│", " ").split())
    uniform = "Word vectors start uniform between this and 1. (default: "
    assert f"{uniform}0.0)" in shown["paper"]
    assert f"{uniform}-1.0)" in shown["reference"]
    assert "--model.image" not in shown["paper"]
    _, _, after = shown["paper"].partition("--preset NAME")
    of_presets, _, after = after.partition("--ablation")
    of_recipes = after.partition("--recipe NAME")[2].partition("--overrides")[0]
    assert set(PRESETS) <= set(re.findall(r"[\w-]+", of_presets))
    assert set(RECIPES) <= set(re.findall(r"[\w-]+", of_recipes))


def test_other_help_loads_no_torch() -> None:
    script = (
        "import sys\nfrom macnet.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    for arguments in (["--help"], ["generate", "--help"], ["evaluate", "--help"]):
        command = [sys.executable, "-c", script, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
