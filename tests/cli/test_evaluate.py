"""`macnet evaluate`: on what a run was validated on, or on anything else; and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from macnet import checkpoint
from macnet.checkpoint import BEST, load_trained, read_checkpoint, write_checkpoint
from macnet.clevr.families import families_of
from macnet.clevr.generate import generate_world
from macnet.clevr.world import World
from macnet.cli import main
from macnet.configuration import with_changes
from macnet.data.block_encoder import world_texts
from macnet.data.spec import DataSpec
from macnet.data.vocab import Vocabulary
from macnet.evaluation import evaluate as evaluation
from macnet.evaluation.report import NO_NUMBER
from macnet.models.registry import PRESETS
from macnet.training import trainer
from small_data import (
    COUNTS,
    records,
    run_train,
    sentence,
    write_data,
    write_humans,
    write_questions,
)
from tiny_networks import write_network

SHOWN = ("accuracy", "95% interval", "questions")
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture(scope="module", autouse=True)
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, people's questions about it, a cache, and runs of pictures and features.

    None of it is to be changed.
    """
    root = tmp_path_factory.mktemp("small")
    data = write_data(root / "data")
    write_humans(root)
    for split in ("train", "val", "test"):
        with h5py.File(root / f"{split}.h5", "w") as file:
            file["features"] = np.random.default_rng(0).random((COUNTS[split], 6, 4, 4), np.float32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer, "draw_curve", lambda *_: None)
        cache = ("--cache", root / "cache")
        run_train(data, "--out", root / "run", "--validate-on", "6", *cache)
        of_features = ("--images", root / "train.h5", "--val-images", root / "val.h5")
        run_train(data, "--out", root / "features", *of_features, *cache)
    return root


