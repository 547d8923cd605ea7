"""Datasets become packs: every number of them can be traced back to the files."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from macnet.clevr.generate import generate_world
from macnet.clevr.program import to_prefix
from macnet.clevr.world import World
from macnet.data import clevr_json, formats
from macnet.data import pack as packing
from macnet.data.batches import Batches
from macnet.data.clevr_h5 import write_questions_h5, write_vocab_json
from macnet.data.clevr_json import read_question_file
from macnet.data.dataset import Dataset
from macnet.data.pack import pack_split, pack_vocabulary
from macnet.data.question_arrays import TYPES, UNKNOWN
from macnet.data.splits import find_split
from macnet.data.unknown_words import encode_known
from macnet.data.vocab import PROGRAM_TOKENS, Vocabulary
from macnet.errors import InputError

WIDTH, HEIGHT = 48, 32


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "world"
    world = World(seed=5, width=WIDTH, height=HEIGHT, questions_per_image=4)
    generate_world(root, world, {"train": 7, "val": 3, "test": 2}, device="cpu", workers=0)
    return root


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Path:
    """One that may be damaged."""
    return Path(shutil.copytree(made, tmp_path / "world"))


def questions(root: Path, split: str = "train") -> list[dict[str, object]]:
    content = json.loads((root / f"questions/CLEVR_{split}_questions.json").read_text())
    return list(content["questions"])


def packed(
    root: Path, cache: Path, split: str = "train", size: tuple[int, int] = (WIDTH, HEIGHT)
) -> Dataset:
    vocabulary = pack_vocabulary(root, split, cache)
    return pack_split(find_split(root, split), cache, vocabulary, size=size)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_every_number_comes_from_the_files(made: Path, tmp_path: Path, split: str) -> None:
    data = packed(made, tmp_path, split)
    records = questions(made, split)
    assert len(data) == len(records)
    q = data.questions
    for number, record in enumerate(records):
        file = made / "images" / split / str(record["image_filename"])
        picture = np.asarray(Image.open(file).convert("RGB"))
        assert data.images[data.image_rows[number]].tobytes() == picture.tobytes()
        tokens = q.tokens[number, : q.lengths[number]].tolist()
        assert tokens == encode_known(str(record["question"]), data.vocabulary)
        assert not q.tokens[number, q.lengths[number] :].any()
        steps = [PROGRAM_TOKENS[i] for i in q.programs[number] if i]
        if split == "test":
            assert q.answers[number] == q.types[number] == q.families[number] == UNKNOWN
            assert not steps
        else:
            assert data.vocabulary.answers[q.answers[number]] == record["answer"]
            assert steps == to_prefix(record["program"])  # type: ignore[arg-type]
            assert TYPES[q.types[number]] == steps[0]
            assert q.families[number] == record["question_family_index"]
    if split == "train":
        assert data.metadata["words"] == "the vocabulary holds every word of 28 questions"


@pytest.mark.parametrize(
    ("split", "license", "origin"),
    [
        ("train", "made by macnet", "generated"),
        ("train", "Creative Commons", "CLEVR"),
        ("valB", "Creative Commons", "CoGenT"),
        ("valB", "made by macnet", "generated"),
    ],
)
def test_a_dataset_tells_its_origin(
    world: Path, tmp_path: Path, split: str, license: str, origin: str
) -> None:
    vocabulary = pack_vocabulary(world, "train", tmp_path / "cache")
    (world / "images/train").rename(world / "images" / split)
    for path in (world / "images" / split).iterdir():
        path.rename(path.with_name(path.name.replace("train", split)))
    text = (world / "questions/CLEVR_train_questions.json").read_text()
    for old, new in (("CLEVR_train", f"CLEVR_{split}"), ('"train"', f'"{split}"')):
        text = text.replace(old, new)
    text = text.replace("made by macnet", license)
    (world / f"questions/CLEVR_{split}_questions.json").write_text(text)
    data = pack_split(find_split(world, split), tmp_path / "cache", vocabulary, size=(24, 16))
    assert data.metadata["origin"] == origin


def test_peoples_questions_are_of_no_family(world: Path, tmp_path: Path) -> None:
    keys = ("image_index", "image_filename", "split", "question", "answer")
    records = [{key: record[key] for key in keys} for record in questions(world)]
    (tmp_path / "humans").mkdir()
    path = tmp_path / "humans/CLEVR-Humans-train.json"
    path.write_text(json.dumps({"info": {"license": "none"}, "questions": records}))
    vocabulary = pack_vocabulary(tmp_path / "humans", "train", tmp_path / "cache")
    split = find_split(tmp_path / "humans", "train", world)
    data = pack_split(split, tmp_path / "cache", vocabulary, size=(24, 16))
    assert data.metadata["origin"] == "CLEVR-Humans"
    assert (data.questions.families == UNKNOWN).all()
    assert (data.questions.answers != UNKNOWN).all()


def test_pictures_of_another_size_are_squeezed(made: Path, tmp_path: Path) -> None:
    data = packed(made, tmp_path, size=(20, 24))
    file = made / "images/train/CLEVR_train_000003.png"
    resized = Image.open(file).convert("RGB").resize((20, 24), Image.Resampling.BICUBIC)
    assert np.array_equal(data.images[3], np.asarray(resized))


def test_what_was_packed_is_opened_and_what_changed_is_packed_again(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = packed(world, cache)
    with monkeypatch.context() as patch:
        patch.setattr(packing, "read_image", None)
        patch.setattr(clevr_json, "read_question_file", None)
        again = packed(world, cache)
    assert np.array_equal(first.images, again.images)

    picture = world / "images/train/CLEVR_train_000002.png"
    Image.new("RGBA", (WIDTH, HEIGHT), (9, 8, 7, 255)).save(picture)
    other = packed(world, cache)
    assert (other.images[2] == [9, 8, 7]).all()
    assert other.metadata["packs"][0] != first.metadata["packs"][0]
    assert other.metadata["packs"][1] == first.metadata["packs"][1]

    path = world / "questions/CLEVR_train_questions.json"
    path.write_text(path.read_text().replace("What", "what"))
    assert packed(world, cache).metadata["packs"][1] != first.metadata["packs"][1]


@pytest.mark.usefixtures("warm_workers")
def test_workers_pack_the_same_bytes(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "CHUNK", 2)
    monkeypatch.setattr(packing, "MIN_IMAGES_FOR_WORKERS", 0)
    paths = sorted((made / "images/train").iterdir())
    alone, shared = (
        packing.pack_images(paths, paths[0].parent, 20, 20, tmp_path / f"{n}", n, formats.CLEVR)
        for n in (0, 2)
    )
    assert alone.arrays["images"].tobytes() == shared.arrays["images"].tobytes()


def test_a_missing_image_is_named_or_its_questions_left_out(world: Path, tmp_path: Path) -> None:
    (world / "images/train/CLEVR_train_000004.png").unlink()
    with pytest.raises(InputError, match=r"6 of 7 images are there, 1 .*CLEVR_train_000004\.png"):
        packed(world, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("images-*"))  # it was said before any was decoded
    vocabulary = pack_vocabulary(world, "train", tmp_path / "cache")
    data = pack_split(
        find_split(world, "train"),
        tmp_path / "cache",
        vocabulary,
        size=(WIDTH, HEIGHT),
        skip_missing=True,
    )
    asked = [n for n, record in enumerate(questions(world)) if record["image_index"] != 4]
    assert data.selected.tolist() == asked
    assert data.metadata["left_out"] == 4
    batch = next(Batches(data, images=6, questions=4, seed=1))
    assert sorted(batch.question_index.tolist()) == asked
    for number, image in zip(batch.question_index[::4].tolist(), batch.images, strict=True):
        name = str(questions(world)[number]["image_filename"])
        picture = np.asarray(Image.open(world / "images/train" / name).convert("RGB"))
        assert np.array_equal(image, picture)


def test_a_truncated_picture_is_named_and_nothing_is_left(world: Path, tmp_path: Path) -> None:
    picture = world / "images/train/CLEVR_train_000005.png"
    os.truncate(picture, picture.stat().st_size // 2)
    with pytest.raises(InputError, match=r"CLEVR_train_000005\.png: it cannot be read"):
        packed(world, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("images-*"))
    assert not list((tmp_path / "cache").glob(".*.part"))


def test_the_words_are_those_of_the_training_split(world: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    train = pack_vocabulary(world, "train", cache)
    assert pack_vocabulary(world, "val", cache) == train
    assert train == Vocabulary.build(str(record["question"]) for record in questions(world))
    often = pack_vocabulary(world, "train", cache, min_count=5)
    assert len(often) < len(train)
    train.save(tmp_path / "words.json")
    (world / "questions/CLEVR_train_questions.json").unlink()
    assert pack_vocabulary(world, "val", cache, tmp_path / "words.json") == train
    with pytest.raises(InputError, match=r"no split 'train'; it has test, val; .* `vocabulary`"):
        pack_vocabulary(world, "val", cache)


def test_a_vocabulary_that_grows_moves_no_id(made: Path, tmp_path: Path) -> None:
    known = Vocabulary.build(["what is there ?"], "clevr-iep")
    known.save(tmp_path / "words.json")
    grown = pack_vocabulary(made, "train", tmp_path, tmp_path / "words.json", min_count=3)
    assert grown.words[: len(known)] == known.words
    assert grown.tokenizer == "clevr-iep"
    assert len(grown) > len(known)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ((), "it says that its split is 'val', not 'train'"),
        (("info",), "question 0: its \"split\" is 'val', not 'train'"),
        (
            ("info", "questions"),
            "question 0: it is about 'CLEVR_val_000000.png', which is not of 'train'",
        ),
    ],
)
def test_questions_of_another_split_are_refused(
    world: Path, tmp_path: Path, changed: Sequence[str], said: str
) -> None:
    """Wherever a file tells which split it is: of itself, of a question, or of an image."""
    val, train = (world / f"questions/CLEVR_{name}_questions.json" for name in ("val", "train"))
    content = json.loads(val.read_text())
    for record in (content["info"], *content["questions"]):
        if ("info" if record is content["info"] else "questions") in changed:
            record["split"] = "train"
    train.write_text(json.dumps(content))
    split, words = find_split(world, "train"), Vocabulary.build(["one"])
    with pytest.raises(InputError, match=re.escape(f"{train}: {said}")):
        pack_split(split, tmp_path, words, size=(WIDTH, HEIGHT))
    with pytest.raises(InputError, match=re.escape(said)):
        pack_vocabulary(world, "val", tmp_path)


@pytest.mark.parametrize("told", ["valA", "val"])
def test_a_condition_need_not_be_told(world: Path, told: str) -> None:
    """Which of the two the release of CoGenT says in its `split` is not known here."""
    file = world / "questions/CLEVR_val_questions.json"
    content = json.loads(file.read_text().replace("CLEVR_val_", "CLEVR_valA_"))
    content["info"]["split"] = told
    for question in content["questions"]:
        question["split"] = told
    file.write_text(json.dumps(content))
    assert read_question_file(file, split="valA").questions
    with pytest.raises(InputError, match="not 'valB'" if told == "valA" else "not of 'valB'"):
        read_question_file(file, split="valB")


# --- the community's files -------------------------------------------------------------------


def features(path: Path, shape: tuple[int, ...] = (7, 6, 2, 3)) -> np.ndarray:
    values = np.random.default_rng(1).random(shape, np.float32)
    with h5py.File(path, "w") as file:
        file["features"] = values
    return values


def test_features_are_packed_in_half_precision(made: Path, tmp_path: Path) -> None:
    values = features(tmp_path / "train.h5")
    vocabulary = pack_vocabulary(made, "train", tmp_path)
    split = find_split(made, "train", tmp_path / "train.h5")
    data = pack_split(split, tmp_path, vocabulary, size=(WIDTH, HEIGHT))
    batch = next(Batches(data, images=7, questions=4, seed=None))
    assert batch.images.shape == (7, 6, 2, 3)
    assert np.array_equal(batch.images, values.astype(np.float16))


def test_features_of_another_split_are_refused(made: Path, tmp_path: Path) -> None:
    features(tmp_path / "val.h5")
    with h5py.File(tmp_path / "val.h5", "r+") as file:
        file.attrs["split"] = "val"  # as `macnet extract` writes it
    vocabulary = pack_vocabulary(made, "train", tmp_path)
    split = find_split(made, "train", tmp_path / "val.h5")
    with pytest.raises(InputError, match=r"val\.h5: these are features of 'val', not of train"):
        pack_split(split, tmp_path, vocabulary, size=(WIDTH, HEIGHT))


def test_features_of_too_few_images_are_refused(made: Path, tmp_path: Path) -> None:
    features(tmp_path / "train.h5", (5, 6, 2, 3))
    vocabulary = pack_vocabulary(made, "train", tmp_path)
    split = find_split(made, "train", tmp_path / "train.h5")
    with pytest.raises(InputError, match=r"train\.h5: 5 of 7 images are there"):
        pack_split(split, tmp_path, vocabulary, size=(WIDTH, HEIGHT))


def test_features_beyond_half_precision_are_refused(made: Path, tmp_path: Path) -> None:
    features(tmp_path / "train.h5")
    with h5py.File(tmp_path / "train.h5", "r+") as file:
        file["features"][3, 1, 1, 1] = 1e5
    split = find_split(made, "train", tmp_path / "train.h5")
    with pytest.raises(InputError, match=r"train\.h5: row 3 "):
        packing.pack_features(split.images, tmp_path)
    assert not list(tmp_path.glob("features-*"))


def test_the_communitys_questions_are_packed_as_they_are(made: Path, tmp_path: Path) -> None:
    ours = packed(made, tmp_path)
    write_questions_h5(tmp_path / "questions.h5", ours.questions)
    write_vocab_json(tmp_path / "vocab.json", ours.vocabulary)
    features(tmp_path / "features.h5")
    split = find_split(tmp_path / "questions.h5", "train", tmp_path / "features.h5")
    vocabulary = Vocabulary.load(tmp_path / "vocab.json")
    theirs = pack_split(split, tmp_path, vocabulary, size=(WIDTH, HEIGHT))
    for name in vars(ours.questions):
        assert np.array_equal(getattr(theirs.questions, name), getattr(ours.questions, name)), name
    assert (ours.metadata["origin"], theirs.metadata["origin"]) == ("generated", "unknown")
    with pytest.raises(InputError, match=r"questions\.h5: it holds numbers; give the vocab\.json"):
        pack_vocabulary(tmp_path / "questions.h5", "train", tmp_path)
