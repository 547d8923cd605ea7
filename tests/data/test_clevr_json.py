"""Question files are read whole and right, or refused in a sentence that says where."""

import contextlib
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.clevr.generate import generate_world
from macnet.clevr.program import OPERATIONS
from macnet.clevr.release import images_folder
from macnet.clevr.scene import ATTRIBUTES, RELATIONS
from macnet.clevr.world import World
from macnet.data import clevr_json as clevr
from macnet.data.clevr_json import read_question_file
from macnet.data.formats import CLEVR, CLEVR_HUMANS
from macnet.data.splits import check_images_present, find_split
from macnet.errors import InputError
from real_clevr import real_clevr


def step(function: str, inputs: list[int], *values: str) -> dict[str, Any]:
    return {"function": function, "inputs": inputs, "value_inputs": list(values)}


RECORD: dict[str, Any] = {
    "question_index": 0,
    "split": "val",
    "image_index": 3,
    "image_filename": "CLEVR_val_000003.png",
    "question": "Are there more cubes than red things?",
    "answer": "no",
    "question_family_index": 2,
    "program": [
        step("scene", []),
        step("filter_shape", [0], "cube"),
        step("count", [1]),
        step("scene", []),
        step("filter_color", [3], "red"),
        step("count", [4]),
        step("greater_than", [2, 5]),
    ],
}
RECORDS = [{**RECORD, "question_index": i} for i in range(3)]
ASKED = ("split", "image_index", "image_filename", "question")
PEOPLES = [{key: RECORD[key] for key in (*ASKED, "answer")} for _ in range(3)]


def written(folder: Path, records: Any, **options: Any) -> Path:
    path = folder / "questions.json"
    path.write_text(json.dumps({"info": {}, "questions": records}, **options))
    return path


