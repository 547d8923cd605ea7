"""The community's question files: round trips, real questions, and what is wrong with others."""

import errno
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.clevr.program import arity, to_prefix
from macnet.data.clevr_h5 import (
    answers_from_h5,
    answers_to_h5,
    check_ids,
    open_hdf5,
    read_questions_h5,
    write_questions_h5,
    write_vocab_json,
)
from macnet.data.question_arrays import (
    TYPES,
    UNKNOWN,
    QuestionArrays,
    TokenizedQuestion,
    collect,
    program_ids,
)
from macnet.data.vocab import ANSWERS, PROGRAM_TOKENS, UNK, Vocabulary
from macnet.errors import InputError
from real_clevr import real_clevr

VOCABULARY = Vocabulary.build(["How many cubes are there", "Is it red"], "clevr-iep")
COLUMNS = ("tokens", "lengths", "answers", "types", "programs", "images", "families")

Columns = dict[str, Any]


def assert_same(a: QuestionArrays, b: QuestionArrays) -> None:
    for name in COLUMNS:
        first, second = getattr(a, name), getattr(b, name)
        assert first.dtype == second.dtype, name
        np.testing.assert_array_equal(first, second, name)


# --- round trips -----------------------------------------------------------------------------


@st.composite
def prefix_forms(draw: st.DrawFn) -> list[str]:
    """Programs that make no sense to CLEVR, but are well formed and end in an answer."""
    tokens = [draw(st.sampled_from(TYPES))]
    wanted = arity(tokens[0])
    while wanted:
        choices = [t for t in PROGRAM_TOKENS[4:] if len(tokens) < 12 or t == "scene"]
        tokens.append(draw(st.sampled_from(choices)))
        wanted += arity(tokens[-1].partition("[")[0]) - 1
    return tokens


ROWS = st.lists(
    st.builds(
        TokenizedQuestion,
        tokens=st.lists(st.integers(1, len(VOCABULARY) - 1), min_size=1, max_size=12),
        answer=st.integers(UNKNOWN, len(ANSWERS) - 1),
        program=st.just(b"") | prefix_forms().map(program_ids),
        image=st.integers(0, 2**31 - 1),
        family=st.integers(0, 89),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, families=st.booleans())
def test_written_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[TokenizedQuestion], families: bool
) -> None:
    path = tmp_path_factory.mktemp("h5") / "questions.h5"
    rows = [
        row._replace(
            family=row.family if families else UNKNOWN,
            type=TYPES.index(PROGRAM_TOKENS[row.program[0]]) if row.program else UNKNOWN,
        )
        for row in rows
    ]
    questions = collect(rows)
    write_questions_h5(path, questions)
    assert_same(read_questions_h5(path, VOCABULARY), questions)


def test_what_is_written_is_what_the_community_reads(tmp_path: Path) -> None:
    rows = [
        TokenizedQuestion([1, 8, 2], ANSWERS.index("10"), program_ids(["count", "scene"]), 7, 89),
        TokenizedQuestion(
            [1, 9, 8, 7, 2], ANSWERS.index("yes"), program_ids(["exist", "unique", "scene"]), 0, 5
        ),
    ]
    path = tmp_path / "questions.h5"
    write_questions_h5(path, collect(rows))
    with h5py.File(path) as file:
        found = {name: file[name][...].tolist() for name in file}
        assert {file[name].dtype for name in file} == {np.dtype(np.int32)}
    count, exist, scene, unique = (
        PROGRAM_TOKENS.index(t) for t in ["count", "exist", "scene", "unique"]
    )
    assert found == {
        "questions": [[1, 8, 2, 0, 0], [1, 9, 8, 7, 2]],
        "image_idxs": [7, 0],
        "orig_idxs": [0, 1],
        "programs": [[1, count, scene, 2, 0], [1, exist, unique, scene, 2]],
        "answers": [6, 31],  # as in the published vocab.json
        "question_families": [89, 5],
    }
    write_questions_h5(tmp_path / "again.h5", collect(rows))
    assert (tmp_path / "again.h5").read_bytes() == path.read_bytes()


