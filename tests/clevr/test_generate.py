"""A dataset on disk: the released layout and schema, the same bytes however it came about."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from macnet.clevr.generate import GeneratedFiles, generate, generate_world
from macnet.clevr.questions import NUM_FAMILIES
from macnet.clevr.release import read_scenes
from macnet.clevr.render import render
from macnet.clevr.scene import COGENT_COLORS, from_record
from macnet.clevr.world import World, generate_questions, generate_scenes
from macnet.data.splits import find_split
from macnet.errors import InputError
from macnet.files import locked_folder
from real_clevr import real_clevr

WORLD = World(seed=5, width=96, height=64)
COUNTS = {"train": 23, "val": 12, "test": 4}


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "world"
    assert generate_world(out, WORLD, COUNTS, device="cpu", workers=0)
    return out


def load(made: Path, what: str, split: str) -> list[dict[str, Any]]:
    content = json.loads((made / what / f"CLEVR_{split}_{what}.json").read_text())
    assert content["info"]["split"] == split
    assert content["info"]["version"] == "1.0"
    assert set(content) == {"info", what}
    records: list[dict[str, Any]] = content[what]
    return records


def test_the_layout_is_the_released_one(made: Path) -> None:
    expected = {
        f"images/{split}/CLEVR_{split}_{i:06d}.png"
        for split, count in COUNTS.items()
        for i in range(count)
    }
    expected |= {f"questions/CLEVR_{split}_questions.json" for split in COUNTS}
    expected |= {f"scenes/CLEVR_{split}_scenes.json" for split in ("train", "val")}
    assert set(hashes(made)) == expected | {"world.json"}
    assert not (made / ".unfinished").exists()


def test_images_are_opaque_pngs_of_their_scenes(made: Path) -> None:
    scenes = read_scenes(made / "scenes" / "CLEVR_val_scenes.json")
    rendered = render(list(scenes.values())[:10], 96, 64).images.numpy()
    for name, expected in zip(scenes, rendered, strict=False):
        with Image.open(made / "images" / "val" / name) as image:
            assert image.format == "PNG"
            assert image.mode == "RGBA"
            pixels = np.asarray(image)
        assert (pixels[..., 3] == 255).all()
        np.testing.assert_array_equal(pixels[..., :3], expected)


def test_scenes_are_those_of_the_seed(made: Path) -> None:
    for split in ("train", "val"):
        records = load(made, "scenes", split)
        scenes = [from_record(record, "scene", 96, 64) for record in records]
        assert scenes == generate_scenes(WORLD, split, range(COUNTS[split]), "cpu")
        assert [record["image_index"] for record in records] == list(range(COUNTS[split]))


def test_questions_are_those_of_the_scenes(made: Path) -> None:
    for split in ("train", "val"):
        scenes = [from_record(record, "scene", 96, 64) for record in load(made, "scenes", split)]
        expected = [
            (i, q.text, q.answer, q.program, q.family)
            for i, asked in enumerate(generate_questions(WORLD, split, 0, scenes))
            for q in asked
        ]
        records = load(made, "questions", split)
        assert [r["question_index"] for r in records] == list(range(len(records)))
        assert all(0 <= r["question_family_index"] < NUM_FAMILIES for r in records)
        names = ("image_index", "question", "answer", "program", "question_family_index")
        assert [tuple(r[name] for name in names) for r in records] == expected


def test_the_test_split_keeps_its_answers_to_itself(made: Path) -> None:
    public = {"image_index", "split", "image_filename", "question_index", "question"}
    records = load(made, "questions", "test")
    assert len(records) == 10 * COUNTS["test"]
    assert all(set(record) == public for record in records)


def kind(value: Any) -> Any:
    """The shape of a record: its keys, and the types of what they hold."""
    if isinstance(value, dict):
        return {name: kind(item) for name, item in value.items()}
    if isinstance(value, list):
        return [kind(value[0])] if value else []
    return type(value)


@pytest.mark.parametrize("what", ["scenes", "questions"])
def test_records_have_the_released_schema(made: Path, what: str) -> None:
    file = real_clevr(f"clevr_val100/{what}/CLEVR_val_{what}.json")
    real = json.loads(file.read_text())[what]
    ours = load(made, what, "val")
    if what == "scenes":
        for record in ours:
            del record["camera"], record["lamps"]  # the two that the release does not have
            for relation in record["relationships"].values():
                relation.sort(key=len, reverse=True)  # so that the first, if any, is not empty
        for relation in real[0]["relationships"].values():
            relation.sort(key=len, reverse=True)
    assert kind(ours[0]) == kind(real[0])
    if what == "questions":
        nodes = [node for record in ours for node in record["program"]]
        assert all(set(node) == set(real[0]["program"][0]) for node in nodes)


@pytest.mark.usefixtures("warm_workers")
def test_the_number_of_workers_changes_nothing(made: Path, tmp_path: Path) -> None:
    assert generate_world(tmp_path / "again", WORLD, COUNTS, device="cpu", workers=2)
    assert hashes(tmp_path / "again") == hashes(made)


@pytest.mark.usefixtures("warm_workers")
def test_the_library_function_generates_the_same_world(made: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "again")
    options: dict[str, Any] = {"seed": 5, "size": (96, 64), "device": "cpu", "workers": 1, **COUNTS}
    total = sum(COUNTS.values())
    assert generate(out, **options) == GeneratedFiles(Path(out), total, was_complete=False)
    assert hashes(Path(out)) == hashes(made)
    assert generate(out, **options) == GeneratedFiles(Path(out), total, was_complete=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "`train` 0 `val` 0 `test` 0: counts must not be negative, and not all be zero"),
        ({"train": -1, "val": 2}, "`train` -1 `val` 2 `test` 0: counts must not be negative"),
        ({"train": 1, "workers": 0}, "`workers` is 0; it must be at least 1"),
        ({"train": 1, "device": "tpu"}, "`device` is 'tpu'; it must be auto, cpu, cuda or cuda:N"),
        ({"train": 1, "size": (0, 9)}, "`size` is 0x9; it must be at least 24x16 and at most"),
    ],
)
def test_errors_of_the_library_name_arguments(
    options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=complaint):
        generate(tmp_path / "world", **options)
    assert not (tmp_path / "world").exists()


def test_a_finished_world_is_left_alone(made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    assert not generate_world(made, WORLD, COUNTS, device="cpu", workers=0)
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_blocks_ask_for_themselves_and_count_on(tmp_path: Path, small_blocks: int) -> None:
    world = World(seed=2, width=24, height=16, questions_per_image=2)
    count = small_blocks + 3
    generate_world(
        tmp_path / "w", world, {"train": count, "val": 0, "test": 0}, device="cpu", workers=0
    )
    records = load(tmp_path / "w", "questions", "train")
    assert [r["question_index"] for r in records] == list(range(len(records)))
    scenes = list(read_scenes(tmp_path / "w" / "scenes" / "CLEVR_train_scenes.json").values())
    last = [
        q.text
        for asked in generate_questions(world, "train", 1, scenes[small_blocks:])
        for q in asked
    ]
    assert [r["question"] for r in records if r["image_index"] >= small_blocks] == last
    assert {path.name for path in (tmp_path / "w").iterdir()} == {
        "images",
        "questions",
        "scenes",
        "world.json",
    }


def test_a_condition_names_its_splits(tmp_path: Path) -> None:
    world = World(seed=2, condition="B", width=24, height=16, questions_per_image=1)
    generate_world(
        tmp_path / "w", world, {"train": 0, "val": 5, "test": 1}, device="cpu", workers=0
    )
    assert set(hashes(tmp_path / "w")) == {
        *(f"images/valB/CLEVR_valB_{i:06d}.png" for i in range(5)),
        "images/testB/CLEVR_testB_000000.png",
        "scenes/CLEVR_valB_scenes.json",
        "questions/CLEVR_valB_questions.json",
        "questions/CLEVR_testB_questions.json",
        "world.json",
    }
    for record in load(tmp_path / "w", "scenes", "valB"):
        assert record["split"] == "valB"
        assert all(o["color"] in COGENT_COLORS["B"][o["shape"]] for o in record["objects"])


def test_an_easier_world_says_so_in_every_file(made: Path, tmp_path: Path) -> None:
    own = {"num_objects": [1, 2], "families": ["zero_hop"]}
    clevr = World(seed=0, width=24, height=16, questions_per_image=3)
    easier = replace(clevr, num_objects=(1, 2), families=("zero_hop",))

    def make(world: World) -> bool:
        counts = {"train": 0, "val": 3, "test": 0}
        return generate_world(tmp_path / "w", world, counts, device="cpu", workers=0)

    assert make(easier)
    for what in ("scenes", "questions"):
        content = json.loads((tmp_path / "w" / what / f"CLEVR_val_{what}.json").read_text())
        assert {name: content["info"][name] for name in own} == own
    settings = json.loads((tmp_path / "w" / "world.json").read_text())
    assert settings.items() >= {"num-objects": [1, 2], "families": ["zero_hop"]}.items()
    assert not make(easier), "it is complete"
    with pytest.raises(InputError, match=r"`num_objects` \[1, 2\] where None is asked for"):
        make(clevr)
    usual = json.loads((made / "world.json").read_text())
    assert not usual.keys() & {"num-objects", "families"}, "as before there were easier ones"


@pytest.mark.parametrize(
    ("world", "counts", "complaint"),
    [
        (World(seed=6, width=96, height=64), COUNTS, "`seed` 5 where 6 is asked for"),
        (WORLD, COUNTS | {"train": 24}, "`train` 23 where 24 is asked for"),
        (World(seed=5), COUNTS, "`size` 96x64 where 480x320 is asked for"),
    ],
)
def test_another_world_is_refused_and_untouched(
    made: Path, world: World, counts: dict[str, int], complaint: str
) -> None:
    before = hashes(made)
    with pytest.raises(InputError, match=complaint):
        generate_world(made, world, counts, device="cpu", workers=0)
    assert hashes(made) == before


def test_a_folder_with_anything_else_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "CLEVR_train_000000.png").write_bytes(b"real")
    before = hashes(tmp_path)
    with pytest.raises(InputError, match=r"it holds something else already \(images\)"):
        generate_world(tmp_path, WORLD, COUNTS, device="cpu", workers=0)
    assert hashes(tmp_path) == before


def test_a_second_run_in_the_same_folder_waits_outside(tmp_path: Path) -> None:
    with locked_folder(tmp_path), pytest.raises(InputError, match="another run is at work here"):
        generate_world(tmp_path, WORLD, COUNTS, device="cpu", workers=0)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped when all its parts were there, and none of them joined."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path_factory.mktemp("stopped") / "world"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("macnet.clevr.generate.join_parts", stop)
        with pytest.raises(KeyboardInterrupt):
            generate_world(out, WORLD, COUNTS, device="cpu", workers=0)
    return out


@pytest.mark.parametrize(
    "state", ["one group rendered", "all questions generated", "one file joined", "all joined"]
)
def test_what_is_done_is_not_done_again(
    made: Path, stopped: Path, tmp_path: Path, state: str
) -> None:
    """Whatever state a killed run leaves behind, the next one completes the same dataset."""
    out = tmp_path / "world"
    shutil.copytree(stopped, out)
    parts = sorted(path.name for path in (out / ".unfinished").iterdir())
    assert len(parts) == (3 + 1) + (2 + 1) + (1 + 1)  # groups of ten and a block in each split
    if state == "one group rendered":
        for part in parts:
            if part != "train_scenes_000010.jsonl":
                (out / ".unfinished" / part).unlink()
    elif state == "one file joined":
        shutil.copy(made / "scenes" / "CLEVR_train_scenes.json", out / "scenes")
    elif state == "all joined":
        for folder in ("scenes", "questions"):
            shutil.copytree(made / folder, out / folder, dirs_exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.png")}
    assert generate_world(out, WORLD, COUNTS, device="cpu", workers=0)
    kept = {path.name for path, when in before.items() if path.stat().st_mtime_ns == when}
    assert len(kept) == len(before) == sum(COUNTS.values())
    assert hashes(out) == hashes(made)


def shorten(path: Path, end: int | None) -> None:
    path.write_bytes(path.read_bytes()[:end])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda path: shorten(path, 0),
    "cut": lambda path: shorten(path, path.stat().st_size // 2),
    "cut by a byte": lambda path: shorten(path, -1),
    "cut at a line": lambda path: path.write_bytes(
        b"".join(path.read_bytes().splitlines(keepends=True)[:-1])
    ),
    "all zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbage": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9),
    "a bit flipped": flip,
}
PICTURE, SCENES = "images/train/CLEVR_train_000013.png", "scenes/CLEVR_train_scenes.json"
QUESTIONS, SECRET = "questions/CLEVR_val_questions.json", "questions/CLEVR_test_questions.json"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *((PICTURE, damage) for damage in DAMAGES if damage != "cut at a line"),
        *((SCENES, damage) for damage in ("deleted", "cut", "cut by a byte", "all zeros")),
        *((QUESTIONS, damage) for damage in ("empty", "cut at a line")),
        (SECRET, "cut by a byte"),
    ],
)
def test_a_finished_world_is_mended(made: Path, tmp_path: Path, file: str, damage: str) -> None:
    out = tmp_path / "world"
    shutil.copytree(made, out)
    DAMAGES[damage](out / file)
    assert hashes(out) != hashes(made)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.png")}
    assert generate_world(out, WORLD, COUNTS, device="cpu", workers=0)
    assert hashes(out) == hashes(made)
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*.png")}
    changed = {path for path, when in after.items() if before.get(path) != when}
    assert changed == ({out / file} if file == PICTURE else set())


@pytest.mark.parametrize("part", ["train_scenes_000010", "val_questions_000000"])
@pytest.mark.parametrize(
    "damage", [damage for damage in DAMAGES if damage not in ("deleted", "garbage")]
)
def test_damaged_parts_are_made_again(
    made: Path, stopped: Path, tmp_path: Path, part: str, damage: str
) -> None:
    out = tmp_path / "world"
    shutil.copytree(stopped, out)
    DAMAGES[damage](out / ".unfinished" / f"{part}.jsonl")
    (out / PICTURE).write_bytes(b"")  # of a group whose part says that it was drawn
    assert generate_world(out, WORLD, COUNTS, device="cpu", workers=0)
    assert hashes(out) == hashes(made)


def test_a_world_is_on_the_disk_before_it_counts_as_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a power cut would leave empty pictures in a folder that nobody looks through again."""

    def cut() -> None:
        (tmp_path / "w" / "images" / "val" / "CLEVR_val_000001.png").write_bytes(b"")
        raise KeyboardInterrupt

    world, counts = World(seed=2, width=24, height=16), {"train": 0, "val": 2, "test": 0}
    monkeypatch.setattr(os, "sync", cut)
    with pytest.raises(KeyboardInterrupt):
        generate_world(tmp_path / "w", world, counts, device="cpu", workers=0)
    with pytest.raises(InputError, match="this world is unfinished"):
        find_split(tmp_path / "w", "val")
    monkeypatch.undo()
    assert generate_world(tmp_path / "w", world, counts, device="cpu", workers=0)
    generate_world(tmp_path / "again", world, counts, device="cpu", workers=0)
    assert hashes(tmp_path / "w") == hashes(tmp_path / "again")
