"""The questions files of the public CLEVR repositories: HDF5 columns, with the ids of a vocab.json.

clevr-iep, film, TbD and CLOSURE agree on the content of such a file:

    questions          (Q, T)  words, padded with 0
    image_idxs         (Q,)    the image's number in its split, and its row in a features file
    orig_idxs          (Q,)    the question's number in the JSON file
    programs           (Q, L)  <START>, the prefix form, <END>; padded with 0
    question_families  (Q,)
    answers            (Q,)    4 more than our ids

all int32, the last three only where they are known. film adds `types`, but numbers them anew in
every run, so that they cannot be interpreted: here a question's type comes from its program.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from macnet.clevr.program import arity
from macnet.clevr.questions import NUM_FAMILIES
from macnet.data.question_arrays import UNKNOWN, QuestionArrays, program_types
from macnet.data.vocab import (
    END,
    MAX_WORDS,
    PAD,
    PROGRAM_TOKENS,
    SPECIALS,
    START,
    UNK,
    Vocabulary,
    to_vocab_json,
)
from macnet.errors import InputError, is_out_of_resources
from macnet.files import atomic_file, check_is_file, write_json

COLUMNS = ("questions", "image_idxs", "orig_idxs", "programs", "question_families", "answers")
NEEDED = ("questions", "image_idxs")
WITH_ROWS = ("questions", "programs")  # several numbers for each question; the others have one
MAX_RATIO = 1100  # of an array's bytes to the file's: HDF5's deflate cannot do better

# For each token, by how many more steps a program must go on once it has been read.
_OPENED = np.array([arity(token.partition("[")[0]) - 1 for token in PROGRAM_TOKENS], np.int16)


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file. The block must only read it: all its errors are blamed on the file.

    A file that refers to others is refused: HDF5 would open them, and a pack of what was read would
    not be renewed when they change.
    """
    check_is_file(path)
    try:
        with h5py.File(path, "r") as file:
            _check_is_alone(file, path)
            yield file
    except MemoryError:
        raise InputError(f"{path}: it is damaged, or does not fit into memory") from None
    # Where the library finds something wrong, h5py raises any of these.
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        if is_out_of_resources(error):
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not HDF5, or damaged or cut short ({reason:.200})") from None


def _check_is_alone(file: h5py.File, path: Path) -> None:
    """Check all links without following them: a soft one may lead to an external one."""
    links: list[tuple[bytes, int]] = []
    # The callback does not call the library: an error that it raises there would be lost.
    file.id.links.visit(lambda name, link: links.append((name, link.type)), info=True)
    for name, kind in links:
        item = file[name] if kind == h5py.h5l.TYPE_HARD else None
        if kind not in (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT) or (
            isinstance(item, h5py.Dataset) and (item.external is not None or item.is_virtual)
        ):
            raise InputError(
                f"{path}: {name.decode(errors='replace')!r:.60} is a link to another file, or has "
                "its data there; copy all of it into one file"
            )


# --- reading ---------------------------------------------------------------------------------


def read_questions_h5(path: Path, vocabulary: Vocabulary) -> QuestionArrays:
    """The questions of a file, whose ids are those of this vocabulary from its vocab.json."""
    columns = _read_columns(path)
    tokens, images = columns["questions"], columns["image_idxs"]
    check_ids(tokens, len(vocabulary), f"{path}: questions")
    lengths = _lengths(tokens, f"{path}: questions")
    _check_rows(lengths == 0, f"{path}: questions: row", "has no words")
    outside = (images < 0) | (images > np.iinfo(np.int32).max)
    _check_rows(outside, f"{path}: image_idxs: row", "numbers no image")

    answers = columns.get("answers", np.zeros(len(tokens), np.int32))
    check_ids(answers, len(SPECIALS) + len(vocabulary.answers), f"{path}: answers")
    programs = columns.get("programs", np.zeros((len(tokens), 0), np.int32))
    programs = _without_wrapping(programs, f"{path}: programs")
    families = columns.get("question_families")
    if families is None:
        families = np.full(len(tokens), UNKNOWN)
    else:
        outside = (families < 0) | (families >= NUM_FAMILIES)
        why = f"is of no family; they are numbered from 0 to {NUM_FAMILIES - 1}"
        _check_rows(outside, f"{path}: question_families: row", why)
    return QuestionArrays(
        tokens=tokens[:, : lengths.max()].astype(np.uint16),
        lengths=lengths.astype(np.uint16),
        answers=answers_from_h5(answers),
        types=program_types(programs),
        programs=programs,
        images=images.astype(np.int32),
        families=families.astype(np.int16),
    )