def test_a_family_that_is_unknown_cannot_be_written(tmp_path: Path) -> None:
    rows = [TokenizedQuestion([1, 8, 2], 1, b"", 7, 3), TokenizedQuestion([1, 8, 2], 1, b"", 7)]
    write_questions_h5(tmp_path / "questions.h5", collect(rows))
    found = read_questions_h5(tmp_path / "questions.h5", VOCABULARY)
    assert found.families.tolist() == [UNKNOWN, UNKNOWN]


def test_a_test_split_has_neither_programs_nor_answers(tmp_path: Path) -> None:
    path = tmp_path / "questions.h5"
    write_questions_h5(path, collect([TokenizedQuestion([1, 8, 2], UNKNOWN, b"", 7)]))
    with h5py.File(path) as file:
        assert set(file) == {"questions", "image_idxs", "orig_idxs"}
    questions = read_questions_h5(path, VOCABULARY)
    assert questions.answers.tolist() == questions.types.tolist() == [UNKNOWN]
    assert questions.programs.shape == (1, 0)


def test_the_vocabulary_beside_it(tmp_path: Path) -> None:
    write_vocab_json(tmp_path / "vocab.json", VOCABULARY)
    assert Vocabulary.load(tmp_path / "vocab.json") == VOCABULARY
    record = json.loads((tmp_path / "vocab.json").read_text())
    assert record["question_token_to_idx"]["How"] == 4
    assert record["answer_token_to_idx"]["10"] == 6


def test_real_questions_as_the_public_code_would_store_them(tmp_path: Path) -> None:
    """Encoded here by hand, from the contract, and with the published vocabulary."""
    published = json.loads(real_clevr("clevr_vocab.json").read_bytes())
    path = real_clevr("clevr_val100/questions/CLEVR_val_questions.json")
    asked = json.loads(path.read_bytes())["questions"]
    words, tokens = published["question_token_to_idx"], published["program_token_to_idx"]
    columns: Columns = {
        "questions": np.zeros((len(asked), 46), np.int32),
        "programs": np.zeros((len(asked), 27), np.int32),
        "image_idxs": [q["image_index"] for q in asked],
        "orig_idxs": [q["question_index"] for q in asked],
        "question_families": [q["question_family_index"] for q in asked],
        "answers": [published["answer_token_to_idx"][q["answer"]] for q in asked],
        "types": np.arange(len(asked)),  # film's, which mean nothing
    }
    for i, question in enumerate(asked):
        text = question["question"].replace(";", " ;").replace("?", "")
        ids = [1, *(words[word] for word in text.split(" ")), 2]
        columns["questions"][i, : len(ids)] = ids
        ids = [1, *(tokens[token] for token in to_prefix(question["program"])), 2]
        columns["programs"][i, : len(ids)] = ids
    write(tmp_path / "val.h5", columns)

    vocabulary = Vocabulary.load(real_clevr("clevr_vocab.json"))
    questions = read_questions_h5(tmp_path / "val.h5", vocabulary)
    expected = collect(
        TokenizedQuestion(
            vocabulary.encode(q["question"]),
            ANSWERS.index(q["answer"]),
            program_ids(to_prefix(q["program"])),
            q["image_index"],
            q["question_family_index"],
            TYPES.index(q["program"][-1]["function"]),
        )
        for q in asked
    )
    assert_same(questions, expected)
    assert [TYPES[i] for i in questions.types] == [q["program"][-1]["function"] for q in asked]


# --- ids -------------------------------------------------------------------------------------


