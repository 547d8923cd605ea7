"""A whole dataset on disk, in the layout and schema of the release.

The work is cut into tasks that need nothing of each other: groups of scenes are placed and drawn,
then blocks of them asked about. Each task ends by writing a part file under OUT/.unfinished, and
whatever has its part file is done, whoever did it and when; so a run that was killed goes on
where it was. At the end the parts are joined into the released files, and removed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from macnet.clevr.pictures import GROUP, draw_group, save_picture
from macnet.clevr.questions import BLOCK
from macnet.clevr.release import (
    SPLITS,
    UNFINISHED,
    image_name,
    images_folder,
    info,
    is_secret,
    question_record,
    questions_file,
    scenes_file,
)
from macnet.clevr.scene import from_record, to_record
from macnet.clevr.world import World, make_questions, make_scenes
from macnet.disk import alone_in, read_json, whole_file, write_json
from macnet.errors import InputError
from macnet.progress import progress
from macnet.workers import pool

FORMAT = 1  # raise it when the same settings would give other bytes
MAX_COUNT = 1_000_000  # images are numbered with six digits


def generate(
    out: Path,
    world: World,
    counts: Mapping[str, int],
    *,
    device: torch.device | str,
    workers: int,
) -> bool:
    """Make so many images of each split, with their questions; false if all was there already."""
    if min(counts.values()) < 0 or not any(counts.values()):
        asked = " ".join(f"--{split} {count}" for split, count in counts.items())
        raise InputError(f"{asked}: counts must not be negative, and not all be zero")
    if max(counts.values()) > MAX_COUNT:
        raise InputError(f"a split holds {MAX_COUNT:,} images at most; more, and names run out")
    settings = {
        "format": FORMAT,
        "seed": world.seed,
        **counts,
        "size": f"{world.width}x{world.height}",
        "condition": world.condition,
        "quality": world.quality,
        "questions-per-image": world.questions_per_image,
    }
    _refuse_another_dataset(out, settings)
    splits = [_Split(out, world, kind, counts[kind]) for kind in SPLITS if counts[kind]]
    with alone_in(out):
        if not all(path.exists() for split in splits for path in split.files()):
            write_json(out / "world.json", settings)
            for folder in {folder for split in splits for folder in split.folders()}:
                folder.mkdir(parents=True, exist_ok=True)
            to_draw = [task for split in splits for task in split.unfinished("drawn", GROUP)]
            to_ask = [task for split in splits for task in split.unfinished("asked", BLOCK)]
            total = sum(split.count for split in splits)
            with pool(min(workers, len(to_draw) + len(to_ask))) as executor:
                _work_off(executor, "drawn", total, _draw_group, to_draw, device)
                _work_off(executor, "asked", total, _ask_block, to_ask)
            for split in splits:
                split.join_parts()
        elif not (out / UNFINISHED).exists():
            return False
        shutil.rmtree(out / UNFINISHED)
    return True


def _refuse_another_dataset(out: Path, settings: Mapping[str, Any]) -> None:
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
        made_with = found if isinstance(found, dict) else {}
        differences = ", ".join(
            f"--{name} {made_with.get(name)} where {value} is asked for"
            for name, value in settings.items()
            if made_with.get(name) != value
        )
        raise InputError(f"{out}: it holds another world ({differences}); give another folder")


@dataclass(frozen=True)
class _Split:
    """One split of the world that is being made, and where its files are."""

    out: Path
    world: World
    kind: str  # train, val or test
    count: int

    @property
    def name(self) -> str:
        return self.world.named(self.kind)

    def files(self) -> list[Path]:
        """The released files, written last."""
        scenes = [] if is_secret(self.name) else [scenes_file(self.out, self.name)]
        return [*scenes, questions_file(self.out, self.name)]

    def folders(self) -> set[Path]:
        images = images_folder(self.out, self.name)
        return {self.out / UNFINISHED, images, *(path.parent for path in self.files())}

    def part(self, what: str, first: int) -> Path:
        return self.out / UNFINISHED / f"{self.name}_{what}_{first:06d}.jsonl"

    def chunks(self, size: int) -> list[range]:
        """The indices of its images, so many at a time."""
        starts = range(0, self.count, size)
        return [range(first, min(first + size, self.count)) for first in starts]

    def unfinished(self, what: str, size: int) -> list[_Task]:
        """Those of its chunks that have no part file of this kind yet."""
        chunks = self.chunks(size)
        return [(self, chunk) for chunk in chunks if not self.part(what, chunk.start).exists()]

    def join_parts(self) -> None:
        if not is_secret(self.name):
            parts = [self.part("drawn", chunk.start) for chunk in self.chunks(GROUP)]
            _join(scenes_file(self.out, self.name), self.name, "scenes", parts)
        parts = [self.part("asked", chunk.start) for chunk in self.chunks(BLOCK)]
        _join(questions_file(self.out, self.name), self.name, "questions", parts)


_Task = tuple[_Split, range]  # a split, and the indices of some of its images


def _work_off(
    executor: Executor,
    what: str,
    total: int,
    do: Callable[..., None],
    tasks: Sequence[_Task],
    *arguments: Any,
) -> None:
    left = sum(len(indices) for _, indices in tasks)
    with progress(what, "images", total, done=total - left) as advance:
        futures = {executor.submit(do, *task, *arguments): len(task[1]) for task in tasks}
        for future in as_completed(futures):
            future.result()
            advance(futures[future])


def _draw_group(split: _Split, indices: range, device: torch.device | str) -> None:
    """Place and draw a group of scenes: their pictures, then their part file."""
    world, name = split.world, split.name
    scenes = make_scenes(world, split.kind, indices, device)
    pictures = draw_group(scenes, world.width, world.height, world.quality, device)
    records = []
    for index, scene, picture in zip(indices, scenes, pictures, strict=True):
        file = image_name(name, index)
        save_picture(images_folder(split.out, name) / file, picture)
        records.append(to_record(scene, name, index, file, world.width, world.height))
    _write_part(split.part("drawn", indices.start), records)


def _ask_block(split: _Split, indices: range) -> None:
    """Ask about a block of scenes, which are read back from the part files of its groups."""
    scenes = []
    for first in indices[::GROUP]:
        part = split.part("drawn", first)
        lines = part.read_text().splitlines()
        scenes += [from_record(json.loads(line), part.name) for line in lines]
    asked = make_questions(split.world, split.kind, indices.start // BLOCK, scenes)
    records = [
        question_record(question, split.name, index)
        for index, questions in zip(indices, asked, strict=True)
        for question in questions
    ]
    _write_part(split.part("asked", indices.start), records)


def _write_part(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
    with whole_file(path) as file:
        file.write("".join(lines).encode())


def _join(path: Path, split: str, key: str, parts: Sequence[Path]) -> None:
    """One file of the release from its parts, which may be more than fits into memory."""
    count = 0
    with whole_file(path) as file:
        file.write(f'{{"info":{json.dumps(info(split))},"{key}":['.encode())
        for part in parts:
            for line in part.read_bytes().splitlines():
                file.write(b",\n" if count else b"\n")
                if key == "questions":
                    # Only here is it known how many questions the blocks before have.
                    line = b'{"question_index":%d,' % count + line.removeprefix(b"{")
                file.write(line)
                count += 1
        file.write(b"\n]}\n")
