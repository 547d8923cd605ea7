"""A dataset on disk becomes packs, once: its images, its words, its questions.

They are packed apart, so that people's questions about CLEVR's images (CLEVR-Humans), or a larger
vocabulary, cost no second decoding of 70,000 pictures; `pack_split` puts them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from macnet.clevr.pictures import read_picture
from macnet.clevr.program import VALUES_OF, token_of
from macnet.clevr.render import refuse_huge
from macnet.data.clevr import Node, Question, read_question_file, read_questions
from macnet.data.community import read_questions_h5
from macnet.data.dataset import Dataset, rows_of
from macnet.data.features import largest_of, open_features
from macnet.data.packed import Pack, create_array, fingerprint, pack, save_array, write_rows
from macnet.data.questions import UNKNOWN, Questions, Row, collect, program_ids
from macnet.data.reading import encode_read, reread
from macnet.data.splits import (
    Split,
    find_questions,
    image_files,
    refuse_missing,
    training_split,
)
from macnet.data.vocab import MAX_WORDS, SPECIALS, UNK, Tally, Vocabulary
from macnet.errors import InputError
from macnet.progress import progress
from macnet.workers import pool

AT_ONCE = 50  # pictures in a task of a worker, rows of features in a read
FEW = 400  # pictures are decoded in the time a worker takes to start
READING = 1  # raise it when `data.reading` reads the same questions otherwise


def pack_split(
    split: Split,
    cache: Path,
    vocabulary: Vocabulary,
    *,
    size: tuple[int, int],
    skip_missing: bool = False,
    learn: bool = False,
    workers: int = 0,
) -> Dataset:
    """A split as arrays, to be asked or to `learn` from, which matters for its unknown words.

    What was packed before is opened, in less than a second.

    Pictures are brought to a size, (width, height); features are taken as they are. Questions
    about images that are not there are refused, or left out where `skip_missing` allows it.
    """
    refuse_huge(*size)
    questions = pack_questions(split, vocabulary, cache, learn=learn)
    columns = Questions(**questions.arrays)
    # What is missing is said before hours are spent on what is there.
    if split.images.is_file():
        features = open_features(split.images)
        if features.split not in (None, split.name):
            raise InputError(
                f"{split.images}: these are features of {features.split!r:.40}, not of {split.name}"
            )
        index = np.arange(features.shape[0], dtype=np.int32)
    else:
        files = image_files(split.images, split.name)
        index = np.array(sorted(files), np.int32)
    rows = rows_of(columns.images, index)
    chosen = np.flatnonzero(rows >= 0).astype(np.int32)
    if len(chosen) < len(rows) and not (skip_missing and len(chosen)):
        refuse_missing(split, columns.images.tolist(), index.tolist())
    if split.images.is_file():
        images = pack_features(split.images, cache)
    else:
        images = pack_images([files[i] for i in index.tolist()], *size, cache, workers)
    about = {
        "questions": str(split.questions.resolve()),
        "images": str(split.images.resolve()),
        "packs": [images.folder.name, questions.folder.name],
        "words": questions.about["words"],
        "origin": questions.about["origin"],
        "left out": len(rows) - len(chosen),
    }
    return Dataset(images.arrays["images"], columns, rows, chosen, vocabulary, about)


# --- images ----------------------------------------------------------------------------------


def pack_images(paths: Sequence[Path], width: int, height: int, cache: Path, workers: int) -> Pack:
    """Pictures: `images` (I, height, width, 3) uint8, in this order."""

    def make(out: Path) -> Mapping[str, Any]:
        array = out / "images.npy"
        start = create_array(array, (len(paths), height, width, 3), np.dtype(np.uint8))
        tasks = {i: paths[i : i + AT_ONCE] for i in range(0, len(paths), AT_ONCE)}
        with (
            progress("packing", "images", len(paths)) as advance,
            pool(min(workers, len(tasks)) if len(paths) > FEW else 0) as executor,
        ):
            futures = {
                executor.submit(pack_pictures, array, start, first, few, width, height): len(few)
                for first, few in tasks.items()
            }
            for future in as_completed(futures):
                future.result()
                advance(futures[future])
        return {}

    return pack(cache, "images", {"size": [width, height], "source": fingerprint(paths)}, make)


def pack_pictures(
    array: Path, start: int, first: int, paths: Sequence[Path], width: int, height: int
) -> None:
    for row, path in enumerate(paths, start=first):  # one at a time: they may be large
        write_rows(array, start, row, read_picture(path, width, height)[None])


def pack_features(path: Path, cache: Path) -> Pack:
    """A file of features: `images` (I, H, W, C) float16, channels last."""

    def make(out: Path) -> Mapping[str, Any]:
        file = open_features(path)
        count, channels, height, width = file.shape
        array, half = out / "images.npy", np.dtype(np.float16)
        start = create_array(array, (count, height, width, channels), half)
        with progress("packing", "images", count) as advance:
            for first in range(0, count, AT_ONCE):
                rows = file.rows(first, min(first + AT_ONCE, count))
                _refuse_overflow(rows, path, first)
                write_rows(array, start, first, rows.transpose(0, 2, 3, 1).astype(half))
                advance(len(rows))
        return {}

    return pack(cache, "features", {"source": fingerprint([path])}, make)


def _refuse_overflow(rows: np.ndarray, path: Path, first: int) -> None:
    too_large = largest_of(rows) > np.finfo(np.float16).max
    if too_large.any():
        raise InputError(
            f"{path}: row {first + int(too_large.argmax())} holds a number beyond float16; "
            "are these features of a network?"
        )


# --- words and questions ---------------------------------------------------------------------


def pack_vocabulary(
    root: Path,
    split: str,
    cache: Path,
    given: Path | None = None,
    tokenising: str = "mac",
    at_least: int | None = None,
) -> Vocabulary:
    """The words for a split: those of a file, or of the training split that belongs to it.

    Those of a file may grow by what occurs in the training split at least so often. A training
    split is read once; later, only what came of it.
    """
    if given is not None and at_least is None:
        return Vocabulary.load(given)
    known = Vocabulary(SPECIALS, tokenising) if given is None else Vocabulary.load(given)
    try:
        path, kind = find_questions(root, training_split(split))
    except InputError as error:
        raise InputError(f"{error}; its words are wanted: give a --vocabulary") from None
    if kind == "community":
        raise InputError(
            f"{path}: it holds numbers; give the vocab.json of their words as --vocabulary, and no "
            "--at-least"
        )

    def make(_: Path) -> Mapping[str, Any]:
        questions = read_questions(path, kind=kind, split=training_split(split))
        try:
            grown = known.grown((q.question for q in questions), at_least=at_least or 1)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        return grown.to_record()

    recipe = {
        "vocabulary": known.to_record(),
        "at_least": at_least or 1,
        "source": fingerprint([path]),
    }
    found = pack(cache, "words", recipe, make)
    return Vocabulary.from_record(found.about, str(found.folder))


def pack_questions(split: Split, vocabulary: Vocabulary, cache: Path, *, learn: bool) -> Pack:
    """The columns of `Questions`, in the words of a vocabulary: to learn from, or to be asked.

    These are two packs only where there are unknown words.
    """
    recipe = {"vocabulary": vocabulary.to_record(), "source": fingerprint([split.questions])}

    def packed(learn: bool) -> Pack:
        def make(out: Path) -> Mapping[str, Any]:
            columns, about = _read(split, vocabulary, learn=learn)
            for name, column in vars(columns).items():
                save_array(out / f"{name}.npy", column)
            return about

        rule = {} if learn else {"unknown words": READING}
        return pack(cache, "questions", {**recipe, **rule}, make)

    found = packed(True)
    return found if learn or not holds_unk(found.arrays["tokens"]) else packed(False)


def holds_unk(tokens: np.ndarray) -> bool:
    return bool((tokens == UNK).any())


def _read(split: Split, vocabulary: Vocabulary, *, learn: bool) -> tuple[Questions, dict[str, str]]:
    """The columns, and what there is to say of their words and of whose they are."""
    if split.kind == "community":
        columns = read_questions_h5(split.questions, vocabulary)
        words = f"{len(columns):,} questions came as numbers, all in the vocabulary"
        about = {"words": words, "origin": "unknown"}
        return columns if learn else _reread(columns, vocabulary), about
    tally = Tally()
    where = split.questions
    questions, is_generated = read_question_file(where, kind=split.kind, split=split.name)
    columns = collect(_rows(questions, vocabulary, tally, where, learn))
    return columns, {"words": str(tally), "origin": _origin(split, is_generated)}


def _reread(columns: Questions, vocabulary: Vocabulary) -> Questions:
    """What a network reads of questions whose texts are lost."""
    pairs = zip(columns.tokens.tolist(), columns.lengths.tolist(), strict=True)
    rows = (Row(reread(row[:length], vocabulary), UNKNOWN, b"", 0) for row, length in pairs)
    read = collect(rows)
    return replace(columns, tokens=read.tokens, lengths=read.lengths)


def _origin(split: Split, is_generated: bool) -> str:
    if is_generated:
        return "generated"
    if split.kind == "humans":
        return "CLEVR-Humans"
    return "CoGenT" if training_split(split.name) == "trainA" else "CLEVR"


def _rows(
    questions: Iterable[Question], vocabulary: Vocabulary, tally: Tally, where: Path, learn: bool
) -> Iterator[Row]:
    answers: dict[str | None, int] = {word: i for i, word in enumerate(vocabulary.answers)}
    answers[None] = UNKNOWN
    for number, question in enumerate(questions):
        tokens = vocabulary.encode(question.question, tally)
        if len(tokens) > MAX_WORDS:
            raise InputError(
                f"{where}: question {number} has {len(tokens):,} words; {MAX_WORDS} is the most"
            )
        if UNK in tokens and not learn:
            tokens = encode_read(question.question, vocabulary)
        program = b"" if question.program is None else _prefix(question.program)
        family = question.question_family_index
        yield Row(
            tokens,
            answers[question.answer],
            program,
            question.image_index,
            UNKNOWN if family is None else family,
        )


def _prefix(program: Sequence[Node]) -> bytes:
    """`program_ids(to_prefix(program))`, in one pass, for there are millions of steps."""
    forms: list[bytes] = []
    for node in program:
        inputs = [forms[i] for i in node.inputs]
        forms.append(b"".join([_TOKEN[node.function, node.value_inputs], *inputs]))
    return forms[-1]


_TOKEN: Mapping[tuple[str, tuple[str, ...]], bytes] = {
    (function, values): program_ids([token_of(function, values)])
    for function in VALUES_OF
    for values in VALUES_OF[function]
}
