"""CLEVR as it comes: its question files, typed and checked.

Read are CLEVR v1.0 and CoGenT as released, CLEVR-Humans, and what `macnet generate` writes. What
is wrong with a file is found here, with its place: whoever holds a `Question` may rely on it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from reprlib import repr as shown  # which a broken file cannot make longer than a sentence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Raw, Struct, ValidationError
from msgspec.json import Decoder

from macnet.clevr.program import COLUMN_OF, OPERATIONS, VALUES_OF, arity, possible_answers
from macnet.clevr.questions import FAMILIES
from macnet.clevr.release import info
from macnet.data.splits import Kind
from macnet.disk import refuse_no_file
from macnet.errors import InputError

if TYPE_CHECKING:
    Function = str
    Value = str
    Answer = str
else:  # words the decoder knows: any other is an error, and each is one string, however often read
    Function = Literal[tuple(OPERATIONS)]
    Value = Literal[tuple(chain(*chain(*VALUES_OF.values())))]
    Answer = Literal[tuple(chain(*map(possible_answers, COLUMN_OF)))]

Index = Annotated[int, Meta(ge=0, lt=2**31)]
FamilyIndex = Annotated[int, Meta(ge=0, lt=FAMILIES)]


class Node(Struct, frozen=True, gc=False):
    """A step of a program."""

    function: Function
    inputs: tuple[int, ...]
    value_inputs: tuple[Value, ...]


class _Asked(Struct, frozen=True, gc=False):
    image_index: Index
    image_filename: str
    question: str
    split: str
    question_index: Index | None = None
    answer: Answer | None = None
    question_family_index: FamilyIndex | None = None


class Question(_Asked, frozen=True, gc=False):
    """A question of any CLEVR; what its file does not tell is None.

    A program is a tree, root last: each step before it is the input of exactly one later step.
    """

    program: tuple[Node, ...] | None = None


class QuestionFile(NamedTuple):
    questions: list[Question]
    is_generated: bool
    """Whether `macnet generate` wrote it."""


# --- reading questions -----------------------------------------------------------------------


class _Record(_Asked, frozen=True, gc=False):
    program: list[Raw] | None = None


class _File(Struct):
    questions: list[Raw]
    info: Any = None


_FILE, _RECORD, _NODE = Decoder(_File), Decoder(_Record), Decoder(Node)
_IMAGE_NAME = re.compile(r"CLEVR_\w+_(\d{6,9})\.png", re.ASCII)


def read_questions(path: Path, *, kind: Kind, split: str | None = None) -> list[Question]:
    """The questions of a file: all of them sound, or an `InputError` about the first that is not.

    A split is labelled throughout or, like the release's test split, not at all. If it is known
    which split the file is to hold, a file that says it holds another is refused.
    """
    return read_question_file(path, kind=kind, split=split).questions


def read_question_file(path: Path, *, kind: Kind, split: str | None = None) -> QuestionFile:
    """The same, and whose they are."""
    if kind == "community":
        raise InputError(f"{path}: it holds numbers where questions are wanted")
    file = _read(path)
    told = file.info.get("split") if isinstance(file.info, dict) else None
    if isinstance(told, str) and not _may_be(told, split):
        raise InputError(f"{path}: it says that its split is {shown(told)}, not {split!r}")
    check = _Check(kind, split)
    questions: list[Question] = []
    try:
        for record in file.questions:
            questions.append(check.question(record))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: question {len(questions)}: {_said(error)}") from None
    if kind == "clevr":
        index, count = Counter(q.question_index for q in questions).most_common(1)[0]
        if count > 1:
            raise InputError(f'{path}: {count} of its questions have the "question_index" {index}')
    license = file.info.get("license") if isinstance(file.info, dict) else None
    return QuestionFile(questions, license == info("")["license"])


def _may_be(told: str, split: str | None) -> bool:
    """Whether what a file says of itself fits the split that is wanted.

    CoGenT's conditions need not be told: the names of its images have them.
    """
    return split is None or told in ("", split, split.rstrip("AB"))


def _read(path: Path) -> _File:
    """The JSON of each question, as views of the file's bytes."""
    refuse_no_file(path)
    content = path.read_bytes()
    if not content:
        raise InputError(f"{path}: the file is empty")
    try:
        file = _FILE.decode(content)
    except ValidationError:
        raise InputError(f'{path}: it has no list "questions"') from None
    except (ValueError, RecursionError) as error:
        at = re.search(r"(.*) \(byte (\d+)\)", str(error))
        end = int(at[2]) if at else len(content)
        why = at[1].removeprefix("JSON is malformed: ") if at else error
        begun = content.count(b'"image_filename"', 0, end)  # every question has one
        raise InputError(
            f"{path}: not JSON, or cut short at byte {end:,} ({why}), some {begun:,} questions "
            "from its beginning; fetch or make the file again"
        ) from None
    if not file.questions:
        raise InputError(f"{path}: it holds no questions")
    return file


