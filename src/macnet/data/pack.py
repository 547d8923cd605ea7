"""A dataset on disk becomes packs, once: its images, its vocabulary, its questions.

They are packed apart, so that people's questions about CLEVR's images (CLEVR-Humans), or a larger
vocabulary, cost no second decoding of 70,000 images; `pack_split` puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from macnet.clevr.images import read_image
from macnet.clevr.quality import check_image_size
from macnet.data.dataset import Dataset, rows_of
from macnet.data.features import largest_of, open_features
from macnet.data.formats import DatasetFormat
from macnet.data.pack_store import (
    Pack,
    cached_pack,
    create_array,
    fingerprint,
    save_array,
    write_rows,
)
from macnet.data.question_arrays import QuestionArrays
from macnet.data.splits import SplitFiles, check_images_present, find_questions, find_split
from macnet.data.vocab import MAX_ANSWERS, SPECIALS, UNK, Vocabulary
from macnet.devices import choose_cache, choose_workers
from macnet.errors import InputError
from macnet.progress import progress
from macnet.workers import pool

CHUNK = 50  # images in a task of a worker, rows of features in a read
MIN_IMAGES_FOR_WORKERS = 400  # so many are decoded in the time that a worker takes to start
UNKNOWN_WORDS_VERSION = 1  # raise it when `data.unknown_words` encodes the same questions otherwise


def pack(
    data: str | PathLike[str],
    cache: str | PathLike[str] | None = None,
    *,
    split: str = "train",
    size: tuple[int, int] = (128, 128),
    images: str | PathLike[str] | None = None,
    vocabulary: str | PathLike[str] | Vocabulary | None = None,
    tokenizer: str | None = None,
    min_count: int | None = None,
    skip_missing: bool = False,
    workers: int | None = None,
) -> Dataset:
    """Pack a split of a dataset, in the words of its training split by default.

    What was packed before is opened.

    Args:
        data: Folder of a dataset in one of `data.formats.FORMATS`, or an HDF5 file of questions.
        cache: Folder for packs, which several datasets may share.
        split: Name of the split.
        size: Width and height in pixels to which images are resized; features stay as they are.
        images: Where the images are if not in `data`, or an HDF5 file of features.
        vocabulary: A vocabulary or a file of one; if None, one is made of the training split.
        tokenizer: One of `data.vocab.TOKENIZERS`, "mac" if None; only without a `vocabulary`.
        min_count: Add to the vocabulary the words that occur so often in the training split.
        skip_missing: Leave out questions about images that are not there.
        workers: Processes that decode images; as many as there are cores if None.
    """
    _check_vocabulary_options(vocabulary, tokenizer, min_count)
    root, folder = Path(data), choose_cache(cache)
    count = choose_workers(workers, "cpu")
    found = find_split(root, split, None if images is None else Path(images))
    words = pack_vocabulary(root, split, folder, vocabulary, tokenizer, min_count)
    return pack_split(found, folder, words, size=size, skip_missing=skip_missing, workers=count)


def pack_split(
    split: SplitFiles,
    cache: Path,
    vocabulary: Vocabulary,
    *,
    size: tuple[int, int],
    skip_missing: bool = False,
    training: bool = False,
    question_types: Sequence[str] | None = None,
    workers: int = 0,
) -> Dataset:
    """A split in the words of a vocabulary; what was packed before is opened within a second.

    Images are resized to `size`, (width, height); features stay as they are. Questions about images
    that are not there are refused, or left out with `skip_missing`. `training` says whether a
    network is trained on the questions, which matters for unknown words. `question_types` are those
    of a format that collects them; if None, they are collected from the training split.
    """
    check_image_size(*size)
    collects_types = not split.format.question_types
    if collects_types:
        if question_types is None:
            path, name = split.questions, split.name
            if split.training is not None:
                path, name = split.training, split.format.training_split(name)
            _, question_types = _pack_labels(split.format, path, name, cache)
        own = replace(split.format, question_types=tuple(question_types))
        split = replace(split, format=own)
    questions = pack_questions(split, vocabulary, cache, training=training)
    arrays, names = QuestionArrays(**questions.arrays), questions.metadata.get("image_names", ())
    # What is missing is said before hours are spent on what is there.
    if split.images.is_file():
        features = open_features(split.images)
        if features.split not in (None, split.name):
            raise InputError(
                f"{split.images}: these are features of {features.split!r:.40}, not of {split.name}"
            )
        if names and features.shape[0] != len(names):
            raise InputError(
                f"{split.images}: these are features of {features.shape[0]:,} images, but "
                f"{split.questions.name} names {len(names):,}; extract them again"
            )
        ids = np.arange(features.shape[0], dtype=np.int32)
    else:
        files = split.format.image_files(split.images, split.name, names)
        ids = np.array(sorted(files), np.int32)
    rows = rows_of(arrays.images, ids)
    selected = np.flatnonzero(rows >= 0).astype(np.int32)
    if len(selected) < len(rows) and not (skip_missing and len(selected)):
        check_images_present(split, arrays.images.tolist(), ids.tolist(), names)
    if split.images.is_file():
        images = pack_features(split.images, cache)
    else:
        paths = [files[i] for i in ids.tolist()]
        images = pack_images(paths, split.images, *size, cache, workers, split.format)
    metadata = {
        "questions": str(split.questions.resolve()),
        "images": str(split.images.resolve()),
        "packs": [images.folder.name, questions.folder.name],
        "words": questions.metadata["words"],
        "origin": questions.metadata["origin"],
        "left_out": len(rows) - len(selected),
        "format": split.format.name,
        **({"question_types": list(split.format.question_types)} if collects_types else {}),
    }
    return Dataset(
        images.arrays["images"], arrays, rows, selected, vocabulary, metadata, split.format
    )


# --- images ----------------------------------------------------------------------------------


def pack_images(
    paths: Sequence[Path],
    folder: Path,
    width: int,
    height: int,
    cache: Path,
    workers: int,
    format: DatasetFormat,
) -> Pack:
    """Image files below a folder: `images` (I, height, width, 3) uint8, in this order."""

    def make(out: Path) -> None:
        array = out / "images.npy"
        start = create_array(array, (len(paths), height, width, 3), np.dtype(np.uint8))
        tasks = {i: paths[i : i + CHUNK] for i in range(0, len(paths), CHUNK)}
        processes = min(workers, len(tasks)) if len(paths) > MIN_IMAGES_FOR_WORKERS else 0
        size, formats = (width, height), format.image_formats
        with progress("packing", "images", len(paths)) as advance, pool(processes) as executor:
            futures = {
                executor.submit(pack_chunk, array, start, first, chunk, size, formats): len(chunk)
                for first, chunk in tasks.items()
            }
            for future in as_completed(futures):
                future.result()
                advance(futures[future])

    recipe = {"size": [width, height], "source": fingerprint(paths, folder)}
    return cached_pack(cache, "images", recipe, make)


def pack_chunk(
    array: Path,
    start: int,
    first: int,
    paths: Sequence[Path],
    size: tuple[int, int],
    formats: tuple[str, ...] | None,
) -> None:
    """Decode image files into the rows of an array file, from row `first` on."""
    for row, path in enumerate(paths, start=first):  # one at a time: they may be large
        write_rows(array, start, row, read_image(path, *size, formats)[None])


def pack_features(path: Path, cache: Path) -> Pack:
    """A file of features: `images` (I, H, W, C) float16, channels last."""

    def make(out: Path) -> None:
        file = open_features(path)
        count, channels, height, width = file.shape
        array, half = out / "images.npy", np.dtype(np.float16)
        start = create_array(array, (count, height, width, channels), half)
        with progress("packing", "images", count) as advance:
            for first in range(0, count, CHUNK):
                rows = file.rows(first, min(first + CHUNK, count))
                if (too_large := largest_of(rows) > np.finfo(half).max).any():
                    row = first + int(too_large.argmax())
                    raise InputError(
                        f"{path}: row {row} holds a number beyond float16; are these features of "
                        "a network?"
                    )
                write_rows(array, start, first, rows.transpose(0, 2, 3, 1).astype(half))
                advance(len(rows))

    return cached_pack(cache, "features", {"source": fingerprint([path])}, make)


# --- vocabulary, labels, questions -----------------------------------------------------------


def pack_vocabulary(
    root: Path,
    split: str,
    cache: Path,
    given: str | PathLike[str] | Vocabulary | None = None,
    tokenizer: str | None = None,
    min_count: int | None = None,
) -> Vocabulary:
    """The vocabulary for a split: that given, or the words and answers of its training split.

    A given one may grow by the words that occur in the training split at least `min_count` times. A
    training split is read once; later, only what came of it.
    """
    _check_vocabulary_options(given, tokenizer, min_count)
    if isinstance(given, str | PathLike):
        given = Vocabulary.load(Path(given))
    if given is not None and min_count is None:
        return given
    _, format = find_questions(root, split)
    training = format.training_split(split)
    try:
        path, format = find_questions(root, training)
    except InputError as error:
        raise InputError(f"{error}; its words are needed: give a `vocabulary`") from None
    if given is None:
        answers = format.answers or _pack_labels(format, path, training, cache)[0]
        if not answers:
            raise InputError(f"{path}: its questions have no answers; give a `vocabulary`")
        given = Vocabulary(SPECIALS, tokenizer or "mac", answers)
    base, least = given, min_count or 1

    def make(_: Path) -> Mapping[str, Any]:
        texts = format.read(path, training)
        try:
            grown = base.extended((q.text for q in texts.questions), min_count=least)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        return grown.to_record()

    recipe = {
        "vocabulary": base.to_record(),
        "min_count": least,
        "source": fingerprint([path]),
        "dataset": format.name,
    }
    found = cached_pack(cache, "words", recipe, make)
    return Vocabulary.from_record(found.metadata, str(found.folder))


def _check_vocabulary_options(given: object, tokenizer: str | None, min_count: int | None) -> None:
    if min_count is not None and min_count < 1:
        raise InputError(f"`min_count` is {min_count}; it must be at least 1")
    if given is not None and tokenizer is not None:
        where = "the vocabulary" if isinstance(given, Vocabulary) else given
        raise InputError(
            f"`tokenizer` is {tokenizer}, but {where} says itself how questions become words; "
            "give one of the two"
        )


def _pack_labels(
    format: DatasetFormat, path: Path, split: str, cache: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The answers and the question types of a file, of the answers as many as there can be."""

    def make(_: Path) -> Mapping[str, Any]:
        answers, types = format.read(path, split).labels()
        return {"answers": answers[:MAX_ANSWERS], "question_types": types}

    recipe = {"source": fingerprint([path]), "dataset": format.name}
    found = cached_pack(cache, "labels", recipe, make).metadata
    return tuple(found["answers"]), tuple(found["question_types"])


def pack_questions(
    split: SplitFiles, vocabulary: Vocabulary, cache: Path, *, training: bool
) -> Pack:
    """The arrays of `QuestionArrays`, encoded for training or to be asked.

    These are two packs only where there are unknown words.
    """
    recipe = {
        "vocabulary": vocabulary.to_record(),
        "source": fingerprint([split.questions]),
        "dataset": split.format.name,
        "question_types": split.format.question_types,
    }

    def packed(training: bool) -> Pack:
        def make(out: Path) -> Mapping[str, Any]:
            arrays, metadata = split.format.encode(
                split.questions, split.name, vocabulary, training=training
            )
            for name, column in vars(arrays).items():
                save_array(out / f"{name}.npy", column)
            return metadata

        rule = {} if training else {"unknown_words": UNKNOWN_WORDS_VERSION}
        return cached_pack(cache, "questions", {**recipe, **rule}, make)

    found = packed(True)
    return found if training or not contains_unk(found.arrays["tokens"]) else packed(False)


def contains_unk(tokens: np.ndarray) -> bool:
    """Whether <UNK> is among word ids."""
    return bool((tokens == UNK).any())
