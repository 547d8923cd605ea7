"""The commands that prepare datasets for training."""

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
    Tokenizer,
    Workers,
    read_size,
)


def extract(
    data: Data,
    out: Out,
    /,
    split: str = "train",
    weights: File = None,
    stage: Literal[2, 3] = 3,
    dtype: Literal["float16", "float32"] = "float16",
    normalization: Literal["public", "imagenet"] = "public",
    batch: int = 64,
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Compute features of a split's images with a ResNet-101, as the public code does.

    They go to an HDF5 file, in whose array `features` row i belongs to image i. A run that was
    stopped, even killed, goes on where it was when the same command is given again.

    Args:
        data: Folder of a dataset that has images: CLEVR, CoGenT, a generated world, or questions
            and images of your own.
        out: The file to write, such as train.h5.
        split: Name of the split: train, val or test; of CoGenT, trainA and so on.
        weights: File with the network's weights as torchvision publishes them: .pth or
            .safetensors. If not given, they are downloaded.
        stage: Stage of the network; 3 gives 1024 channels of 14x14, 2 gives 512 of 28x28.
        dtype: Type of the features in the file; float16 takes half of the space.
        normalization: public divides blue by .224 as the public code and its files do; imagenet by
            .225, with which the network was trained.
        batch: Number of images that go through the network at once.
        device: Where the network runs; auto takes a GPU if there is one.
        workers: Processes that decode images; on a GPU as many as there are cores if not given.
    """
    from macnet.data.extract import extract as run

    existed, start = out.exists(), time.monotonic()
    features = run(
        data, out, split=split, weights=weights, stage=stage, dtype=dtype,
        normalization=normalization, batch=batch, device=device, workers=workers,
    )  # fmt: skip
    if existed:
        print(f"{out}: these features are finished already; nothing to do")
    else:
        seconds = time.monotonic() - start
        print(f"{out}: features of {features.shape[0]} images made in {seconds:.0f} s")


def pack(
    data: Data,
    cache: Annotated[Path, tyro.conf.arg(metavar="CACHE")],
    /,
    split: str = "train",
    size: Size = "128x128",
    images: Somewhere = None,
    vocabulary: File = None,
    tokenizer: Tokenizer = None,
    min_count: Number = None,
    skip_missing: bool = False,
    workers: Workers = None,
) -> None:
    """Turn a split into arrays that open within a second, for training to read from.

    Images and questions are packed apart, each once; what is in CACHE already and still right is
    left as it is. CACHE can be deleted at any time.

    Args:
        data: Folder of CLEVR, CoGenT, CLEVR-Humans or a generated world; or one with a SPLIT.json
            of your own, a list of {"image", "question", "answer"}; or a questions file of a public
            CLEVR repository (.h5).
        cache: Folder for the arrays; several datasets may share one.
        split: Name of the split: train, val or test; of CoGenT, trainA and so on.
        size: Size to which images are resized, in pixels.
        images: Where the images are, if not in DATA: a folder of CLEVR, or of one split's images,
            or a file of features (.h5).
        vocabulary: File of a vocabulary, ours or a vocab.json. If not given, the words are those of
            DATA's training split.
        tokenizer: How questions become words, if no vocabulary says so; mac if not given.
        min_count: Add to the vocabulary the words that occur so often in the training split.
        skip_missing: Leave out questions about images that are not there.
        workers: Processes that decode images; as many as there are cores if not given.
    """
    from macnet.data.pack import pack as run

    start = time.monotonic()
    dataset = run(
        data, cache, split=split, size=read_size(size), images=images, vocabulary=vocabulary,
        tokenizer=tokenizer, min_count=min_count, skip_missing=skip_missing, workers=workers,
    )  # fmt: skip
    print(dataset.metadata["words"])
    if left_out := dataset.metadata["left_out"]:
        print(f"{left_out:,} questions about images that are not there are left out")
    count, height, width, channels = dataset.images.shape
    print(
        f"{cache}: {len(dataset):,} questions about {count:,} images of "
        f"{width}x{height}x{channels} ready in {time.monotonic() - start:.1f} s: "
        f"{', '.join(dataset.metadata['packs'])}"
    )
