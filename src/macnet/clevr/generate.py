"""Generate a dataset on disk, in the layout and schema of the CLEVR release.

The work is split into independent tasks: groups of scenes are sampled and rendered, then questions
are generated for blocks of them. Each task ends by writing a part file under OUT/.unfinished, and a
task that has its part file is done; so a run that was killed continues where it stopped. At the end
the parts are joined into the released files, and removed.

Existing files are verified. A part begins with a hash of the rest, the chunks of an image have
checksums, the records of a released file are numbered: whatever is missing, truncated or damaged is
generated again, in a complete world too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from macnet.clevr import release
from macnet.clevr.images import SCENES_PER_RENDER, is_intact_png, render_group, save_image
from macnet.clevr.parts import count_records, is_part, join_parts, read_part, write_part
from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.scene import MAX_OBJECTS, MIN_OBJECTS, Condition, from_record, to_record
from macnet.clevr.world import World, generate_questions, generate_scenes
from macnet.devices import choose_device, choose_workers
from macnet.errors import InputError
from macnet.files import locked_folder, read_json, write_json
from macnet.progress import progress
from macnet.workers import pool

MAX_COUNT = 1_000_000  # images are numbered with six digits
VERIFIED_SILENTLY = 10_000  # images, in a second or so


@dataclass(frozen=True)
class GeneratedFiles:
    """A generated world on disk."""

    folder: Path
    images: int
    """Number of images in all splits."""
    was_complete: bool
    """Whether all files were there already, so that nothing was generated."""


def generate(
    out: str | os.PathLike[str],
    *,
    train: int = 0,
    val: int = 0,
    test: int = 0,
    seed: int = 0,
    questions_per_image: int = 10,
    size: tuple[int, int] = (480, 320),
    condition: Condition | None = None,
    quality: str = "fast",
    num_objects: tuple[int, int] = (MIN_OBJECTS, MAX_OBJECTS),
    families: tuple[str, ...] = (),
    device: str = "auto",
    workers: int | None = None,
) -> GeneratedFiles:
    """Generate a world on disk, with so many images in each split; `size` is (width, height).

    Fewer objects, or only some `families` of questions, make a world that is easier than CLEVR.
    The same seed gives the same files on a device, whatever the number of workers. Called again,
    it continues a run that was stopped, and restores missing and damaged files.
    """
    world = World(seed, condition, *size, quality, questions_per_image, num_objects, families)
    counts = {"train": train, "val": val, "test": test}
    device = choose_device(device)
    workers = choose_workers(workers, device)
    generated = generate_world(Path(out), world, counts, device=device, workers=workers)
    return GeneratedFiles(Path(out), sum(counts.values()), was_complete=not generated)


def generate_world(
    out: Path, world: World, counts: Mapping[str, int], *, device: torch.device | str, workers: int
) -> bool:
    """Generate `counts[split]` images of each split; false if they were complete already.

    With 0 workers, all work is done in this process.
    """
    if min(counts.values()) < 0 or not any(counts.values()):
        given = " ".join(f"`{split}` {count}" for split, count in counts.items())
        raise InputError(f"{given}: counts must not be negative, and not all be zero")
    if max(counts.values()) > MAX_COUNT:
        raise InputError(f"a split holds {MAX_COUNT:,} images at most: names have six digits")
    settings = {
        "format": release.WORLD_FORMAT,
        "seed": world.seed,
        **counts,
        "size": f"{world.width}x{world.height}",
        "condition": world.condition,
        "quality": world.quality,
        "questions-per-image": world.questions_per_image,
        **{name.replace("_", "-"): value for name, value in world.deviations.items()},
    }
    _check_folder(out, settings)
    splits = [_Split(out, world, kind, counts[kind]) for kind in release.SPLITS if counts[kind]]
    with locked_folder(out):
        to_join = [split for split in splits if not split.is_joined()]
        to_render = _missing_groups(splits, to_join)
        blocks = [task for split in to_join for task in split.tasks("questions")]
        to_ask = [block for block in blocks if not is_part(_part(*block, "questions"))]
        if not (out / release.UNFINISHED).exists() and not to_join and not to_render:
            return False
        write_json(out / "world.json", settings)
        (out / release.UNFINISHED).mkdir(exist_ok=True)
        for split in splits:
            for path in (split.image(0), *split.files().values()):
                path.parent.mkdir(parents=True, exist_ok=True)
        total = sum(split.count for split in splits)
        with pool(min(workers, len(to_render) + len(to_ask))) as executor:
            render = partial(_render_group, device=device)
            _run_tasks(executor, "rendering", total, render, to_render)
            _run_tasks(executor, "generating questions", total, _ask_block, to_ask)
        for split in to_join:
            split.join()
        # Until here a power cut may leave empty files, for the next run to find. To sync each
        # image would take 4 ms, a twentieth of what it takes to render it.
        os.sync()
        shutil.rmtree(out / release.UNFINISHED)
    return True


def _check_folder(out: Path, settings: Mapping[str, Any]) -> None:
    """The folder must be new, empty, or have a world with the same settings."""
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out}: this is a file; give a folder that is new or empty")
    if not (out / "world.json").exists():
        others = sorted(path.name for path in out.iterdir() if path.name != ".world.json.part")
        if others:
            some = ", ".join(others[:3]) + (", …" if others[3:] else "")
            raise InputError(
                f"{out}: it holds something else already ({some}); give a folder that is new or "
                "empty"
            )
        return
    found = read_json(out / "world.json")
    if found != settings:
        found = found if isinstance(found, dict) else {}
        differences = ", ".join(
            f"`{name.replace('-', '_')}` {found.get(name)} where {settings.get(name)} is asked for"
            for name in {**settings, **found}
            if found.get(name) != settings.get(name)
        )
        raise InputError(f"{out}: it holds another world ({differences}); give another folder")


@dataclass(frozen=True)
class _Split:
    """One split of the world that is being generated, and where its files are."""

    out: Path
    world: World
    kind: str  # train, val or test
    count: int

    @property
    def name(self) -> str:
        return self.world.split_name(self.kind)

    @property
    def info(self) -> dict[str, Any]:
        """What its files say about themselves; of an easier world, how it differs from CLEVR."""
        return {**release.info_record(self.name), **self.world.deviations}

    def files(self) -> dict[str, Path]:
        """The released files, written last: of scenes, if they are released, and of questions."""
        files = {"scenes": release.scenes_file, "questions": release.questions_file}
        keys = ["questions"] if release.is_unlabeled(self.name) else [*files]
        return {key: files[key](self.out, self.name) for key in keys}

    def image(self, index: int) -> Path:
        return release.images_folder(self.out, self.name) / release.image_name(self.name, index)

    def has_images(self, indices: Iterable[int]) -> bool:
        size = self.world.width, self.world.height
        return all(is_intact_png(self.image(i), *size) for i in indices)

    def tasks(self, key: str) -> list[_Task]:
        """The groups of scenes that are rendered, or the blocks that questions are about."""
        size = SCENES_PER_RENDER if key == "scenes" else IMAGES_PER_BLOCK
        starts = range(0, self.count, size)
        return [(self, range(first, min(first + size, self.count))) for first in starts]

    def join(self) -> None:
        for key, path in self.files().items():
            join_parts(path, self.info, key, [_part(*task, key) for task in self.tasks(key)])

    def is_joined(self) -> bool:
        """Whether its released files are there and complete."""
        counts = {key: count_records(path, self.info, key) for key, path in self.files().items()}
        return counts.get("scenes", self.count) == self.count and counts["questions"] is not None


_Task = tuple[_Split, range]  # a split, and the indices of some of its images


def _part(split: _Split, indices: Sequence[int], key: str) -> Path:
    """The part file for the scenes of a group, or for the questions of a block."""
    return split.out / release.UNFINISHED / f"{split.name}_{key}_{indices[0]:06d}.jsonl"


def _missing_groups(splits: Sequence[_Split], to_join: Sequence[_Split]) -> list[_Task]:
    """The groups without a part file, in a split that still needs one, or without all images.

    Images are read but not decoded: their checksums are verified.
    """
    groups = [task for split in splits for task in split.tasks("scenes")]
    rendered = [g for g in groups if g[0] not in to_join or is_part(_part(*g, "scenes"))]
    count = sum(len(indices) for _, indices in rendered)
    shown = progress("verifying", "images", count) if count > VERIFIED_SILENTLY else nullcontext()
    intact = set()
    with shown as advance:
        for split, indices in rendered:
            if split.has_images(indices):
                intact.add((split, indices))
            if advance is not None:
                advance(len(indices))
    return [group for group in groups if group not in intact]


def _run_tasks(
    executor: Executor, title: str, total: int, function: Callable[..., None], tasks: list[_Task]
) -> None:
    left = sum(len(indices) for _, indices in tasks)
    with progress(title, "images", total, done=total - left) as advance:
        futures = {executor.submit(function, *task): len(task[1]) for task in tasks}
        for future in as_completed(futures):
            future.result()
            advance(futures[future])


def _render_group(split: _Split, indices: range, device: torch.device | str) -> None:
    """Sample and render a group of scenes: write their images, then their part file."""
    world, name = split.world, split.name
    scenes = generate_scenes(world, split.kind, indices, device)
    missing = [i for i in indices if not split.has_images([i])]
    if missing:  # existing ones are kept as they are: another device may round differently
        images = render_group(scenes, world.width, world.height, world.quality, device)
        for i in missing:
            save_image(split.image(i), images[i - indices.start])
    records = [
        to_record(scene, name, i, split.image(i).name, world.width, world.height)
        for i, scene in zip(indices, scenes, strict=True)
    ]
    write_part(_part(split, indices, "scenes"), records)


def _ask_block(split: _Split, indices: range) -> None:
    """Generate the questions of a block, with the scenes in the part files of its groups."""
    scenes = []
    for k in range(0, len(indices), SCENES_PER_RENDER):
        part = _part(split, indices[k:], "scenes")
        scenes += [from_record(json.loads(line), part.name) for line in read_part(part)]
    block = indices.start // IMAGES_PER_BLOCK
    of_images = generate_questions(split.world, split.kind, block, scenes)
    records = [
        release.question_record(question, split.name, index)
        for index, questions in zip(indices, of_images, strict=True)
        for question in questions
    ]
    write_part(_part(split, indices, "questions"), records)
