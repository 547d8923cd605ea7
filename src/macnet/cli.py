"""The commands. This is the only file that knows the argument parser.

What a command needs is imported inside it: torch takes seconds to load, and `--help` needs none.
"""

from __future__ import annotations

import errno
import math
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from macnet.errors import InputError

Quality = Literal["fast", "fine"]
Size = Annotated[str, tyro.conf.arg(metavar="WIDTHxHEIGHT")]
Device = Annotated[str, tyro.conf.arg(metavar="auto|cpu|cuda")]
Tokenising = Annotated[
    Literal["mac", "clevr-iep", "n2nmn"] | None, tyro.conf.arg(metavar="mac|clevr-iep|n2nmn")
]
Workers = Annotated[int | None, tyro.conf.arg(metavar="INT")]
ScenesJson = Annotated[Path, tyro.conf.arg(metavar="SCENES_JSON")]
Out = Annotated[Path, tyro.conf.arg(metavar="OUT")]
Data = Annotated[Path, tyro.conf.arg(metavar="DATA")]
OutPng = Annotated[Path, tyro.conf.arg(metavar="OUT.png")]


def generate(
    out: Out,
    /,
    train: int = 0,
    val: int = 0,
    test: int = 0,
    seed: int = 0,
    questions_per_image: int = 10,
    size: Size = "480x320",
    condition: Annotated[Literal["A", "B"] | None, tyro.conf.arg(metavar="A|B")] = None,
    quality: Quality = "fast",
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Make a CLEVR world on disk, in the layout and schema of the release.

    The same seed gives the same files, whatever the number of workers. A run that was stopped,
    even killed, goes on where it was when the same command is given again.

    Args:
        out: Folder of the dataset; new, empty, or with the same world unfinished.
        train: Number of training images.
        val: Number of validation images.
        test: Number of test images; their scenes and answers are not written, as in the release.
        seed: Any whole number; another seed is another world.
        questions_per_image: Each comes from another of the 90 families.
        size: Of the images, in pixels.
        condition: CoGenT: which colours cubes and cylinders have; splits are then called trainA, …
        quality: fast is for training, fine for looking at.
        device: Where pictures are made; auto takes a GPU if there is one.
        workers: Processes; as many as there are cores if not given, on a GPU at most 8.
    """
    from macnet.clevr.generate import generate as run
    from macnet.clevr.world import World

    width, height = _size(size)
    world = World(seed, condition, width, height, quality, questions_per_image)
    counts = {"train": train, "val": val, "test": test}
    device = _device(device)
    start = time.monotonic()
    if run(out, world, counts, device=device, workers=_workers(workers, device)):
        print(f"{out}: {sum(counts.values())} images made in {time.monotonic() - start:.0f} s")
    else:
        print(f"{out}: this world is finished already; nothing to do")


def render(
    scenes_json: ScenesJson,
    out: Out,
    /,
    size: Size = "480x320",
    quality: Quality = "fine",
    device: Device = "auto",
) -> None:
    """Draw the scenes of a CLEVR scene file, the release's or one made here.

    Where a scene has no camera, as in the release, it is found from the objects' pixel_coords.
    Pictures that are in the folder already are kept as they are.

    Args:
        scenes_json: A file such as CLEVR_val_scenes.json.
        out: Folder for the pictures, which are named by the scenes' image_filename.
        size: Of the pictures, in pixels.
        quality: fast is for training, fine for looking at.
        device: Where pictures are made; auto takes a GPU if there is one.
    """
    from macnet.clevr.pictures import draw_file

    width, height = _size(size)
    drawn, kept = draw_file(scenes_json, out, width, height, quality, _device(device))
    print(f"{out}: {drawn} pictures drawn" + (f", {kept} were there already" if kept else ""))


def sheet(data: Data, out: OutPng, /, images: int = 12) -> None:
    """Make a contact sheet of a dataset: images, a question and its answer under each.

    Args:
        data: Folder of a dataset, made here or the release.
        out: The picture to write, a PNG.
        images: How many to show.
    """
    from macnet.clevr.sheet import contact_sheet

    _at_least_one("--images", images)
    print(f"{out}: a sheet of {contact_sheet(data, out, images)} images")


def compare(
    scenes_json: ScenesJson,
    images_dir: Annotated[Path, tyro.conf.arg(metavar="IMAGES_DIR")],
    out: OutPng,
    /,
    images: int = 8,
    quality: Quality = "fine",
    device: Device = "auto",
    json_file: Annotated[Path | None, tyro.conf.arg(name="json", metavar="FILE")] = None,
) -> None:
    """Set our renderings beside the originals, for anyone who has real CLEVR.

    Every scene that has an image is rendered and its PSNR printed; the sheet shows the first of
    them: original, ours, difference.

    Args:
        scenes_json: A scene file of the release, such as CLEVR_val_scenes.json.
        images_dir: Folder of its images.
        out: The picture to write, a PNG.
        images: How many the sheet shows.
        quality: fast is for training, fine for looking at.
        device: Where pictures are made; auto takes a GPU if there is one.
        json_file: A file to write the numbers to.
    """
    from macnet.clevr.sheet import compare as run
    from macnet.disk import write_json

    _at_least_one("--images", images)
    measured = run(
        scenes_json, images_dir, out, shown=images, quality=quality, device=_device(device)
    )
    mean = sum(measured.values()) / len(measured)
    table = Table("image", "PSNR, dB", title=f"{quality} quality")
    for name, value in measured.items():
        table.add_row(name, f"{value:.2f}")
    table.add_section()
    table.add_row(f"mean of {len(measured)}", f"{mean:.2f}")
    Console().print(table)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        finite = {name: v if math.isfinite(v) else None for name, v in measured.items()}
        of_all = mean if math.isfinite(mean) else None
        write_json(json_file, {"quality": quality, "mean_psnr": of_all, "psnr": finite})
    print(f"{out}: a sheet of {min(images, len(measured))} images")


def extract(
    data: Data,
    out: Out,
    /,
    split: str = "train",
    weights: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
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

    _at_least_one("--batch", batch)
    device = _device(device)
    # A CPU is busy with the network, which takes twenty times as long as the decoding.
    decoding = 0 if workers is None and device == "cpu" else _workers(workers, "cpu")
    found = find_split(data, split)
    images = image_files(found.images, found.name)
    questions = read_questions(found.questions, kind=found.kind)
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
    images: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
    vocabulary: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    tokenising: Tokenising = None,
    at_least: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
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

    _at_least_one("--at-least", at_least)
    decoding = _workers(workers, "cpu")
    if vocabulary and tokenising:
        raise InputError(
            f"--tokenising is {tokenising}, but {vocabulary} says itself how questions become "
            "words; give one of the two"
        )
    start = time.monotonic()
    found = find_split(data, split, images)
    words = pack_vocabulary(data, split, cache, vocabulary, tokenising or "mac", at_least)
    dataset = pack_split(
        found,
        cache,
        words,
        size=_size(size),
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


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
    if not match:
        raise InputError(
            f"--size is {text[:40]!r}; it must be two positive numbers below 10000, such as 480x320"
        )
    return int(match[1]), int(match[2])


def _at_least_one(flag: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise InputError(f"{flag} is {value}; it must be at least 1")


def _workers(given: int | None, device: str) -> int:
    from macnet.workers import default_workers

    _at_least_one("--workers", given)
    return default_workers(device) if given is None else given


def _device(name: str) -> str:
    import torch

    gpus = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if gpus else "cpu"
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if not match:
        raise InputError(f"--device is {name!r}; it must be auto, cpu, cuda or cuda:N")
    if name != "cpu" and int(match[1] or 0) >= gpus:
        raise InputError(f"--device is {name}, but this machine has {gpus} usable GPUs")
    return name


COMMANDS: dict[str, Callable[..., None]] = {
    "generate": generate,
    "render": render,
    "sheet": sheet,
    "compare": compare,
    "extract": extract,
    "pack": pack,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default that of the command line; returns its exit code."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="macnet",
            description="MAC networks, and the CLEVR world they reason about.",
            args=arguments,
        )
        sys.stdout.flush()
    except InputError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("stopped; the same command goes on from here", 130)
    except BrokenProcessPool:
        return _complain("a worker was killed, perhaps for memory; try with fewer --workers", 2)
    except BrokenPipeError:  # whoever read the output wants no more of it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is unsaid yet
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = "no space left; make room, and the same command goes on from here"
        elif error.filename is not None:
            why = error.strerror or str(error)
        else:
            raise
        return _complain(f"{error.filename}: {why}", 2)
    return 0


def _complain(sentence: str, code: int) -> int:
    # It may quote a damaged file, and must not break the line nor command the terminal.
    shown = "".join(c if c.isprintable() else "?" for c in sentence)
    print(f"macnet: {shown}", file=sys.stderr)
    return code