def complaint(path: Path, numbered: bool = True) -> str:
    """What is said about a file, less its name, which is always said."""
    with pytest.raises(InputError) as error:
        read_question_file(path, numbered=numbered)
    said = str(error.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said.removeprefix(f"{path}: ")


def assert_read(path: Path, numbered: bool = True) -> list[clevr.QuestionRecord]:
    """Read a file, and compare every field with what `json` finds there."""
    questions = read_question_file(path, numbered=numbered).questions
    records = json.loads(path.read_bytes())["questions"]
    assert len(questions) == len(records)
    for question, record in zip(questions, records, strict=True):
        for field in question.__struct_fields__[:-1]:
            assert getattr(question, field) == record.get(field)
        program = question.program and [
            {name: getattr(node, name) for name in node.__struct_fields__}
            for node in question.program
        ]
        wanted = record.get("program") and [
            {**node, "inputs": tuple(node["inputs"]), "value_inputs": tuple(node["value_inputs"])}
            for node in record["program"]
        ]
        assert program == wanted
    return questions


# --- files as they should be -----------------------------------------------------------------


def test_real_questions() -> None:
    split = find_split(real_clevr("clevr_val100"), "val")
    assert split.format is CLEVR
    questions = assert_read(split.questions)
    assert len(questions) == 1000
    files = CLEVR.image_files(split.images, split.name)
    assert sorted(files) == list(range(100))
    assert all(files[q.image_index].name == q.image_filename for q in questions)
    check_images_present(split, [q.image_index for q in questions], files)


@pytest.mark.parametrize(("split", "count"), [("train", 17817), ("val", 7202), ("test", 7145)])
def test_real_questions_of_people(split: str, count: int, tmp_path: Path) -> None:
    images_folder(tmp_path, split).mkdir(parents=True)
    found = find_split(real_clevr("clevr_humans"), split, tmp_path)
    assert found.format is CLEVR_HUMANS
    questions = assert_read(found.questions, numbered=False)
    assert len(questions) == count
    assert {q.answer is None for q in questions} == {split == "test"}
    assert "is this CLEVR-Humans?" in complaint(found.questions)


@pytest.mark.parametrize("condition", [None, "A"])
def test_a_world_of_our_own(condition: Any, tmp_path: Path) -> None:
    world = World(1, condition, width=24, height=16, questions_per_image=4)
    counts = {"train": 6, "val": 0, "test": 2}
    generate_world(tmp_path, world, counts, device="cpu", workers=0)
    for kind, count in (("train", 6), ("test", 2)):
        split = find_split(tmp_path, world.split_name(kind))
        questions = assert_read(split.questions)
        assert len(questions) == 4 * count
        assert {q.answer is None and q.program is None for q in questions} == {kind == "test"}
        assert list(CLEVR.image_files(split.images, split.name)) != []
        check_images_present(
            split, [q.image_index for q in questions], CLEVR.image_files(split.images, split.name)
        )
    with pytest.raises(InputError, match=f"no split 'val'; it has .*{world.split_name('train')}"):
        find_split(tmp_path, "val")


def test_words_are_those_of_the_world() -> None:
    attributes = {value for values in ATTRIBUTES.values() for value in values}
    assert set(get_args(clevr.Function)) == set(OPERATIONS)
    assert set(get_args(clevr.Value)) == attributes | set(RELATIONS)
    answers = {"yes", "no", *map(str, range(11))} | attributes
    assert set(get_args(clevr.Answer)) == answers
    assert len(answers) == 28


def test_what_is_equal_is_kept_once(tmp_path: Path) -> None:
    """Else a training set would take gigabytes."""
    first, second, _ = read_question_file(written(tmp_path, RECORDS)).questions
    assert first.program is not None
    assert second.program is not None
    assert all(a is b for a, b in zip(first.program, second.program, strict=True))
    for field in ("image_filename", "split", "answer"):
        assert getattr(first, field) is getattr(second, field)


@pytest.mark.parametrize("labels", [(), ("answer",), ("answer", "question_family_index")])
def test_labels_may_be_absent_throughout(labels: tuple[str, ...], tmp_path: Path) -> None:
    keys = ("question_index", *ASKED, *labels)
    assert_read(written(tmp_path, [{k: r[k] for k in keys} for r in RECORDS]))


def test_the_order_of_keys_spaces_and_unknown_keys_do_not_matter(tmp_path: Path) -> None:
    more = {"more": [{"}": '"},'}]}
    turned = [{**dict(reversed(record.items())), **more} for record in RECORDS]
    turned[1]["program"] = [{**more, **node} for node in RECORD["program"]]
    first, second, third = read_question_file(written(tmp_path, turned, indent=3)).questions
    assert first.program == second.program == third.program
    assert [first, second, third] == read_question_file(written(tmp_path, RECORDS)).questions


@pytest.mark.parametrize(
    ("info", "is_generated"),
    [
        ({"license": "made by macnet", "split": "val"}, True),
        ({"license": "Creative Commons Attribution (CC-BY 4.0)"}, False),
        ({"license": ["made by macnet"]}, False),
        (["made by macnet"], False),
        (None, False),
    ],
)
def test_a_file_tells_whether_it_was_generated(
    info: Any, is_generated: bool, tmp_path: Path
) -> None:
    path = tmp_path / "questions.json"
    path.write_text(json.dumps({"info": info, "questions": RECORDS}))
    questions, told = read_question_file(path)
    assert told is is_generated
    assert questions == read_question_file(written(tmp_path, RECORDS)).questions


# --- damaged files ---------------------------------------------------------------------------

Path_ = tuple[str | int, ...]
REMOVED = object()


def changed(place: Path_, value: Any) -> list[dict[str, Any]]:
    """Three questions, and something of the second replaced or removed."""
    records: list[dict[str, Any]] = json.loads(json.dumps(RECORDS))
    holder: Any = records[1]
    for key in place[:-1]:
        holder = holder[key]
    if value is REMOVED:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return records


CHAIN = [step("scene", []), step("unique", [0]), step("query_size", [1])]
DAMAGED: dict[str, tuple[Path_, Any, str]] = {
    "no text": (("question",), REMOVED, 'it has no "question"'),
    "no words": (("question",), " ", 'its "question" has no words'),
    "a number for text": (("question",), 5, '"question": expected str, got int'),
    "no index": (("question_index",), REMOVED, 'it has no "question_index"'),
    "a word for a number": (("image_index",), "3", '"image_index": expected int, got str'),
    "negative": (("image_index",), -3, '"image_index": expected int >= 0'),
    "too large": (("image_index",), 2**31, '"image_index": expected int <= 2147483647'),
    "a 91st family": (
        ("question_family_index",),
        90,
        '"question_family_index": expected int <= 89',
    ),
    "another image's name": (
        ("image_filename",),
        "CLEVR_val_000004.png",
        "its \"image_filename\" is 'CLEVR_val_000004.png', before it was 'CLEVR_val_000003.png'",
    ),
    "another image": (
        ("image_index",),
        4,
        'its "image_filename" is \'CLEVR_val_000003.png\', its "image_index" 4',
    ),
    "another split": (("split",), "train", "its \"split\" is 'train', before it was 'val'"),
    "no answer": (("answer",), REMOVED, 'of "answer" it has none, those before it have one'),
    "a 29th answer": (("answer",), "pink", "\"answer\": unknown word 'pink'"),
    "a truth": (("answer",), True, '"answer": expected str'),
    "an unfit answer": (("answer",), "red", 'ends in "greater_than", its "answer" is \'red\''),
    "no program": (("program",), REMOVED, 'of "program" it has'),
    "an empty program": (("program",), [], "its program is empty"),
    "a program of words": (("program",), "scene", '"program": expected array | null, got str'),
    "a step that is none": (("program", 2), 7, "step 2: expected object, got int"),
    "no function": (("program", 2, "function"), REMOVED, 'step 2: it has no "function"'),
    "an unknown function": (
        ("program", 2, "function"),
        "guess",
        "step 2: \"function\": unknown word 'guess'",
    ),
    "an unknown value": (
        ("program", 4, "value_inputs"),
        ["pink"],
        "step 4: \"value_inputs[0]\": unknown word 'pink'",
    ),
    "another's value": (
        ("program", 1, "value_inputs"),
        ["red"],
        'step 1: "filter_shape" takes one of cube, sphere, cylinder; it was given red',
    ),
    "a value too few": (("program", 1, "value_inputs"), [], "cylinder; it was given none"),
    "a value too many": (
        ("program", 2, "value_inputs"),
        ["red"],
        'step 2: "count" takes no value; it was given red',
    ),
    "an input too few": (
        ("program", 6, "inputs"),
        [2],
        'step 6: "greater_than" takes 2 inputs, not 1',
    ),
    "a fraction": (("program", 2, "inputs"), [0.5], '"inputs[0]": expected int, got float'),
    "forwards": (("program", 1, "inputs"), [2], "step 1 takes step 2, which does not come before"),
    "itself": (("program", 1, "inputs"), [1], "step 1 takes step 1, which does not come before"),
    "from the end": (("program", 1, "inputs"), [-1], "step 1 takes step -1, which does not"),
    "outside": (("program", 6, "inputs"), [2, 7], "step 6 takes step 7, which does not"),
    "a step used twice": (("program", 6, "inputs"), [2, 2], "step 2 is taken by 2 steps"),
    "a step unused": (("program", 4, "inputs"), [1], "step 1 is taken by 2 steps"),
    "no answer at its end": (("program",), CHAIN[:2], 'ends in "unique", which answers nothing'),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_question(case: str, tmp_path: Path) -> None:
    place, value, expected = DAMAGED[case]
    said = complaint(written(tmp_path, changed(place, value)))
    assert said.startswith("question 1: ")
    assert expected in said


@pytest.mark.parametrize(
    "name",
    [
        *("", "../../x.png", "/x.png", "CLEVR_v/a_000003.png", "CLEVR_val_3.png"),
        *("CLEVR_val_000003.jpg", "CLEVR_val_000003.png\n", "CLEVR_\0_000003.png"),
        "CLEVR_val_" + "0" * 9999 + "3.png",
    ],
)
def test_a_name_that_is_no_image(name: str, tmp_path: Path) -> None:
    said = complaint(written(tmp_path, [{**RECORD, "image_filename": name}]))
    assert said.startswith('question 0: its "image_filename" is ')


CONTENT = json.dumps({"info": {}, "questions": RECORDS}).encode()
BROKEN_FILES = {
    "nothing": (b"", "the file is empty"),
    "no JSON": (b"questions: none", "not JSON, or cut short at byte 0 (invalid character)"),
    "cut short": (CONTENT[:-40], f"byte {len(CONTENT) - 40:,} (Input data was truncated), some 3"),
    "cut early": (CONTENT[: len(CONTENT) // 2], "some 2 questions from its beginning; fetch"),
    "zeros at its end": (CONTENT[:-40] + b"\0" * 40, "not JSON, or cut short at byte"),
    "twice": (CONTENT * 2, "(trailing characters)"),
    "deep": (b'{"questions":' + b"[" * 100_000, "not JSON, or cut short at byte"),
    "UTF-16": (CONTENT.decode().encode("utf-16"), "not JSON, or cut short at byte 0"),
    "not UTF-8": (CONTENT.replace(b"cubes", b"cub\xe9s"), "question 0: it is not UTF-8"),
    "a list": (json.dumps(RECORDS).encode(), 'it has no list "questions"'),
    "no questions": (b'{"info": {}}', 'it has no list "questions"'),
    "scenes": (b'{"info": {}, "scenes": []}', 'it has no list "questions"'),
    "a word": (b'{"questions": "none"}', 'it has no list "questions"'),
    "not even one": (b'{"questions": []}', "it holds no questions"),
    "numbers": (b'{"questions": [1]}', "question 0: expected object, got int"),
    "the same index": (
        json.dumps({"questions": [RECORD, RECORDS[1], RECORD]}).encode(),
        '2 of its questions have the "question_index" 0',
    ),
}


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_a_broken_file(case: str, tmp_path: Path) -> None:
    content, expected = BROKEN_FILES[case]
    path = tmp_path / "questions.json"
    path.write_bytes(content)
    assert expected in complaint(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    assert complaint(tmp_path / "x.json") == "there is no such file"
    assert complaint(tmp_path) == "this is a folder, not a file"


def test_one_kind_in_the_other_s_place(tmp_path: Path) -> None:
    expected = 'question 0: it has a "question_index"; is this CLEVR?'
    assert complaint(written(tmp_path, RECORDS), numbered=False) == expected
    path = written(tmp_path, PEOPLES)
    assert len(assert_read(path, numbered=False)) == 3
    expected = 'question 0: it has no "question_index"; is this CLEVR-Humans?'
    assert complaint(path) == expected


def test_labels_for_some_questions_only(tmp_path: Path) -> None:
    unlabelled, labelled = {**PEOPLES[0], "answer": None}, PEOPLES[0]
    said = complaint(written(tmp_path, [unlabelled, unlabelled, labelled]), numbered=False)
    assert said == (
        'question 2: of "answer" it has one, those before it have none; a split is labelled '
        "throughout or not at all"
    )


@settings(max_examples=150, deadline=None)
@given(
    cut=st.integers(0, len(CONTENT) - 1),
    damage=st.sampled_from(["cut", "flip", "drop", "repeat"]),
    byte=st.integers(1, 255),
)
def test_damage_anywhere_is_told_in_a_sentence_or_does_no_harm(
    tmp_path_factory: pytest.TempPathFactory, cut: int, damage: str, byte: int
) -> None:
    before, rest = CONTENT[:cut], CONTENT[cut:]
    middle = {"flip": bytes([rest[0] ^ byte]), "repeat": rest[:1] * 2}.get(damage, b"")
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(before + middle + (b"" if damage == "cut" else rest[1:]))
    with contextlib.suppress(InputError):
        questions = read_question_file(path).questions
        assert damage != "cut"
        assert [len(q.program or ()) for q in questions] == [7, 7, 7]
        return
    complaint(path)


@st.composite
def trees(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Sound programs: chains and unions of sets, counted at last."""

    def grow(depth: int) -> None:
        kind = draw(st.sampled_from(["scene", "filter_color", "union"])) if depth else "scene"
        inputs = []
        for _ in range({"scene": 0, "filter_color": 1, "union": 2}[kind]):
            grow(depth - 1)
            inputs.append(len(program) - 1)
        values = [draw(st.sampled_from(ATTRIBUTES["color"]))] if kind == "filter_color" else []
        program.append(step(kind, inputs, *values))

    program: list[dict[str, Any]] = []
    grow(3)
    return [*program, step("count", [len(program) - 1])]


@settings(max_examples=60, deadline=None)
@given(program=trees(), data=st.data())
def test_trees_and_nothing_else_are_programs(
    tmp_path_factory: pytest.TempPathFactory, program: list[dict[str, Any]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp()
    record = {**RECORD, "answer": "3", "program": program}
    assert_read(written(folder, [record]))
    takers = [i for i, node in enumerate(program) if node["inputs"]]
    taker = program[data.draw(st.sampled_from(takers))]
    other = data.draw(st.integers(-2, len(program) + 1).filter(lambda i: i not in taker["inputs"]))
    taker["inputs"][0] = other  # now a step is without a taker, or one has two
    assert "step" in complaint(written(folder, [record]))
