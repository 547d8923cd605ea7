"""A dataset that is nothing like CLEVR: thousands of answers, no programs, images of any kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from macnet.checkpoint import load_trained
from macnet.cli import main
from macnet.data.batches import Batches
from macnet.data.extract import extract
from macnet.data.formats import CLEVR, FORMATS, VQA_JSON, DatasetFormat
from macnet.data.pack import pack
from macnet.data.question_arrays import OUT_OF_VOCABULARY, UNKNOWN
from macnet.data.question_texts import QuestionText, QuestionTexts
from macnet.data.resnet import ResNet101
from macnet.data.sources import DiskDataset, LoadOptions, reopen
from macnet.data.splits import find_split
from macnet.data.vocab import MAX_ANSWERS, SPECIALS, Vocabulary
from macnet.errors import InputError
from macnet.evaluation.accuracy import measure
from macnet.evaluation.predict import Predictor
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from tiny_training import CALM, plan

ANSWERS = 3000
NAMES = ["z.png", "a b/ü (1).jpg", "a b/2.jpeg", "deep/er/x.gif", "B.webp", "wide.bmp", "tall.tiff"]
SIZE = (12, 8)


def write_split(root: Path, split: str, questions: Sequence[Mapping[str, Any]]) -> None:
    (root / f"{split}.json").write_text(json.dumps(questions))


def asked(image: int, text: str, answer: str | None = None, **more: str) -> dict[str, Any]:
    return {"image": NAMES[image], "question": text, "answer": answer, **more}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Images of odd names and sizes, 6,001 questions for training, and two more splits."""
    root = tmp_path / "data"
    for i, name in enumerate(NAMES):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L" if i % 2 else "RGB", (5 + 7 * i, 40 - 5 * i), 30 * i).save(root / name)
    train = [
        asked(i % 7, f"what is number {i % ANSWERS}", f"answer {i % ANSWERS}") for i in range(6000)
    ]
    write_split(root, "train", [*train, asked(0, "what now", "answer 7")])
    val = [asked(5, "what is number 7", "answer 7"), asked(1, "what is it", "no such answer")]
    write_split(root, "val", val)
    write_split(root, "what is asked", [asked(3, "what is it")])
    return root


