"""What `macnet train` learns from: data of every kind, the world, and what was learned before."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from macnet.checkpoint import BEST, load_trained
from macnet.cli import main
from macnet.data.clevr_h5 import write_questions_h5, write_vocab_json
from macnet.data.pack import pack_split, pack_vocabulary
from macnet.data.splits import find_split
from macnet.training.log import read_log
from small_data import COUNTS, QUICK, SMALL, metadata_of, run_train, sentence, write_data

pytestmark = pytest.mark.usefixtures("here")

NEW = ("could", "a", "wug", "hide")


# --- what it learns from ---------------------------------------------------------------------


def test_shares_and_a_few_to_validate_on(
    data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_train(data, "--out", "a", "--subset-questions", "0.5", "--validate-on", "5", "--seed", "7")
    assert "validating on 4 questions about 2 images" in capsys.readouterr().out
    sets = metadata_of(here / "a")["data"]
    assert sets["train"]["subsets"] == [{"by": "question", "share": 0.5, "seed": 7}]
    # At most five questions are those about two images of four, which have two each.
    assert sets["val"]["subsets"] == [{"by": "image", "share": 0.5, "seed": 7}]
    assert load_trained(here / "a").metadata["data"] == sets
    run_train(data, "--out", "b", "--subset-images", "0.25", "--validate-on", "1")
    sets = metadata_of(here / "b")["data"]
    assert sets["train"]["subsets"] == [{"by": "image", "share": 0.25, "seed": 0}]
    assert sets["val"]["subsets"] == [{"by": "image", "share": 0.25, "seed": 0}]


def test_cogent_is_validated_on_its_own_condition(here: Path) -> None:
    write_data(here / "cogent", "A")
    run_train("cogent", "--out", "run", "--split", "trainA")
    sets = metadata_of(here / "run")["data"]
    assert (sets["train"]["origin"], sets["val"]["source"]["split"]) == ("CoGenT", "valA")


def test_missing_images_may_be_left_out(
    data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, "part")
    (here / "part/images/train/CLEVR_train_000003.png").unlink()
    run = ("train", "part", "--out", "run", *SMALL.split(), *QUICK.split())
    assert "7 of 8 images are there, 1 are missing: CLEVR_train_000003" in sentence(capsys, *run)
    assert not (here / "run").exists()
    run_train("part", "--out", "run", "--skip-missing")
    (first,) = (s for s in capsys.readouterr().out.splitlines() if s.startswith("training on"))
    assert first.startswith("training on 14 questions about 7 images; ")
    assert first.endswith("; 2 are left out, their images are missing")


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
        "train.h5: it holds one split only; give --val, the data to validate on"
    )
    options += ["--val", "val.h5"]
    assert sentence(capsys, "train", *options, *run) == (
        "--images is train_features.h5, features of one split; give --val-images, the features "
        "of the images to validate on"
    )
    run_train(*options, "--val-images", "val_features.h5", "--out", "run")
    data_spec = metadata_of(here / "run")["data_spec"]
    assert data_spec == {
        "vocabulary": len(words),
        "answers": 28,
        "question_types": 13,
        "pixels": False,
        "channels": 6,
        "height": 4,
        "width": 4,
    }


@pytest.mark.usefixtures("small_blocks")
def test_the_generated_world(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    world = ("--world-seed", "4", "--world-val-images", "3")
    size = ("--size", "24x16")
    few = QUICK.replace("--recipe.epochs 2", "--recipe.epochs 0.00001").split()
    small = SMALL.replace("--size 16x16", "").split()
    assert main(["train", "--out", "endless", *world, *size, *small, *few]) == 0
    run = metadata_of(here / "endless")
    assert (run["data"]["train"]["seed"], run["data"]["train"]["width"]) == (4, 24)
    assert run["data"]["val"]["source"] == {"world_seed": 4, "split": "val", "count": 3}
    fixed = ("--world-images", "4")
    assert main(["train", "--out", "fixed", *world, *fixed, *size, *small, *few]) == 0
    run = metadata_of(here / "fixed")
    assert run["data"]["train"]["source"] == {"world_seed": 4, "split": "train", "count": 4}
    assert run["data"]["train"]["origin"] == "generated"
    capsys.readouterr()
    assert main(["evaluate", "fixed", "--json", "again.json"]) == 0
    assert "\nMAC on val of the generated world 4\n" in capsys.readouterr().out
    again = json.loads((here / "again.json").read_bytes())
    assert again["data"] == run["data"]["val"]
    assert (
        again["results"]["overall"]["accuracy"]
        == (load_trained(here / "fixed").metadata["accuracy"]["overall"])
    )
    other = ("--world-images", "2", "--world-seed", "9", "--split", "test", "--json", "other.json")
    assert main(["evaluate", "fixed", *other]) == 0
    place = json.loads((here / "other.json").read_bytes())["data"]["source"]
    assert place == {"world_seed": 9, "split": "test", "count": 2}


def test_an_easier_world(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("macnet.devices.choose_share_of_workers", lambda _: 0)
    easier = ("--world-num-objects", "2", "3", "--world-families", "zero_hop", "one_hop")
    size = ("--size", "24x16", "--world-val-images", "3")
    few = QUICK.replace("--recipe.epochs 2", "--recipe.epochs 0.00001").split()
    small = SMALL.replace("--size 16x16", "").split()
    assert main(["train", "--out", "endless", *easier, *size, *small, *few]) == 0
    own = {"num_objects": [2, 3], "families": ["one_hop", "zero_hop"]}
    run = metadata_of(here / "endless")["data"]
    for where in (run["train"], run["val"]["source"]):
        assert {name: where[name] for name in own} == own
    world = "world 1 of 2 to 3 objects with questions of one_hop, zero_hop"
    assert f"training on the generated {world}, without an end" in capsys.readouterr().out
    assert main(["evaluate", "endless", "--json", "again.json"]) == 0, "there, not in CLEVR's"
    assert f"\nMAC on val of the generated {world}\n" in capsys.readouterr().out
    assert json.loads((here / "again.json").read_bytes())["data"] == run["val"]
    other = ("--world-images", "2", "--world-seed", "9", "--split", "test", "--json", "other.json")
    assert main(["evaluate", "endless", *other]) == 0, "on other images of a world as easy"
    found = json.loads((here / "other.json").read_bytes())["data"]["source"]
    assert found == {"world_seed": 9, "split": "test", "count": 2, **own}


@pytest.mark.parametrize(
    ("easier", "complaint"),
    [
        (("--world-num-objects", "5", "2"), "--world-num-objects is 5 2; it must be the smallest"),
        (("--world-families", "four_hop"), "--world-families has 'four_hop'; known are "),
    ],
)
def test_an_easier_world_that_there_is_not(
    easier: tuple[str, ...], complaint: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--out", "run", *easier, *SMALL.split()]) == 2
    assert complaint in capsys.readouterr().err
    assert not (here / "run").exists()


# --- what it goes on from --------------------------------------------------------------------


def test_clevr_humans_from_a_checkpoint(
    made: Path, data: Path, humans: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--images", str(data), *QUICK.split(), "--device", "cpu", "--workers", "1"]
    known = load_trained(made)
    assert main(["train", str(humans), "--from", str(made), "--out", "as-is", *quick]) == 0
    said = capsys.readouterr().out
    assert "8 of 8 questions hold words that the vocabulary lacks, 4 in all" in said
    same = load_trained(here / "as-is")
    assert same.vocabulary == replace(known.vocabulary, unk_learned=True)
    assert not known.vocabulary.unk_learned, "it knows every word that it has learned from"
    # Neither the network's shape nor the size of pictures was said: both are the checkpoint's.
    assert (same.config, same.data_spec) == (known.config, known.data_spec)
    assert metadata_of(here / "as-is")["start"] == str(made / BEST)

    mixed = ["--from", str(made / BEST), "--min-count", "8", "--replay", str(data)]
    assert main(["train", str(humans), *mixed, "--out", "grown", *quick]) == 0
    grown = load_trained(here / "grown")
    assert grown.vocabulary.words[: len(known.vocabulary)] == known.vocabulary.words
    assert set(grown.vocabulary.words[len(known.vocabulary) :]) == set(NEW)
    assert not grown.vocabulary.unk_learned
    old = metadata_of(here / "grown")["data"]["replay"]
    assert (old["share"], old["source"]["data"], old["origin"]) == (0.5, str(data), "CLEVR")
    # Two batches of people's questions to an epoch, and as many of the old ones.
    lines = read_log(here / "grown/log.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [4, 8]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--preset reference", "--preset is reference, but {}/best.safetensors is a checkpoint of"),
        ("--ablation MAC", "--ablation is given, but {}/best.safetensors has a network of its"),
        (
            "--tokenizer mac",
            "--tokenizer is given, but {}/best.safetensors has a vocabulary",
        ),
        (
            "--vocabulary x",
            "--vocabulary is given, but {}/best.safetensors has a vocabulary",
        ),
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
