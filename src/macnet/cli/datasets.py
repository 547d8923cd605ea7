"""The commands that make datasets ready to be learned from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import tyro

from macnet.cli.options import (
    Data,
    Device,
    File,
    Number,
    Out,
    Size,
    Somewhere,
    Tokenising,
    Workers,
    choose_device,
    choose_workers,
    read_size,
    refuse_below_one,
    refuse_two_tokenisings,
)


def extract(
    data: Data,
    out: Out,
    /,
    split: str = "train",
    weights: File = None,
    stage: Literal[2, 3] = 3,
    dtype: Literal["float16", "float32"] = "float16",
    normalisation: Literal["public", "imagenet"] = "public",
    batch: int = 64,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Compute features of a split's images with a ResNet-101, as the public code does.

    They go to an HDF5 file, in whose array `features` row i belongs to image i. A run that was
    stopped, even killed, goes on where it was when the same command is given again.

    Args:
        data: Folder of a dataset, made here or the release.
        out: The file to write, such as train.h5.
        split: train, val or test; of CoGenT, trainA and so on.
        weights: Of the network, as torchvision publishes them: .pth or .safetensors. If not given,
            they are fetched.
        stage: 3 gives 1024 channels of 14x14, 2 gives 512 of 28x28.
        dtype: Of the features in the file; float16 takes half of the room.
        normalisation: public divides blue by .224 as the public code and its files do; imagenet by
            .225, with which the network was trained.
        batch: Images that go through the network at once.
        device: Where the network runs; auto takes a GPU if there is one.
        workers: Processes that decode images; on a GPU as many as there are cores if not given.
    """
    from macnet.data.clevr import read_questions
    from macnet.data.extract import extract as run
    from macnet.data.resnet import load_resnet
    from macnet.data.splits import find_split, image_files, refuse_missing

    refuse_below_one("--batch", batch)
    device = choose_device(device)
    # A CPU is busy with the network, which takes twenty times as long as the decoding.
    decoding = 0 if workers is None and device == "cpu" else choose_workers(workers, "cpu")
    found = find_split(data, split)
    images = image_files(found.images, found.name)
    questions = read_questions(found.questions, kind=found.kind, split=found.name)
    refuse_missing(found, {question.image_index for question in questions}, images)
    start = time.monotonic()
    if run(
        images,
        out,
        load_resnet(weights, stage),
        normalisation=normalisation,
        dtype=dtype,
        batch=batch,
        device=device,
        workers=decoding,
    ):
        seconds = time.monotonic() - start
        print(f"{out}: features of {len(images)} images made in {seconds:.0f} s")
    else:
        print(f"{out}: these features are finished already; nothing to do")


def pack(
    data: Data,
    cache: Annotated[Path, tyro.conf.arg(metavar="CACHE")],
    /,
    split: str = "train",
    size: Size = "128x128",
    images: Somewhere = None,
    vocabulary: File = None,
    tokenising: Tokenising = None,
    at_least: Number = None,
    skip_missing: bool = False,
    workers: Workers = None,
) -> None:
    """Turn a split into arrays that open in no time, for training to read from.

    Images and questions are packed apart, each once; what is in CACHE already and still right is
    left as it is. CACHE can be deleted at any time.

    Args:
        data: Folder of CLEVR, CoGenT, CLEVR-Humans or of a world made here; or a questions file
            of the community's (.h5).
        cache: Folder for the arrays; several datasets may share one.
        split: train, val or test; of CoGenT, trainA and so on.
        size: To which pictures are brought, in pixels.
        images: Where the images are, if not in DATA: a folder of CLEVR, or of one split's images,
            or a file of features (.h5).
        vocabulary: A file of words, ours or a vocab.json. If not given, the words are those of
            DATA's training split.
        tokenising: How questions become words, if no vocabulary says so; mac if not given.
        at_least: Let the vocabulary grow by the words that occur so often in DATA's training split.
        skip_missing: Leave out questions about images that are not there.
        workers: Processes that decode images; as many as there are cores if not given.
    """
    from macnet.data.pack import pack_split, pack_vocabulary
    from macnet.data.splits import find_split

    refuse_below_one("--at-least", at_least)
    decoding = choose_workers(workers, "cpu")
    refuse_two_tokenisings(vocabulary, tokenising)
    start = time.monotonic()
    found = find_split(data, split, images)
    words = pack_vocabulary(data, split, cache, vocabulary, tokenising or "mac", at_least)
    dataset = pack_split(
        found,
        cache,
        words,
        size=read_size(size),
        skip_missing=skip_missing,
        workers=decoding,
    )
    print(dataset.about["words"])
    if left_out := dataset.about["left out"]:
        print(f"{left_out:,} questions about images that are not there are left out")
    count, height, width, channels = dataset.images.shape
    print(
        f"{cache}: {len(dataset):,} questions about {count:,} images of "
        f"{width}x{height}x{channels} ready in {time.monotonic() - start:.1f} s: "
        f"{', '.join(dataset.about['packs'])}"
    )