def test_three_thousand_answers_are_packed_and_batched(root: Path, tmp_path: Path) -> None:
    data = pack(root, tmp_path / "cache", size=SIZE)
    answers = data.vocabulary.answers
    assert (len(answers), answers[0]) == (ANSWERS, "answer 7")  # the most frequent,
    assert list(answers[1:]) == sorted(answers[1:])  # then by code point
    assert data.format == VQA_JSON
    assert data.metadata["format"] == data.metadata["origin"] == "vqa-json"
    spec = data.spec()
    assert (spec.answers, spec.question_types) == (ANSWERS, 0)
    seen = set()
    batches = Batches(data, images=7, questions=100, seed=3)
    for _ in range(batches.steps):
        batch = next(batches)
        assert batch.programs.shape[1] == 0
        assert (batch.types == UNKNOWN).all()
        for row, number in enumerate(batch.question_index.tolist()):
            if number != UNKNOWN:
                seen.add(number)
                wanted = 7 if number == 6000 else number % ANSWERS
                assert answers[batch.answers[row]] == f"answer {wanted}"
                image = 0 if number == 6000 else number % 7
                assert (batch.images[row // 100].int() - shade(image)).abs().max() <= 8
    assert seen == set(range(6001))


def shade(image: int) -> torch.Tensor:
    color = 30 * image
    return torch.tensor([color, 0, 0] if image % 2 == 0 else [color] * 3)


def test_ids_of_images_are_places_in_the_sorted_names_of_a_split(
    root: Path, tmp_path: Path
) -> None:
    train, val = (pack(root, tmp_path, split=split, size=SIZE) for split in ("train", "val"))
    names = sorted(NAMES)
    assert train.questions.images[:7].tolist() == [names.index(name) for name in NAMES]
    assert val.questions.images.tolist() == [1, 0]
    assert (val.images[val.image_rows[0]] == 150).all()


def test_an_answer_out_of_the_vocabulary_counts_as_wrong(root: Path, tmp_path: Path) -> None:
    val = pack(root, tmp_path, split="val", size=SIZE)
    assert val.answers.tolist() == [0, OUT_OF_VOCABULARY]
    results = measure(val, np.array([0, 0]))
    assert (results.overall.correct, results.overall.total) == (1, 2)
    assert results.confusion.total() == 1
    unlabelled = pack(root, tmp_path, split="what is asked", size=SIZE)
    assert unlabelled.answers.tolist() == [UNKNOWN]


def test_question_types_are_collected_from_the_training_split(root: Path, tmp_path: Path) -> None:
    write_split(root, "train", [asked(0, "is it", "yes", type=t) for t in ("b", "a", "c", "c")])
    write_split(root, "val", [asked(1, "is it", "yes", type=t) for t in ("a", "new", "c")])
    train, val = (pack(root, tmp_path, split=split, size=SIZE) for split in ("train", "val"))
    for data in (train, val):
        assert data.format.question_types == ("c", "a", "b")
        assert data.metadata["question_types"] == ["c", "a", "b"]
        assert data.spec().question_types == 3
    assert train.questions.types.tolist() == [2, 1, 0, 0]
    assert val.questions.types.tolist() == [1, UNKNOWN, 0]
    assert VQA_JSON.question_types == ()


def test_a_dataset_is_opened_again_from_its_metadata(root: Path, tmp_path: Path) -> None:
    write_split(root, "train", [asked(0, "is it", "yes", type=t) for t in ("b", "a")])
    options = LoadOptions(tmp_path / "cache", SIZE)
    words = Vocabulary((*SPECIALS, "is"), answers=("no", "yes"))
    first = DiskDataset(root, "train").open(words, options)
    write_split(root, "train", [asked(0, "is it", "yes", type=t) for t in ("b", "b")])
    source, subsets = reopen(json.loads(json.dumps(first.metadata)))
    assert subsets == []
    assert isinstance(source, DiskDataset)
    again = source.open(words, options)
    assert again.format == first.format  # though "a" is no longer there
    assert again.questions.types.tolist() == [1, 1]


def test_the_images_may_lie_elsewhere(root: Path, tmp_path: Path) -> None:
    (tmp_path / "questions").mkdir()
    (root / "val.json").rename(tmp_path / "questions/val.json")
    (root / "train.json").rename(tmp_path / "questions/train.json")
    questions, cache = tmp_path / "questions", tmp_path / "cache"
    with pytest.raises(
        InputError, match=r"questions: 0 of 2 images are there, 2 are missing: a b/ü"
    ):
        pack(questions, cache, split="val", size=SIZE)
    data = pack(questions, cache, split="val", size=SIZE, images=root)
    assert (data.images[data.image_rows[0]] == 150).all()
    (root / NAMES[5]).unlink()
    data = pack(questions, cache, split="val", size=SIZE, images=root, skip_missing=True)
    assert (len(data), data.metadata["left_out"]) == (1, 1)


def test_features_are_extracted_by_the_same_ids(root: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(ResNet101(2).state_dict(), tmp_path / "weights.pth")
    out = tmp_path / "val.h5"
    file = extract(root, out, split="val", stage=2, weights=tmp_path / "weights.pth", device="cpu")
    assert (file.shape, file.split) == ((2, 512, 28, 28), "val")
    data = pack(root, tmp_path, split="val", images=out)
    assert data.images.shape == (2, 28, 28, 512)
    assert data.image_rows.tolist() == [1, 0]
    write_split(root, "val", [asked(i, "what is it", "answer 7") for i in range(3)])
    with pytest.raises(InputError, match=r"features of 2 images, but val\.json names 3; extract"):
        pack(root, tmp_path, split="val", images=out)


WRONG: dict[str, tuple[Any, str]] = {
    "no list": ({"questions": []}, "it is not a list of questions"),
    "nothing": ([], "it holds no questions"),
    "no words": ([asked(0, " ", "yes")], 'question 0: its "question" has no words'),
    "no image": ([{"question": "is it"}], 'question 0: it has no "image"'),
    "a number": ([asked(0, "is it", "yes"), 7], "question 1: expected object, got int"),
    "an answer that is a number": ([asked(0, "is", 3)], '"answer": expected str'),  # type: ignore[arg-type]
    "labels for some": (
        [asked(0, "is it", "yes"), asked(0, "is it")],
        'question 1: of "answer" it has none, those before it have one',
    ),
    "types for some": (
        [asked(0, "is it", type="b"), asked(0, "is it")],
        'question 1: of "type" it has none, those before it have one',
    ),
    **{
        f"image {name!r}": (
            [{"image": name, "question": "is it"}],
            'question 0: its "image" is ',
        )
        for name in ("", "/etc/x.png", "../x.png", "a/../../x.png", "a\0.png")
    },
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str, root: Path, tmp_path: Path) -> None:
    content, expected = WRONG[case]
    (root / "train.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as error:
        pack(root, tmp_path / "cache", size=SIZE)
    assert str(error.value).startswith(f"{root / 'train.json'}: ")
    assert expected in str(error.value)


def test_without_training_questions_a_vocabulary_is_needed(root: Path, tmp_path: Path) -> None:
    (root / "train.json").unlink()
    with pytest.raises(InputError, match=r"no split 'train'; it has val, what is asked; .*`vocabu"):
        pack(root, tmp_path, split="val", size=SIZE)
    words = Vocabulary((*SPECIALS, "what", "is", "it"), answers=("answer 7", "a"))
    data = pack(root, tmp_path, split="val", size=SIZE, vocabulary=words)
    assert data.answers.tolist() == [0, OUT_OF_VOCABULARY]
    words.save(tmp_path / "words.json")
    again = pack(root, tmp_path, split="val", size=SIZE, vocabulary=tmp_path / "words.json")
    assert again.vocabulary == words
    with pytest.raises(InputError, match="`tokenizer` is mac, but the vocabulary says itself"):
        pack(root, tmp_path, split="val", vocabulary=words, tokenizer="mac")
    (root / "val.json").unlink()
    unlabelled = pack(root, tmp_path, split="what is asked", size=SIZE, vocabulary=words)
    assert unlabelled.answers.tolist() == [UNKNOWN]
    (root / "what is asked.json").rename(root / "train.json")
    with pytest.raises(InputError, match="its questions have no answers; give a `vocabulary`"):
        pack(root, tmp_path, size=SIZE)
    with pytest.raises(InputError, match="`min_count` is 0"):
        pack(root, tmp_path, min_count=0)


def test_answers_beyond_the_limit_are_out_of_the_vocabulary(root: Path, tmp_path: Path) -> None:
    many = MAX_ANSWERS + 10
    write_split(root, "train", [asked(0, "what is it", f"{i:06}") for i in range(many)])
    data = pack(root, tmp_path, size=SIZE)
    assert len(data.vocabulary.answers) == MAX_ANSWERS == 32_767
    assert data.answers[:MAX_ANSWERS].tolist() == list(range(MAX_ANSWERS))
    assert data.answers[MAX_ANSWERS:].tolist() == [OUT_OF_VOCABULARY] * 10
    assert next(Batches(data, images=1, questions=many, seed=None)).answers.max() == MAX_ANSWERS - 1


def test_the_command_packs_it(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["pack", str(root), str(tmp_path / "cache"), "--split", "val", "--size", "12x8"]) == 0
    )
    assert "2 questions about 2 images of 12x8x3 ready" in capsys.readouterr().out


class Lines(DatasetFormat):
    """A user's own: "image question answer" on each line."""

    def read(self, path: Path, split: str) -> QuestionTexts:
        rows = [line.split() for line in path.read_text().splitlines()]
        names = sorted({row[0] for row in rows})
        texts = (QuestionText(" ".join(row[1:-1]), names.index(row[0]), row[-1]) for row in rows)
        return QuestionTexts(texts, "lines", names)


def test_a_user_can_add_a_format(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.txt").write_text("z.png is it yes\nB.webp is it no\n")
    with pytest.raises(InputError, match="not a dataset; it has neither"):
        find_split(tmp_path, "train", root)
    monkeypatch.setitem(FORMATS, "lines", Lines("lines", "{split}.txt", answers=("no", "yes")))
    data = pack(tmp_path, tmp_path / "cache", size=SIZE, images=root)
    assert data.answers.tolist() == [1, 0]
    assert data.questions.images.tolist() == [1, 0]
    assert data.vocabulary.words[len(SPECIALS) :] == ("is", "it")


def test_two_formats_in_one_folder_are_refused(root: Path) -> None:
    (root / "CLEVR-Humans-train.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"both clevr-humans \(CLEVR-Hum.*vqa-json \(train\.json\)"
    ):
        find_split(root, "train", root)


@pytest.mark.parametrize(
    ("format", "split", "training", "validation"),
    [
        (CLEVR, "train", "train", "val"),
        (CLEVR, "valB", "trainA", "val"),
        (CLEVR, "trainA", "trainA", "valA"),
        (VQA_JSON, "val", "train", "val"),
        (VQA_JSON, "train2014", "train2014", "val2014"),
        (VQA_JSON, "odd one", "train", "val"),
    ],
)
def test_which_splits_belong_together(
    format: DatasetFormat, split: str, training: str, validation: str
) -> None:
    assert format.training_split(split) == training
    assert format.validation_split(split) == validation
    assert replace(format, question_types=("a",)).training_split(split) == training


def test_a_network_is_trained_and_evaluated_on_it(root: Path, tmp_path: Path) -> None:
    """Dark and bright images, and answers of which none is CLEVR's."""
    for name, color in (("dark.jpg", 10), ("bright.jpg", 240)):
        Image.new("RGB", (16, 16), (color,) * 3).save(root / name)
    looks = {"dark.jpg": "like a night", "bright.jpg": "like a day"}
    questions = [
        {"image": image, "question": text, "answer": answer}
        for image, answer in looks.items()
        for text in ("how does it look", "what is it like", "tell me")
    ]
    write_split(root, "train", questions * 4)
    write_split(root, "val", [*questions, {**questions[0], "answer": "like nothing known"}])
    train, val = (pack(root, tmp_path, split=split, size=(16, 16)) for split in ("train", "val"))
    made = plan(model=CALM, images=2, questions=3, epochs=20)
    run = Trainer(tmp_path / "run", made, TrainingData(train, val), device=torch.device("cpu"))
    run.train()
    trained = load_trained(tmp_path / "run")
    assert trained.vocabulary.answers == ("like a day", "like a night")
    with Predictor(val) as predictor:
        results = measure(val, *predictor(trained.system, trained.network()))
    assert (results.overall.correct, results.overall.total) == (6, 7)
