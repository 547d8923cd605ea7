"""The JSON question files of CLEVR, typed and checked.

These are CLEVR v1.0 and CoGenT as released, CLEVR-Humans, and what `generate` writes. What is wrong
with a file is found here, with its place: a `QuestionRecord` is sound.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from reprlib import repr as shown  # which a broken file cannot make longer than a sentence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from macnet.clevr.program import (
    OPERATIONS,
    QUESTION_TYPE_OF,
    VALUE_INPUTS,
    check_node,
    check_tree,
    possible_answers,
    to_token,
)
from macnet.clevr.questions import NUM_FAMILIES
from macnet.clevr.release import info_record
from macnet.data.json_records import decode_file, decode_records, describe
from macnet.data.question_arrays import UNKNOWN, program_ids
from macnet.data.question_texts import QuestionText
from macnet.errors import InputError

if TYPE_CHECKING:
    Function = str
    Value = str
    Answer = str
else:  # the decoder refuses any other word, and keeps each as one string, however often read
    Function = Literal[tuple(OPERATIONS)]
    Value = Literal[tuple(chain(*chain(*VALUE_INPUTS.values())))]
    Answer = Literal[tuple(chain(*map(possible_answers, QUESTION_TYPE_OF)))]

Index = Annotated[int, Meta(ge=0, lt=2**31)]
FamilyIndex = Annotated[int, Meta(ge=0, lt=NUM_FAMILIES)]


class Node(Struct, frozen=True, gc=False):
    """A function of a program."""

    function: Function
    inputs: tuple[int, ...]
    value_inputs: tuple[Value, ...]


class _Base(Struct, frozen=True, gc=False):
    image_index: Index
    image_filename: str
    question: str
    split: str
    question_index: Index | None = None
    answer: Answer | None = None
    question_family_index: FamilyIndex | None = None


class QuestionRecord(_Base, frozen=True, gc=False):
    """A question of a file; labels that the file does not have are None.

    A program is a tree, root last: each step before it is the input of exactly one later step.
    """

    program: tuple[Node, ...] | None = None


class QuestionFile(NamedTuple):
    """The content of a file."""

    questions: list[QuestionRecord]
    is_generated: bool
    """Whether macnet generated it."""


# --- reading questions -----------------------------------------------------------------------


class _Record(_Base, frozen=True, gc=False):
    program: list[Raw] | None = None


class _File(Struct):
    questions: list[Raw]
    info: Any = None


_FILE, _RECORD, _NODE = Decoder(_File), Decoder(_Record), Decoder(Node)
_IMAGE_NAME = re.compile(r"CLEVR_[^/\0]+_(\d{6,9})\.png", re.ASCII)


def read_question_file(
    path: Path, *, split: str | None = None, numbered: bool = True
) -> QuestionFile:
    """The questions of a file: all of them sound, or an `InputError` about the first that is not.

    A split is labelled throughout or, like the release's test split, not at all. If `split` is
    given, a file that says it holds another is refused. Questions are `numbered` if they have a
    "question_index": CLEVR's do, those of CLEVR-Humans do not.
    """
    file = decode_file(path, _FILE, 'it has no list "questions"', "image_filename")
    info = file.info if isinstance(file.info, dict) else {}
    named = info.get("split")
    if isinstance(named, str) and not _may_be(named, split):
        raise InputError(f"{path}: it says that its split is {shown(named)}, not {split!r}")
    labels = ("answer", "question_family_index", "program")
    questions = decode_records(path, file.questions, _Check(numbered, split).question, labels)
    if numbered:
        index, count = Counter(q.question_index for q in questions).most_common(1)[0]
        if count > 1:
            raise InputError(f'{path}: {count} of its questions have the "question_index" {index}')
    return QuestionFile(questions, info.get("license") == info_record("")["license"])


def to_texts(questions: Iterable[QuestionRecord]) -> Iterator[QuestionText]:
    """Questions as every format gives them; the type is the function that the program ends in."""
    for q in questions:
        family = UNKNOWN if q.question_family_index is None else q.question_family_index
        if q.program is None:
            yield QuestionText(q.question, q.image_index, q.answer, family=family)
        else:
            last, program = q.program[-1].function, _prefix(q.program)
            yield QuestionText(q.question, q.image_index, q.answer, last, program, family)


def _prefix(program: Sequence[Node]) -> bytes:
    """`program_ids(to_prefix(program))`, in one pass, for there are millions of steps."""
    forms: list[bytes] = []
    for node in program:
        inputs = [forms[i] for i in node.inputs]
        forms.append(b"".join([_TOKEN[node.function, node.value_inputs], *inputs]))
    return forms[-1]


_TOKEN: Mapping[tuple[str, tuple[str, ...]], bytes] = {
    (function, values): program_ids([to_token(function, values)])
    for function in VALUE_INPUTS
    for values in VALUE_INPUTS[function]
}


def _may_be(named: str, split: str | None) -> bool:
    """Whether the split that a file names may be the expected one.

    CoGenT's conditions may be missing: the names of its images have them.
    """
    return split is None or named in ("", split, split.rstrip("AB"))


class _Check:
    """Checks records one after another; a ValueError says what is wrong with one."""

    def __init__(self, numbered: bool, split: str | None) -> None:
        self.numbered, self.split = numbered, split
        self.first: _Record | None = None
        self.images: dict[int, str] = {}
        self.nodes = _Nodes()
        self.trees: set[tuple[tuple[int, ...], ...]] = set()

    def question(self, json: Raw) -> QuestionRecord:
        record = _RECORD.decode(json)
        first = self.first = self.first or record
        if (record.question_index is None) is self.numbered:  # only CLEVR numbers its questions
            no, other = ("no", "-Humans") if self.numbered else ("a", "")
            raise ValueError(f'it has {no} "question_index"; is this CLEVR{other}?')
        if record.split != first.split:
            raise ValueError(
                f'its "split" is {shown(record.split)}, before it was {shown(first.split)}'
            )
        if record is first and not _may_be(record.split, self.split):
            raise ValueError(f'its "split" is {shown(record.split)}, not {self.split!r}')
        if not record.question or record.question.isspace():
            raise ValueError('its "question" has no words')
        return QuestionRecord(
            record.image_index,
            self._image(record.image_index, record.image_filename),
            record.question,
            first.split,
            record.question_index,
            record.answer,
            record.question_family_index,
            None if record.program is None else self._program(record.program, record.answer),
        )

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
            raise ValueError(f"step {place}: {describe(error)}") from None
        tree = tuple(map(_INPUTS, program))
        if tree not in self.trees:  # a training set has some 300 different ones
            check_tree(tree)
            self.trees.add(tree)
        last = program[-1].function
        if last not in _FITTING:
            raise ValueError(f'its program ends in "{last}", which answers nothing')
        if answer is not None and answer not in _FITTING[last]:
            raise ValueError(f'its program ends in "{last}", its "answer" is {answer!r}')
        return program


_INPUTS = attrgetter("inputs")
_FITTING = {function: frozenset(possible_answers(function)) for function in QUESTION_TYPE_OF}


class _Nodes(dict[bytes, Node]):
    """Steps of programs by their JSON: of the millions in a training set, some 1,300 differ.

    Each of these is decoded, checked and kept once. That is a third faster than decoding all of
    them, which would take four times the memory of everything else.
    """

    def __missing__(self, json: bytes) -> Node:
        node = _NODE.decode(json)
        check_node(node.function, node.inputs, node.value_inputs)
        self[json] = node
        return node