class _Check:
    """Makes questions of records, one after another; a ValueError says what is wrong with one."""

    def __init__(self, kind: Kind, split: str | None) -> None:
        self.kind, self.split = kind, split
        self.first: _Record | None = None
        self.images: dict[int, str] = {}
        self.nodes = _Nodes()
        self.trees: set[tuple[tuple[int, ...], ...]] = set()

    def question(self, json: Raw) -> Question:
        record = _RECORD.decode(json)
        first = self.first = self.first or record
        self._refuse_stranger(record, first)
        if not record.question or record.question.isspace():
            raise ValueError('its "question" has no words')
        return Question(
            record.image_index,
            self._image(record.image_index, record.image_filename),
            record.question,
            first.split,
            record.question_index,
            record.answer,
            record.question_family_index,
            None if record.program is None else self._program(record.program, record.answer),
        )

    def _refuse_stranger(self, record: _Record, first: _Record) -> None:
        """Only CLEVR numbers its questions; and all of a file have the same labels."""
        if (record.question_index is None) is (self.kind == "clevr"):
            no, other = ("no", "-Humans") if self.kind == "clevr" else ("a", "")
            raise ValueError(f'it has {no} "question_index"; is this CLEVR{other}?')
        for label in ("answer", "question_family_index", "program"):
            missing = getattr(record, label) is None
            if missing is not (getattr(first, label) is None):
                has, others = ("none", "one") if missing else ("one", "none")
                raise ValueError(
                    f'of "{label}" it has {has}, those before it have {others}; a split is '
                    "labelled throughout or not at all"
                )
        if record.split != first.split:
            raise ValueError(
                f'its "split" is {shown(record.split)}, before it was {shown(first.split)}'
            )
        if record is first and not _may_be(record.split, self.split):
            raise ValueError(f'its "split" is {shown(record.split)}, not {self.split!r}')

    def _image(self, index: int, name: str) -> str:
        """The name of an image: the same string for all questions about it."""
        known = self.images.get(index)
        if known is None:
            match = _IMAGE_NAME.fullmatch(name)  # it becomes a path of ours
            if not match or int(match[1]) != index:
                raise ValueError(
                    f'its "image_filename" is {shown(name)}, its "image_index" {index}'
                )
            if self.split is not None and not name.startswith(f"CLEVR_{self.split}_"):
                raise ValueError(f"it is about {shown(name)}, which is not of {self.split!r}")
            known = self.images[index] = name
        elif known != name:
            raise ValueError(f'its "image_filename" is {shown(name)}, before it was {known!r}')
        return known

    def _program(self, steps: Sequence[Raw], answer: str | None) -> tuple[Node, ...]:
        try:
            program = tuple(map(self.nodes.__getitem__, map(bytes, steps)))
        except ValueError as error:
            place = next(i for i, step in enumerate(steps) if bytes(step) not in self.nodes)
            raise ValueError(f"step {place}: {_said(error)}") from None
        tree = tuple(map(_INPUTS, program))
        if tree not in self.trees:  # a training set has some 300 different ones
            _refuse_tangle(tree)
            self.trees.add(tree)
        last = program[-1].function
        if last not in _FITTING:
            raise ValueError(f'its program ends in "{last}", which answers nothing')
        if answer is not None and answer not in _FITTING[last]:
            raise ValueError(f'its program ends in "{last}", its "answer" is {answer!r}')
        return program


_INPUTS = attrgetter("inputs")
_FITTING = {function: frozenset(possible_answers(function)) for function in COLUMN_OF}


class _Nodes(dict[bytes, Node]):
    """Steps by their JSON: of the millions in a training set, some 1,300 are different.

    Each of these is decoded, checked and kept once. That is a third faster than to decode them
    all, and they would take four times the memory of everything else.
    """

    def __missing__(self, json: bytes) -> Node:
        node = _NODE.decode(json)
        function = node.function
        if len(node.inputs) != arity(function):
            raise ValueError(f'"{function}" takes {arity(function)} inputs, not {len(node.inputs)}')
        if node.value_inputs not in VALUES_OF[function]:
            values = ", ".join(chain(*VALUES_OF[function]))
            wanted = f"one of {values}" if values else "no value"
            given = ", ".join(node.value_inputs) or "none"
            raise ValueError(f'"{function}" takes {wanted}; it was given {given}')
        self[json] = node
        return node


def _refuse_tangle(tree: Sequence[Sequence[int]]) -> None:
    if not tree:
        raise ValueError("its program is empty")
    for step, inputs in enumerate(tree):
        for i in inputs:
            if not 0 <= i < step:
                raise ValueError(f"step {step} takes step {i}, which does not come before it")
    takers = Counter(chain(*tree))
    for step in range(len(tree) - 1):
        if takers[step] != 1:
            raise ValueError(f"step {step} is taken by {takers[step]} steps; it must be one")


def _said(error: Exception) -> str:
    """What msgspec found, in our words: where in a record, then what."""
    what, _, place = str(error).partition(" - at `$")
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        return f'it has no "{missing[1]}"'
    what = what.replace("Invalid enum value", "unknown word").replace("Expected", "expected")
    what = "".join(filter(str.isprintable, what))[:120]  # a wrong word may be of any length
    place = place.strip("`.")
    return (f'"{place}": ' if place else "") + what.replace("`", "")
