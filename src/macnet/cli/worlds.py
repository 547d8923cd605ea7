"""The commands that make worlds and pictures, and show them."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from macnet.cli.options import (
    Data,
    Device,
    File,
    Out,
    Size,
    Workers,
    choose_device,
    choose_workers,
    read_size,
    refuse_below_one,
)

Quality = Literal["fast", "fine"]
SizeOrNone = Annotated[str | None, tyro.conf.arg(metavar="WIDTHxHEIGHT", help_behavior_hint="")]
ScenesJson = Annotated[Path, tyro.conf.arg(metavar="SCENES_JSON")]
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
    condition: Annotated[
        Literal["A", "B"] | None, tyro.conf.arg(metavar="A|B", help_behavior_hint="")
    ] = None,
    quality: Quality = "fast",
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Make a CLEVR world on disk, in the layout and schema of the release.

    The same seed gives the same files, whatever the number of workers. A run that was stopped,
    even killed, goes on where it was when the same command is given again; in a finished world it
    makes again what is missing or damaged.

    Args:
        out: Folder of the dataset; new, empty, or with the same world.
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

    width, height = read_size(size)
    world = World(seed, condition, width, height, quality, questions_per_image)
    counts = {"train": train, "val": val, "test": test}
    device = choose_device(device)
    start = time.monotonic()
    if run(out, world, counts, device=device, workers=choose_workers(workers, device)):
        print(f"{out}: {sum(counts.values())} images made in {time.monotonic() - start:.0f} s")
    else:
        print(f"{out}: this world is finished already; nothing to do")


def render(
    scenes_json: ScenesJson,
    out: Out,
    /,
    size: SizeOrNone = None,
    quality: Annotated[
        Quality | None, tyro.conf.arg(metavar="fast|fine", help_behavior_hint="")
    ] = None,
    device: Device = "auto",
) -> None:
    """Draw the scenes of a CLEVR scene file: the release's, one made here, or written by hand.

    Where a scene has no camera, as in the release, it is found from the objects' pixel_coords; if
    there are none, the camera is the standard one. The scenes of a world that was made here are
    drawn as its images were. A picture that is in the folder already is kept, and drawn again if
    its scene, the size or the quality has changed since; one that this command did not make is
    never written over: the command then stops, and nothing is drawn.

    Args:
        scenes_json: A file such as CLEVR_val_scenes.json.
        out: Folder for the pictures, which are named by the scenes' image_filename.
        size: Of the pictures, in pixels; if not given, as the world's images are, or 480x320.
        quality: fast is for training, fine for looking at; if not given, the world's, or fine.
        device: Where pictures are made; auto takes a GPU if there is one.
    """
    from macnet.clevr.pictures import draw_file, drawn_as

    given = None if size is None else read_size(size)
    usual_size, usual_quality = drawn_as(scenes_json)
    (width, height), chosen = given or usual_size, quality or usual_quality
    drawn, kept = draw_file(scenes_json, out, width, height, chosen, choose_device(device))
    print(
        f"{out}: {drawn} pictures drawn, {width}x{height} and {chosen}"
        + (f"; {kept} were there already" if kept else "")
    )


def sheet(data: Data, out: OutPng, /, images: int = 12) -> None:
    """Make a contact sheet of a dataset: images, a question and its answer under each.

    Args:
        data: Folder of a dataset, made here or the release.
        out: The picture to write, a PNG.
        images: How many to show.
    """
    from macnet.clevr.sheet import contact_sheet

    refuse_below_one("--images", images)
    print(f"{out}: a sheet of {contact_sheet(data, out, images)} images")


def compare(
    scenes_json: ScenesJson,
    images_dir: Annotated[Path, tyro.conf.arg(metavar="IMAGES_DIR")],
    out: OutPng,
    /,
    images: int = 8,
    quality: Quality = "fine",
    device: Device = "auto",
    json_file: Annotated[File, tyro.conf.arg(name="json")] = None,
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

    refuse_below_one("--images", images)
    measured = run(
        scenes_json, images_dir, out, shown=images, quality=quality, device=choose_device(device)
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