def _read_columns(path: Path) -> dict[str, np.ndarray]:
    with open_hdf5(path) as file:
        columns = {name: file[name] for name in COLUMNS if name in file}
        for name in NEEDED:
            if name not in columns:
                raise InputError(f'{path}: it has no "{name}"; is this a file of questions?')
        for name, column in columns.items():
            if not isinstance(column, h5py.Dataset) or column.dtype.kind not in "iu":
                raise InputError(f'{path}: "{name}" must be an array of integers')
            dimensions = 2 if name in WITH_ROWS else 1
            if len(column.shape or ()) != dimensions:
                raise InputError(
                    f'{path}: "{name}" is of shape {column.shape}; it must have {dimensions} '
                    "dimension(s)"
                )
            if column.shape[1:] > (MAX_WORDS,):
                raise InputError(
                    f'{path}: "{name}" is of shape {column.shape}; a row may have {MAX_WORDS} '
                    f"entries at most"
                )
            # A damaged file may claim to hold anything, and the memory is taken before it is read.
            if column.nbytes > MAX_RATIO * path.stat().st_size:
                raise InputError(
                    f'{path}: damaged or cut short, too small for its "{name}" of shape '
                    f"{column.shape}"
                )
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise InputError(f"{path}: its columns differ in length: {listed}")
        if not lengths["questions"]:
            raise InputError(f"{path}: it holds no questions")
        return {name: column[...] for name, column in columns.items()}


def _without_wrapping(wrapped: np.ndarray, where: str) -> np.ndarray:
    """(Q, L) <START> prefix form <END> → (Q, L − 2) uint8 prefix forms; empty rows stay empty."""
    check_ids(wrapped, len(PROGRAM_TOKENS), where)
    lengths = _lengths(wrapped, where)
    longest = max(int(lengths.max()), 2)
    given, rows = lengths > 0, np.arange(len(wrapped))
    # With room for a wrapping even where nothing is wrapped.
    padded = np.zeros((len(wrapped), longest), np.uint8)
    padded[:, : wrapped.shape[1]] = wrapped[:, :longest]
    wrong = given & ((padded[:, 0] != START) | (padded[rows, lengths - 1] != END))
    padded[rows[given], lengths[given] - 1] = PAD
    steps = padded[:, 1 : longest - 1]

    # A prefix form is over when every step has its inputs, neither earlier nor later.
    filled = steps != PAD
    still_open = 1 + np.cumsum(np.where(filled, _OPENED[steps], 0), axis=1, dtype=np.int16)
    is_last = np.arange(steps.shape[1]) == lengths[:, None] - 3
    wrong |= (filled & ((steps < len(SPECIALS)) | ((still_open == 0) != is_last))).any(axis=1)
    wrong |= given & (program_types(steps) == UNKNOWN)
    _check_rows(
        wrong, f"{where}: row", "is not <START>, a question's program in prefix form, <END>"
    )
    return steps


def _lengths(ids: np.ndarray, where: str) -> np.ndarray:
    """(Q, T) ids → (Q,) the number of ids before the padding."""
    filled = ids != PAD
    gap = (filled[:, 1:] & ~filled[:, :-1]).any(axis=1)
    _check_rows(gap, f"{where}: row", "has padding before its end")
    lengths: np.ndarray = filled.sum(axis=1)
    return lengths


def answers_from_h5(answers: np.ndarray) -> np.ndarray:
    """Answer ids of such a file → ours, int16; a special token is UNKNOWN."""
    return np.maximum(answers.astype(np.int64) - len(SPECIALS), UNKNOWN).astype(np.int16)


def check_ids(ids: np.ndarray, count: int, where: str) -> None:
    """Check that all ids are below `count`: on a GPU, one that is not would end the process."""
    if ids.size and (ids.min() < 0 or ids.max() >= count):
        wrong = (ids < 0) | (ids >= count)
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{where}: row {place[0]} has the id {ids[place]}, but those of the vocabulary run "
            f"from 0 to {count - 1}; is it the one these were made with?"
        )


def _check_rows(wrong: np.ndarray, where: str, why: str) -> None:
    if wrong.any():
        raise InputError(f"{where} {wrong.argmax()} {why}")


# --- writing ---------------------------------------------------------------------------------


def write_questions_h5(path: Path, questions: QuestionArrays) -> None:
    """Write questions for public code, which needs the file of `write_vocab_json` beside them.

    The file is made in memory first, so that a full disk is not mistaken for a damaged file.
    """
    columns = {
        "questions": questions.tokens,
        "image_idxs": questions.images,
        "orig_idxs": np.arange(len(questions)),
    }
    if (questions.programs != PAD).any():
        columns["programs"] = _with_wrapping(questions.programs)
    if (questions.answers != UNKNOWN).any():
        columns["answers"] = answers_to_h5(questions.answers)
    if (questions.families != UNKNOWN).all():  # there is no id for an unknown one
        columns["question_families"] = questions.families
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name, column in columns.items():
            file.create_dataset(name, data=column, dtype=np.int32)
    with atomic_file(path) as part:
        part.write(content.getbuffer())


def write_vocab_json(path: Path, vocabulary: Vocabulary) -> None:
    """Write a vocabulary as vocab.json."""
    write_json(path, to_vocab_json(vocabulary))


def answers_to_h5(answers: np.ndarray) -> np.ndarray:
    """Our answer ids → those of such a file, int32; without an id, an answer is <UNK>."""
    return np.where(answers < 0, UNK, answers.astype(np.int32) + len(SPECIALS))


def _with_wrapping(programs: np.ndarray) -> np.ndarray:
    lengths = (programs != PAD).sum(axis=1)
    (given,) = lengths.nonzero()
    wrapped = np.pad(programs, ((0, 0), (1, 1)))
    wrapped[given, 0] = START
    wrapped[given, lengths[given] + 1] = END
    return wrapped