@pytest.fixture(autouse=True)
def here(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MACNET_CACHE", str(small / "cache"))
    return tmp_path


def evaluates(*arguments: str | Path) -> None:
    assert main(["evaluate", *map(str, arguments), "--workers", "1", "--device", "cpu"]) == 0


# --- what it measures ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "features"])
def test_without_data_it_is_what_the_run_was_validated_on(
    name: str, small: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluates(small / name, "--json", "new/numbers.json")
    said = capsys.readouterr().out
    written = "new/numbers.json: all of the numbers\n"
    assert said.startswith(f"{written}MAC on {small}/data/questions/CLEVR_val_questions.json\n")
    assert all(word in said for word in SHOWN)
    assert NO_NUMBER in said  # of so small a network
    assert "in the paper" not in said
    numbers = json.loads((here / "new/numbers.json").read_bytes())
    trained = load_trained(small / name)
    assert numbers["run"] == str(small / name / BEST)
    assert (numbers["preset"], numbers["row"], numbers["share"]) == ("paper", None, 1)
    assert numbers["data"] == trained.metadata["data"]["val"]
    # Six questions at most were asked for: those about three images, which have two each.
    assert numbers["questions"] == numbers["results"]["overall"]["total"] == 6 + 2 * (name != "run")
    assert numbers["results"]["overall"]["accuracy"] == trained.metadata["accuracy"]["overall"]
    assert numbers["questions_per_second"] == numbers["questions"] / numbers["seconds"]
    assert numbers["precision"] == "float32"


def test_a_dataset_alone_is_for_the_network_that_comes_with_macnet(
    small: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHIPPED", small / "run" / BEST)
    for arguments, name in ((["data"], "one"), (["run", "data"], "other")):
        assert main(["evaluate", *(str(small / a) for a in arguments), "--json", name]) == 0
    one, other = (json.loads((here / name).read_text()) for name in ("one", "other"))
    assert one["results"] == other["results"]
    assert one["data"] == other["data"]


def test_without_arguments_it_is_a_few_images_and_says_how_to_ask_all(
    looking: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, weights = read_checkpoint(looking / "mac.safetensors")
    place = {"world_seed": 1, "split": "val", "count": 5000}
    write_checkpoint(
        here / "s.safetensors", {**metadata, "data": {"val": {"source": place}}}, weights
    )
    monkeypatch.setattr(checkpoint, "SHIPPED", here / "s.safetensors")
    monkeypatch.setattr(evaluation, "FEW_IMAGES", 2)
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    evaluates("--json", "n.json")
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == (
        "the network that comes with macnet is evaluated on questions about the first 2 images of "
        "val of the generated world 1, on cpu; --world-images 5000 is all that it was validated on"
    )
    assert "\n20 questions about 2 images\n" in captured.err
    assert json.loads((here / "n.json").read_bytes())["data"]["source"] == {**place, "count": 2}


def test_a_run_says_first_what_it_is_asked(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluates(small / "run")
    said = capsys.readouterr().err.splitlines()
    asked = (
        f"{small}/run/best.safetensors is evaluated on the questions of val of {small}/data, on cpu"
    )
    assert said[:2] == [asked, "6 questions about 3 images"]


def test_of_a_file_of_weights(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluates(small / "run")
    by_folder = capsys.readouterr().out
    evaluates(small / "run" / BEST)
    assert capsys.readouterr().out == by_folder


def test_answers_in_the_order_of_the_questions(small: Path, here: Path) -> None:
    evaluates(small / "run", small / "data", "--predictions", "answers.txt", "--json", "n.json")
    numbers = json.loads((here / "n.json").read_bytes())
    answers = (here / "answers.txt").read_text().splitlines()
    asked = json.loads((small / "data/questions/CLEVR_val_questions.json").read_text())["questions"]
    right = [record["answer"] == answer for record, answer in zip(asked, answers, strict=True)]
    assert numbers["results"]["overall"]["correct"] == sum(right)
    assert numbers["results"]["overall"]["total"] == len(right) == 8


def test_questions_without_answers_are_answered(
    small: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = (small / "run", small / "data", "--split", "test")
    evaluates(*test, "--predictions", "new/answers.txt")
    assert capsys.readouterr().out == "new/answers.txt: 6 answers\n"
    known = load_trained(small / "run").vocabulary.answers
    assert all(line in known for line in (here / "new/answers.txt").read_text().splitlines())
    assert sentence(capsys, "evaluate", *test) == (
        f"{small}/data/questions/CLEVR_test_questions.json: its questions come without answers, "
        "so only --predictions can be made"
    )


def test_people_ask_in_unknown_words(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluates(small / "run", small, "--images", small / "data", "--split", "train")
    said = capsys.readouterr().out
    assert said.startswith(f"MAC on {small}/CLEVR-Humans-train.json\n")
    assert NO_NUMBER in said


def test_a_network_stands_beside_the_papers_number_for_it(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which it tells itself, from its configuration and what it learned from."""
    metadata = read_checkpoint(small / "features" / BEST).metadata
    assert metadata["experiment"] == {"row": None, "share": 1.0}
    config = with_changes(PRESETS["paper"].config, {"d": 128, "channels": 6})
    network = PRESETS["paper"].system.build(config, DataSpec(**metadata["data_spec"]))
    metadata |= {"model": asdict(config)}
    for share, overall in ((1.0, "97.6"), (0.1, "77.0"), (0.5, None), (None, None)):
        metadata["experiment"] = {"row": "state dimension 128", "share": share}
        write_checkpoint(Path("made.safetensors"), metadata, network.state_dict())
        evaluates("made.safetensors")
        said = capsys.readouterr().out
        assert ("in the paper" in said) == (overall is not None)
        (line,) = (line for line in said.splitlines() if line.startswith("  Overall"))
        assert line.split()[-1] == (overall or "8")
        assert ("state dimension 128 in table 2" in said) == (overall is not None)


def test_of_people_the_paper_has_two_numbers(
    small: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the LSTM as published: trained on all of CLEVR, then on all of people's questions."""
    size = "--device cpu --workers 1 --size 16x16 --recipe.epochs 1"
    lstm = ["train", str(small / "data"), "--preset", "lstm", "--out", "run", *size.split()]
    assert main(lstm) == 0
    assert "In the paper: LSTM in table 1." in capsys.readouterr().out
    tuned = ["train", str(small), "--images", str(small / "data"), "--from", "run", "--out"]
    assert main([*tuned, "tuned", "--recipe", "humans", *size.split()]) == 0
    said = capsys.readouterr().out
    assert "recipe humans with changes" in said
    before, after = (load_trained(here / name).weights for name in ("run", "tuned"))
    for name, weight in before.items():  # the published fine-tuning is of one part only
        assert weight.equal(after[name]) == (not name.startswith("question.")), name
    assert load_trained(here / "tuned").share == 1
    assert re.search(r"Overall .* 27\.5 +36\.5", said)
    assert main([*tuned, "part", "--subset-questions", "0.5", *size.split()]) == 0
    assert load_trained(here / "part").share is None
    assert NO_NUMBER in capsys.readouterr().out


def test_a_question_without_a_known_word_is_answered(small: Path, here: Path) -> None:
    write_questions(here / "CLEVR-Humans-val.json", "val", records("val", COUNTS["val"], "wug?"))
    evaluates(small / "run", here, "--images", small / "data", "--json", "n.json")
    numbers = json.loads((here / "n.json").read_bytes())
    assert numbers["results"]["overall"]["total"] == COUNTS["val"]


def test_bfloat16(small: Path, here: Path) -> None:
    evaluates(small / "run", "--precision", "bfloat16", "--json", "n.json")
    assert json.loads((here / "n.json").read_bytes())["precision"] == "bfloat16"


# --- what it refuses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{}/nothing", "{}/nothing: there is no such file"),
        ("{}/cache", "{}/cache: there is no best.safetensors in it; has it been validated yet?"),
        ("{}/run/last.safetensors", "{}/run/last.safetensors: it is for resuming training"),
        ("{}/run/run.json", "{}/run/run.json: it is damaged, or no checkpoint"),
        ("{}/run {}/data --split x", "{}/data: it has no split 'x'; it has test, train, val"),
        ("{}/run {}/nothing", "{}/nothing: there is no such folder"),
        ("{}/run {}", "{}: these come without images; say with --images where CLEVR's are"),
        (
            "{}/run {}/data --images {}/val.h5",
            "{}/val.h5: these are features, but {}/run/best.safetensors was trained on images",
        ),
        (
            "{}/features {}/data",
            "{}/data/images/val: these are images, but {}/features/best.safetensors was trained on "
            "features; give a file of them as --images",
        ),
        ("{}/run --world-images 3", "--size is 16x16; it must be at least 24x16"),
        ("{}/features --world-images 3", "the generated world: these are images, but"),
        ("{}/run {}/data --world-images 3", "--world-images is given, but {}/data is what to"),
        ("{}/run --split test", "--split is given, but there is neither DATA nor --world-images"),
        ("{}/run --skip-missing --world-images 3", "--skip-missing is given, but there is no DATA"),
        ("{}/run {}/data --world-seed 3", "--world-seed is given, but {}/data is what to evalua"),
        ("{}/run --device tpu", "--device is 'tpu'"),
        ("{}/run --workers 0", "--workers is 0; it must be at least 1"),
        (
            "{}/run --world-images 3 --world-families zero_hop",
            "--world-families is given, but only --attention has a use for it",
        ),
    ],
)
def test_what_cannot_be(
    arguments: str, expected: str, small: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments.replace("{}", str(small)).split()
    said = sentence(capsys, "evaluate", *given, "--json", "n.json", "--predictions", "p.txt")
    assert said.startswith(expected.replace("{}", str(small)))
    assert list(here.iterdir()) == []


def test_features_of_another_shape(
    small: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(here / "wide.h5", "w") as file:
        file["features"] = np.ones((COUNTS["val"], 6, 4, 5), np.float32)
    given = (small / "features", small / "data", "--images", "wide.h5")
    assert sentence(capsys, "evaluate", *given) == (
        f"{here}/wide.h5: images are 5x4x6, but {small}/features/best.safetensors was trained on "
        "4x4x6"
    )


def test_a_damaged_checkpoint_and_one_that_does_not_tell(
    small: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata, weights = read_checkpoint(small / "run" / BEST)
    content = bytearray((small / "run" / BEST).read_bytes())
    content[-5] ^= 4
    (here / "damaged.safetensors").write_bytes(content)
    said = sentence(capsys, "evaluate", "damaged.safetensors")
    assert said.startswith("damaged.safetensors: it is damaged")
    untold = {**metadata, "data": {"val": {"questions": "somebody's"}}}
    write_checkpoint(here / "untold.safetensors", untold, weights)
    said = sentence(capsys, "evaluate", "untold.safetensors")
    assert said == "untold.safetensors: it does not say what it was validated on; give DATA"
    moved = json.loads(json.dumps(metadata["data"]).replace(str(small / "data"), "/nowhere/data"))
    write_checkpoint(here / "moved.safetensors", {**metadata, "data": moved}, weights)
    said = sentence(capsys, "evaluate", "moved.safetensors")
    assert said.startswith("/nowhere/data: there is no such folder")
    for change in ({"source": 7}, {"source": {"data": 7}}, {"source": {"x": 1}}, {"subsets": 7}):
        strange = {"val": {**metadata["data"]["val"], **change}}
        write_checkpoint(here / "strange.safetensors", {**metadata, "data": strange}, weights)
        said = sentence(capsys, "evaluate", "strange.safetensors")
        assert said == "the run does not say where the data is that it was validated on; give DATA"


# --- what it attends to ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of small networks that know the words of the world, and have learned nothing."""
    root = tmp_path_factory.mktemp("looking")
    words = Vocabulary.build(world_texts())
    for name, preset in (("mac", PRESETS["paper"]), ("cnn", PRESETS["cnn-lstm"])):
        small = {"d": 8, "p": 3, "embedding": 6, "gate": True, "self_attention": True}
        config = with_changes(preset.config, small if name == "mac" else {})
        data_spec = DataSpec(len(words), len(words.answers), 13, True, 3, 24, 32)
        metadata: dict[str, Any] = {
            "preset": "paper" if name == "mac" else "cnn-lstm",
            "model": asdict(config),
            "data_spec": data_spec._asdict(),
            "vocabulary": words.to_record(),
            "data": {"val": {}},
        }
        weights = preset.system.build(config, data_spec).state_dict()
        write_checkpoint(root / f"{name}.safetensors", metadata, weights)
    return root


def test_attention(
    looking: Path,
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("macnet.explain.reply.RESTING", 1e-6)  # for nothing has been learned
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    given = ("--attention", "--world-images", "20", "--world-seed", "3", "--device", "cpu")
    assert main(["evaluate", str(looking / "mac.safetensors"), *given, "--json", "new/n.json"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "new/n.json: all of the numbers"
    assert said[1].startswith(
        "What MAC attends to on val of the generated world 3: 200 questions about 20 images, "
    )
    assert any(line.startswith(" unique ") for line in said)
    numbers = json.loads((here / "new/n.json").read_bytes())
    assert numbers["run"] == str(looking / "mac.safetensors")
    assert (numbers["data"]["world"]["seed"], numbers["data"]["world"]["width"]) == (3, 32)
    found = numbers["attention"]
    assert (found["images"], found["answers"]["total"]) == (20, 200)
    referenced = found["objects"]["referenced"]
    # Neither has learned anything, and each points at some objects and not at others.
    for source in ("network", "another question", "random weights"):
        assert (
            0
            < referenced["pointed_at"][source]["correct"]
            < referenced["pointed_at"][source]["total"]
        )
        assert len(found["steps"][source]) == 3
        assert all(abs(sum(aim.values()) - 1) < 1e-9 for aim in found["steps"][source])
    # As it is shown, beyond resting maps and by the gate.
    assert numbers["as_shown"]["answers"] == found["answers"]
    assert numbers["as_shown"]["change"]["network"] == found["change"]["network"]
    assert all(0 < change < 1 for change in found["change"]["network"])
    masked = numbers["masking"]["accuracy"]
    assert len({share["total"] for share in masked.values()}) == 1
    assert 0 < masked["nothing"]["total"] <= 20
    assert any(line.startswith(" as many others ") for line in said)
    by_kind = [kind["pointed_at"]["network"]["total"] for kind in found["groups"].values()]
    assert sum(by_kind) == referenced["pointed_at"]["network"]["total"]


def test_attention_in_an_easier_world(
    looking: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a network that knows no words but those of its world."""
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    words = Vocabulary.build(world_texts(families_of(["zero_hop"])))
    run = write_network(here / "run", vocabulary=words)
    easier = ("--attention", "--world-images", "20", "--world-num-objects", "1", "2")
    assert sentence(capsys, "evaluate", run, *easier).startswith("the vocabulary lacks 30 words of")
    given = (*easier, "--world-families", "zero_hop", "--json", "n.json", "--device", "cpu")
    assert main(["evaluate", str(run), *given]) == 0
    world = "val of the generated world 1 of 1 to 2 objects with questions of zero_hop"
    captured = capsys.readouterr()
    assert f"questions about the first 20 images of {world}, on cpu" in captured.err
    assert captured.out.splitlines()[1].startswith(f"What MAC attends to on {world}: ")
    assert "leads a program" not in captured.out
    numbers = json.loads((here / "n.json").read_bytes())
    assert numbers["data"]["questions"] == world
    assert numbers["data"]["world"]["num_objects"] == [1, 2]
    groups = numbers["attention"]["groups"]
    asked = {k: group["pointed_at"]["network"]["total"] for k, group in groups.items()}
    assert asked["Compare Numbers"] == asked["Compare Attribute"] == 0 < asked["Count"]


# --- what is hidden --------------------------------------------------------------------------


def test_occlusion_in_the_generated_world_and_in_the_same_on_disk(
    looking: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    world, counts = World(1, width=32, height=24), {"train": 0, "val": 2, "test": 0}
    generate_world(here / "w", world, counts, device="cpu", workers=0)
    found = {}
    for name, given in (("drawn", "--world-images 2"), ("disk", "w")):
        evaluates(looking / "mac.safetensors", *given.split(), "--occlusion", "--json", name)
        found[name] = json.loads((here / name).read_bytes())["occlusion"]
        out = capsys.readouterr().out
        assert "By the most hidden object asked about" in out
    # The network may answer otherwise: a picture is the same only in the same company.
    assert {k: v["total"] for k, v in found["disk"].items()} == {
        k: v["total"] for k, v in found["drawn"].items()
    }
    assert sum(share["total"] for share in found["disk"].values()) == 20


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("{}/run {}/data", "{}/data/scenes/CLEVR_val_scenes.json: there is no such file, and no"),
        ("{}/run {} --images {}/data", "{}/scenes/CLEVR_val_scenes.json: there is no such file,"),
        ("{}/run --attention", "--occlusion is given, but --attention has no use for it"),
    ],
)
def test_what_does_not_tell_what_is_hidden(
    arguments: str, expected: str, small: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments.replace("{}", str(small)).split()
    said = sentence(capsys, "evaluate", *given, "--occlusion", "--json", "n.json")
    assert said.startswith(expected.replace("{}", str(small)))
    assert list(here.iterdir()) == []


def test_the_network_that_comes_with_macnet(
    looking: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHIPPED", looking / "cnn.safetensors")
    assert sentence(capsys, "evaluate", "--attention") == (
        f"{looking}/cnn.safetensors: it is of the system cnn-lstm, which has no attention to "
        "show; take a network of the system mac or sa-mlp"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "{}/run {}/data",
            "{}/data: it does not tell where its objects are; give --attention without DATA, for "
            "it is measured in the generated world",
        ),
        (
            "{}/features",
            "{}/features/best.safetensors: it was trained on features, and cannot take images; "
            "take a network that was trained on images",
        ),
        ("{}/run", "--size is 16x16; it must be at least 24x16"),
        ("{}/run --world-num-objects 3 1", "--world-num-objects is 3 1; it must be the smallest"),
        ("{}/run --world-families x", "--world-families has 'x'; known are compare_integer, "),
        ("{}/run --predictions p", "--predictions is given, but --attention has no use for it"),
        ("{}/run --precision float32", "--precision is given, but --attention has no use for it"),
        ("{}/run --images x", "--images is given, but --attention is measured in the generated wo"),
        ("{}/nothing", "{}/nothing: there is no such file"),
    ],
)
def test_what_attention_cannot_be_measured_on(
    arguments: str, expected: str, small: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments.replace("{}", str(small)).split()
    said = sentence(capsys, "evaluate", *given, "--attention", "--json", "n.json")
    assert said.startswith(expected.replace("{}", str(small)))
    assert list(here.iterdir()) == []


def test_no_images_to_watch(looking: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (looking / "mac.safetensors", "--attention", "--world-images", "0")
    said = sentence(capsys, "evaluate", *given)
    assert said == "--world-images is 0; it must be at least 1"
