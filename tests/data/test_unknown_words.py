"""What is read of a question with unknown words: by `ask`, and by whatever asks a whole dataset."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from macnet.data.formats import CLEVR_HDF5, CLEVR_HUMANS
from macnet.data.pack import pack_questions
from macnet.data.question_arrays import QuestionArrays
from macnet.data.splits import SplitFiles
from macnet.data.unknown_words import UnknownWord, encode_known, replace_unknown, split_words
from macnet.data.vocab import END, START, UNK, Vocabulary
from macnet.explain.model import parse_question

WORDS = Vocabulary.build(["Is the sphere left of the cube ?", "What color is it; red"])
LEARNED = replace(WORDS, unk_learned=True)
WRAPPED = Vocabulary.build(["is the sphere red"], "clevr-iep")


@pytest.mark.parametrize(
    ("text", "never", "met"),
    [
        ("is the sphere red", "is the sphere red", "is the sphere red"),
        ("is the wug red", "is the red", "is the <UNK> red"),
        ("what colour is the shpere", "what color is the sphere", "what color is the sphere"),
        ("please, wug the 'cube'", "the cube", "<UNK> <UNK> the cube"),
        ("wug <NULL>", "", "<UNK> <UNK>"),
        ("— !", "", ""),
    ],
)
def test_an_unknown_word_is_what_was_meant_or_unk_where_that_was_learned_or_nothing(
    text: str, never: str, met: str
) -> None:
    for words, expected in ((WORDS, never), (LEARNED, met)):
        ids = [words.ids.get(word, UNK) for word in expected.split()]
        assert encode_known(text, words) == (ids or [UNK]), "a question it stays"
        assert list(replace_unknown(split_words(text, words), words).words) == expected.split()


def test_nothing_but_wrapping_is_no_question() -> None:
    assert encode_known("wug wug", WRAPPED) == [UNK]
    learned = replace(WRAPPED, unk_learned=True)
    assert encode_known("wug wug", learned) == [START, UNK, UNK, END]


def test_a_person_is_told_what_stands_for_a_word() -> None:
    asked = parse_question("is the wug red", LEARNED)
    assert asked.words == ("is", "the", "<UNK>", "red")
    assert asked.unknown == (UnknownWord("wug", "<UNK>"),)


def test_a_dataset_is_read_as_a_person_is(tmp_path: Path) -> None:
    texts = ("what colour is the shpere", "please, is the “wug” red", "cubs; is it red?")
    for words in (WORDS, LEARNED):
        split = questions_of(tmp_path / "q.json", *texts)
        asked = [parse_question(text, words).words for text in texts]
        expected = [[words.ids.get(word, UNK) for word in of_text] for of_text in asked]
        packed = pack_questions(split, words, tmp_path / "cache", training=False)
        assert rows(QuestionArrays(**packed.arrays)) == expected


def test_a_vocabulary_says_whether_unk_was_learned() -> None:
    for words in (WORDS, LEARNED):
        assert Vocabulary.from_record(json.loads(json.dumps(words.to_record()))) == words
    assert "unk_learned" not in WORDS.to_record(), "by which older packs and runs are recognised"
    assert LEARNED.extended(["wug"], min_count=1).unk_learned


# --- packs -----------------------------------------------------------------------------------


def questions_of(path: Path, *texts: str) -> SplitFiles:
    metadata = {"image_index": 0, "image_filename": "CLEVR_val_000000.png", "split": "val"}
    records = [{**metadata, "question": text, "answer": "no"} for text in texts]
    path.write_text(json.dumps({"info": {}, "questions": records}))
    return SplitFiles("val", path, path.parent, CLEVR_HUMANS)


def rows(questions: QuestionArrays) -> list[list[int]]:
    return [row[:n].tolist() for row, n in zip(questions.tokens, questions.lengths, strict=True)]


def test_a_split_is_packed_once_to_learn_from_and_once_to_be_asked(tmp_path: Path) -> None:
    texts = ("is the wug red", "is the shpere red", "wug")
    split = questions_of(tmp_path / "q.json", *texts)
    packs = {
        (learned, learn): pack_questions(split, words, tmp_path / "cache", training=learn)
        for learned, words in ((False, WORDS), (True, LEARNED))
        for learn in (True, False)
    }
    assert len({pack.folder for pack in packs.values()}) == 4
    for (learned, learn), pack in packs.items():
        words = LEARNED if learned else WORDS
        expected = [words.encode(t) if learn else encode_known(t, words) for t in texts]
        assert rows(QuestionArrays(**pack.arrays)) == expected
        assert pack.metadata["words"].startswith(
            "3 of 3 questions hold words that the vocabulary la"
        )


def test_without_unknown_words_it_is_one_pack(tmp_path: Path) -> None:
    split = questions_of(tmp_path / "q.json", "is the sphere red")
    packs = [pack_questions(split, WORDS, tmp_path / "cache", training=on) for on in (False, True)]
    assert packs[0].folder == packs[1].folder
    assert packs[0].metadata["recipe"].keys() == {
        *("format", "kind", "vocabulary", "source", "dataset", "question_types")
    }


@pytest.mark.parametrize("words", [WRAPPED, replace(WRAPPED, unk_learned=True)])
def test_where_the_text_is_lost_unk_is_left_out_unless_it_was_learned(
    words: Vocabulary, tmp_path: Path
) -> None:
    asked = [words.encode(text) for text in ("the wug is red", "the red sphere is", "wug a b c")]
    with h5py.File(tmp_path / "q.h5", "w") as file:
        file["questions"] = np.array(asked, np.int32)
        file["image_idxs"] = np.zeros(3, np.int32)
    split = SplitFiles("val", tmp_path / "q.h5", tmp_path, CLEVR_HDF5)
    found = rows(QuestionArrays(**pack_questions(split, words, tmp_path, training=False).arrays))
    if words.unk_learned:
        assert found == asked
    else:
        assert found == [words.encode("the is red"), asked[1], [UNK]]
