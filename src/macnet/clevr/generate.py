"""A whole dataset on disk, in the layout and schema of the release.

The work is cut into tasks that need nothing of each other: groups of scenes are placed and drawn,
then blocks of them asked about. Each task ends by writing a part file under OUT/.unfinished, and
whatever has its part file is done, whoever did it and when; so a run that was killed goes on
where it was. At the end the parts are joined into the released files, and removed.

Nothing on disk is trusted for being there. A part begins with a hash of the rest, the chunks of a
picture have checksums, the records of a released file are numbered: whatever is missing, cut short
or damaged is made again, in a world that was finished too.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from msgspec.json import Decoder

from macnet.clevr.pictures import GROUP, draw_group, is_whole_png, save_picture
from macnet.clevr.questions import BLOCK
from macnet.clevr.release import (
    FORMAT,
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

MAX_COUNT = 1_000_000  # images are numbered with six digits
CHECKED_SILENTLY = 10_000  # images, in a second or so


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
        joined = {split for split in splits if split.is_joined()}
        to_draw = _to_draw(splits, joined)
        to_ask = [task for split in splits if split not in joined for task in split.to_ask()]
        if not (out / UNFINISHED).exists() and len(joined) == len(splits) and not to_draw:
            return False
        write_json(out / "world.json", settings)
        for folder in {folder for split in splits for folder in split.folders()}:
            folder.mkdir(parents=True, exist_ok=True)
        total = sum(split.count for split in splits)
        with pool(min(workers, len(to_draw) + len(to_ask))) as executor:
            _work_off(executor, "drawn", total, _draw_group, to_draw, device)
            _work_off(executor, "asked", total, _ask_block, to_ask)
        for split in splits:
            if split not in joined:
                split.join_parts()
        # Until here a power cut may leave empty files, for the next run to find. To wait for each
        # picture would take 4 ms, a twentieth of what it takes to draw it.
        os.sync()
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

    def picture(self, index: int) -> Path:
        return images_folder(self.out, self.name) / image_name(self.name, index)

    def has_pictures(self, indices: Iterable[int]) -> bool:
        size = self.world.width, self.world.height
        return all(is_whole_png(self.picture(i), *size) for i in indices)

    def chunks(self, size: int) -> list[range]:
        """The indices of its images, so many at a time."""
        starts = range(0, self.count, size)
        return [range(first, min(first + size, self.count)) for first in starts]

    def to_ask(self) -> list[_Task]:
        chunks = self.chunks(BLOCK)
        return [(self, chunk) for chunk in chunks if not _is_part(self.part("asked", chunk.start))]

    def join_parts(self) -> None:
        if not is_secret(self.name):
            parts = [self.part("drawn", chunk.start) for chunk in self.chunks(GROUP)]
            _join(scenes_file(self.out, self.name), self.name, "scenes", parts)
        parts = [self.part("asked", chunk.start) for chunk in self.chunks(BLOCK)]
        _join(questions_file(self.out, self.name), self.name, "questions", parts)

    def is_joined(self) -> bool:
        """Whether its released files are there, with all they should hold."""
        scenes, questions = (f(self.out, self.name) for f in (scenes_file, questions_file))
        if not is_secret(self.name) and _count(scenes, self.name, "scenes") != self.count:
            return False
        return _count(questions, self.name, "questions") is not None


_Task = tuple[_Split, range]  # a split, and the indices of some of its images


def _to_draw(splits: Sequence[_Split], joined: Collection[_Split]) -> list[_Task]:
    """The groups that have no part, in a split that still needs one, or not all of their pictures.

    Pictures are read but not decoded: their checksums are looked at.
    """
    groups = [(split, chunk) for split in splits for chunk in split.chunks(GROUP)]
    drawn = [
        (split, chunk)
        for split, chunk in groups
        if split in joined or _is_part(split.part("drawn", chunk.start))
    ]
    count = sum(len(chunk) for _, chunk in drawn)
    shown = progress("checked", "images", count) if count > CHECKED_SILENTLY else nullcontext()
    whole = set()
    with shown as advance:
        for split, chunk in drawn:
            if split.has_pictures(chunk):
                whole.add((split, chunk))
            if advance is not None:
                advance(len(chunk))
    return [group for group in groups if group not in whole]


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
    missing = [i for i in indices if not split.has_pictures([i])]
    if missing:  # what is there stays as it is: another device may round otherwise
        pictures = draw_group(scenes, world.width, world.height, world.quality, device)
        for i in missing:
            save_picture(split.picture(i), pictures[i - indices.start])
    records = [
        to_record(scene, name, i, split.picture(i).name, world.width, world.height)
        for i, scene in zip(indices, scenes, strict=True)
    ]
    _write_part(split.part("drawn", indices.start), records)


def _ask_block(split: _Split, indices: range) -> None:
    """Ask about a block of scenes, which are read back from the part files of its groups."""
    scenes = []
    for first in indices[::GROUP]:
        part = split.part("drawn", first)
        scenes += [from_record(json.loads(line), part.name) for line in _read_part(part)]
    asked = make_questions(split.world, split.kind, indices.start // BLOCK, scenes)
    records = [
        question_record(question, split.name, index)
        for index, questions in zip(indices, asked, strict=True)
        for question in questions
    ]
    _write_part(split.part("asked", indices.start), records)


# --- parts, and what they become -------------------------------------------------------------


def _write_part(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    lines = [json.dumps(record, separators=(",", ":")) + "\n" for record in records]
    content = "".join(lines).encode()
    with whole_file(path) as file:
        file.write(_hash(content) + b"\n" + content)


def _read_part(path: Path) -> list[bytes]:
    """The records of a part, a line each."""
    said, _, content = path.read_bytes().partition(b"\n")
    if said != _hash(content):
        raise InputError(f"{path}: it is damaged; give the same command again")
    return content.splitlines()


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _is_part(path: Path) -> bool:
    try:
        _read_part(path)
    except (FileNotFoundError, InputError):
        return False
    return True


def _opening(split: str, key: str) -> bytes:
    return f'{{"info":{json.dumps(info(split))},"{key}":['.encode()


_CLOSING = b"]}\n"


def _join(path: Path, split: str, key: str, parts: Sequence[Path]) -> None:
    """One file of the release from its parts, which may be more than fits into memory."""
    count = 0
    with whole_file(path) as file:
        file.write(_opening(split, key))
        for part in parts:
            for line in _read_part(part):
                file.write(b",\n" if count else b"\n")
                if key == "questions":
                    # Only here is it known how many questions the blocks before have.
                    line = b'{"question_index":%d,' % count + line.removeprefix(b"{")
                file.write(line)
                count += 1
        file.write(b"\n" + _CLOSING)


class _Numbered(Struct):
    image_index: int
    question_index: int | None = None


_NUMBERED = Decoder(_Numbered)


def _count(path: Path, split: str, key: str) -> int | None:
    """How many records a file of `_join` holds; None if it is not there, or not all of it.

    The beginning and the end must be there, and between them lines of JSON, numbered without a gap.
    """
    count, comma = 0, True
    try:
        with path.open("rb") as file:
            if file.readline() != _opening(split, key) + b"\n":
                return None
            for line in file:
                if line == _CLOSING and not (count and comma):
                    return None if file.read(1) else count
                record = _NUMBERED.decode(line.removesuffix(b"\n").removesuffix(b","))
                number = record.image_index if key == "scenes" else record.question_index
                if number != count or not comma:
                    return None
                count, comma = count + 1, line.endswith(b",\n")
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return None
