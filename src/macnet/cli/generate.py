"""The commands that generate worlds, render scenes, and show images."""

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
    Families,
    File,
    NumObjects,
    Out,
    Size,
    Workers,
    read_size,
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
    num_objects: NumObjects = (3, 10),
    families: Families = (),
    device: Device = "auto",
    workers: Workers = None,
) -> None:
    """Generate a CLEVR world on disk, in the layout and schema of the release.

    The same seed gives the same files, whatever the number of workers. If a run was stopped or
    killed, the same command continues it; in a complete world, it restores missing and damaged
    files.

    Args:
        out: Folder of the dataset; new, empty, or with the same world.
        train: Number of training images.
        val: Number of validation images.
        test: Number of test images; their scenes and answers are not written, as in the release.
        seed: Any integer; another seed gives another world.
        questions_per_image: Number of questions about each image, of different families (1 to 90).
        size: Size of the images in pixels.
        condition: CoGenT condition: the colors of cubes and cylinders; splits are called trainA, …
        quality: Quality of the images: fast for training, fine for looking at.
        num_objects: Smallest and largest number of objects in a scene; fewer make an easier world.
        families: Only these groups of question families: zero_hop, one_hop, two_hop, three_hop,
            single_and, single_or, same_relate, comparison, compare_integer. By default all.
        device: Device to render on; auto is a GPU if there is one.
        workers: Number of processes; by default the number of cores, on a GPU at most 8.
    """
    from macnet.clevr.generate import generate as run

    start = time.monotonic()
    world = run(
        out, train=train, val=val, test=test, seed=seed, questions_per_image=questions_per_image,
        size=read_size(size), condition=condition, quality=quality, num_objects=num_objects,
        families=families, device=device, workers=workers,
    )  # fmt: skip
    if world.was_complete:
        print(f"{out}: this world is finished already; nothing to do")
    else:
        print(f"{out}: {world.images} images made in {time.monotonic() - start:.0f} s")


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
    """Render the scenes of a CLEVR scene file: released, generated or written by hand.

    If a scene has no camera, as in the release, the camera is found from the objects' pixel_coords;
    without these, it is the standard one. An image that is in the folder already is kept, and
    rendered again if its scene, the size or the quality has changed; if this command did not make
    it, the command stops, and renders nothing.

    Args:
        scenes_json: A file such as CLEVR_val_scenes.json.
        out: Folder for the images, which are named by the scenes' image_filename.
        size: Size of the images in pixels; by default that of the generated world, or 480x320.
        quality: fast or fine; by default that of the generated world, or fine.
        device: Device to render on; auto is a GPU if there is one.
    """
    from macnet.clevr.images import render_file

    given = None if size is None else read_size(size)
    made = render_file(scenes_json, out, size=given, quality=quality, device=device)
    kept = f"; {made.kept} were there already" if made.kept else ""
    width, height = made.size
    print(f"{out}: {made.rendered} images rendered, {width}x{height} and {made.quality}{kept}")


def sheet(data: Data, out: OutPng, /, images: int = 12) -> None:
    """Make a contact sheet of a dataset: images, with a question and its answer under each.

    Args:
        data: Folder of a dataset, generated or released.
        out: The PNG file to write.
        images: Number of images to show.
    """
    from macnet.clevr.sheet import contact_sheet

    print(f"{out}: a sheet of {contact_sheet(data, out, images=images)} images")


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
    """Compare rendered images with the originals of real CLEVR.

    Every scene that has an image is rendered and its PSNR printed; the sheet shows the first of
    them: original, rendered, difference.

    Args:
        scenes_json: A scene file of the release, such as CLEVR_val_scenes.json.
        images_dir: Folder of its images.
        out: The PNG file to write.
        images: Number of images on the sheet.
        quality: Quality of the rendered images: fast for training, fine for looking at.
        device: Device to render on; auto is a GPU if there is one.
        json_file: A JSON file to write the PSNR to.
    """
    from macnet.clevr.sheet import compare as run
    from macnet.files import write_json

    found = run(scenes_json, images_dir, out, images=images, quality=quality, device=device)
    table = Table("image", "PSNR, dB", title=f"{quality} quality")
    for name, value in found.psnr.items():
        table.add_row(name, f"{value:.2f}")
    table.add_section()
    table.add_row(f"mean of {len(found.psnr)}", f"{found.mean_psnr:.2f}")
    Console().print(table)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        finite = {name: v if math.isfinite(v) else None for name, v in found.psnr.items()}
        mean = found.mean_psnr if math.isfinite(found.mean_psnr) else None
        write_json(json_file, {"quality": quality, "mean_psnr": mean, "psnr": finite})
    print(f"{out}: a sheet of {min(images, len(found.psnr))} images")