def test_answers_to_and_from_the_community() -> None:
    here = np.arange(-1, 28, dtype=np.int16)
    there = answers_to_h5(here)
    assert there.dtype == np.int32
    assert there.tolist() == [UNK, *range(4, 32)]
    assert answers_from_h5(there).dtype == np.int16
    assert answers_from_h5(there).tolist() == here.tolist()
    assert answers_from_h5(np.arange(6, dtype=np.uint8)).tolist() == [-1, -1, -1, -1, 0, 1]


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64])
def test_ids_outside_the_vocabulary(dtype: type) -> None:
    ids: np.ndarray = np.arange(12, dtype=dtype).reshape(4, 3)
    check_ids(ids, 12, "x.h5: questions")
    check_ids(ids[:0], 0, "nothing at all")
    with pytest.raises(InputError, match=r"^x\.h5: questions: row 3 has the id 10, but those of"):
        check_ids(ids, 10, "x.h5: questions")
    if dtype is not np.uint16:
        ids[1, 2] = -5
        with pytest.raises(
            InputError, match=r"row 1 has the id -5, but .* from 0 to 11; is it the"
        ):
            check_ids(ids, 12, "x.h5: questions")


# --- bad input -------------------------------------------------------------------------------


def write(path: Path, columns: Mapping[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column


def good() -> Columns:
    count, unique, scene = (PROGRAM_TOKENS.index(t) for t in ("count", "unique", "scene"))
    return {
        "questions": np.array([[1, 8, 2, 0], [1, 9, 8, 2], [1, 9, 2, 0]], np.int32),
        "image_idxs": np.array([0, 0, 5], np.int32),
        "orig_idxs": np.array([0, 1, 2], np.int32),
        "programs": np.array(
            [[1, count, scene, 2, 0], [1, count, unique, scene, 2], [0, 0, 0, 0, 0]], np.int32
        ),
        "question_families": np.array([0, 1, 2], np.int32),
        "answers": np.array([4, 5, 3], np.int32),
    }


def without(name: str) -> Callable[[Columns], Any]:
    return lambda columns: columns.pop(name)


def replaced(name: str, value: Any) -> Callable[[Columns], Any]:
    return lambda columns: columns.update({name: value})


def changed(name: str, place: Any, value: Any) -> Callable[[Columns], Any]:
    return lambda columns: columns[name].__setitem__(place, value)


SCENE, UNION = PROGRAM_TOKENS.index("scene"), PROGRAM_TOKENS.index("union")
NO_PROGRAM = "is not <START>, a question's program in prefix form, <END>"
BROKEN: dict[str, tuple[Callable[[Columns], Any], str]] = {
    "features": (without("questions"), 'it has no "questions"; is this a file of questions?'),
    "no images": (without("image_idxs"), 'it has no "image_idxs"'),
    "floats": (replaced("questions", np.ones((3, 4))), '"questions" must be an array of integers'),
    "strings": (replaced("answers", ["a", "b", "c"]), '"answers" must be an array of integers'),
    "a number": (replaced("image_idxs", 1), '"image_idxs" is of shape (); it must have 1 dim'),
    "flat": (
        replaced("questions", np.ones(3, int)),
        '"questions" is of shape (3,); it must have 2',
    ),
    "deep": (replaced("answers", np.ones((3, 1), int)), '"answers" is of shape (3, 1); it must'),
    "wide": (replaced("questions", np.ones((3, 256), int)), "may have 255 entries at most"),
    "none": (
        lambda columns: columns.update({name: column[:0] for name, column in columns.items()}),
        "it holds no questions",
    ),
    "fewer": (
        replaced("answers", np.array([4, 5])),
        "its columns differ in length: questions 3, image_idxs 3, orig_idxs 3, programs 3, "
        "question_families 3, answers 2",
    ),
    "fewer families": (replaced("question_families", np.array([4, 5])), "differ in length"),
    "unknown word": (
        changed("questions", (1, 2), len(VOCABULARY)),
        "questions: row 1 has the id 12, but those of the vocabulary run from 0 to 11; is it the",
    ),
    "negative word": (changed("questions", (2, 0), -1), "questions: row 2 has the id -1"),
    "a hole": (changed("questions", (1, 1), 0), "questions: row 1 has padding before its end"),
    "no words": (changed("questions", 1, 0), "questions: row 1 has no words"),
    "no image": (changed("image_idxs", 2, -1), "image_idxs: row 2 numbers no image"),
    "huge": (replaced("image_idxs", np.array([0, 2**31, 0])), "image_idxs: row 1 numbers no image"),
    "a 91st family": (
        changed("question_families", 2, 90),
        "question_families: row 2 is of no family; they are numbered from 0 to 89",
    ),
    "negative family": (changed("question_families", 1, -1), "question_families: row 1 is of no"),
    "unknown answer": (changed("answers", 1, 32), "answers: row 1 has the id 32, but"),
    "negative answer": (changed("answers", 1, -1), "answers: row 1 has the id -1, but"),
    "unknown step": (changed("programs", (0, 1), 44), "programs: row 0 has the id 44, but"),
    "a gap": (changed("programs", (0, 1), 0), "programs: row 0 has padding before its end"),
    "no start": (changed("programs", (1, 0), SCENE), f"programs: row 1 {NO_PROGRAM}"),
    "no end": (changed("programs", (0, 3), 0), f"programs: row 0 {NO_PROGRAM}"),
    "only a start": (changed("programs", (0, slice(1, 4)), 0), f"programs: row 0 {NO_PROGRAM}"),
    "empty": (changed("programs", (2, [0, 1]), [1, 2]), f"programs: row 2 {NO_PROGRAM}"),
    "a start inside": (changed("programs", (1, 2), 1), f"programs: row 1 {NO_PROGRAM}"),
    "too long": (changed("programs", (1, 2), SCENE), f"programs: row 1 {NO_PROGRAM}"),
    "too short": (changed("programs", (1, 2), UNION), f"programs: row 1 {NO_PROGRAM}"),
    "no answer to it": (changed("programs", (0, [1, 2, 3]), [SCENE, 2, 0]), NO_PROGRAM),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_columns(case: str, tmp_path: Path) -> None:
    path = tmp_path / "questions.h5"
    columns = good()
    write(path, columns)
    assert len(read_questions_h5(path, VOCABULARY)) == 3
    change, expected = BROKEN[case]
    change(columns)
    write(path, columns)
    assert expected in complaint(path)


def complaint(path: Path) -> str:
    with pytest.raises(InputError) as refusal:
        read_questions_h5(path, VOCABULARY)
    said = str(refusal.value)
    assert said.startswith(f"{path}: ")
    assert len(said.splitlines()) == 1
    return said


def test_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "questions.h5"
    assert "there is no such file" in complaint(path)
    assert "this is a folder, not a file" in complaint(tmp_path)
    path.write_bytes(b"")
    assert "not HDF5, or damaged or cut short" in complaint(path)
    path.write_text(json.dumps({"questions": []}))
    assert "not HDF5, or damaged or cut short" in complaint(path)
    write(path, good())
    path.write_bytes(path.read_bytes()[:-100])
    assert "not HDF5, or damaged or cut short" in complaint(path)
    with h5py.File(path, "w") as file:
        file.create_group("questions")
        file["image_idxs"] = [1]
    assert '"questions" must be an array of integers' in complaint(path)
    with h5py.File(path, "w") as file:
        file.create_dataset("questions", (10**12, 46), np.int32, chunks=(1000, 46))
        file.create_dataset("image_idxs", (10**12,), np.int32, chunks=(1000,))
    assert 'too small for its "questions" of shape (1000000000000, 46)' in complaint(path)


def test_memory(tmp_path: Path) -> None:
    write(tmp_path / "questions.h5", good())
    with (
        pytest.raises(InputError, match="it is damaged, or does not fit into memory"),
        open_hdf5(tmp_path / "questions.h5"),
    ):
        raise MemoryError


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_full_disk_leaves_what_was_there(
    before: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "questions.h5"
    if before:
        path.write_bytes(before)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left") as failure:
        write_questions_h5(path, collect([TokenizedQuestion([1, 2], UNKNOWN, b"", 7)]))
    assert failure.value.filename == str(path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([before] if before else [])
