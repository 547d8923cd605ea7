"""Damaged files: each is read as it was meant, or refused in one sentence that names it."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from macnet.clevr.pictures import read_picture
from macnet.cli import main
from macnet.data import extract as extraction
from macnet.data.community import write_questions_h5, write_vocab_json
from macnet.data.dataset import Dataset
from macnet.data.extract import extract
from macnet.data.features import open_features
from macnet.data.pack import pack_split, pack_vocabulary
from macnet.data.questions import TYPES, UNKNOWN
from macnet.data.resnet import ResNet101, load_resnet
from macnet.data.splits import find_split
from macnet.data.vocab import ANSWERS, PROGRAM_TOKENS
from macnet.errors import InputError

SEEDS = range(40)  # of damages, for each kind of file
WIDTH, HEIGHT = 12, 8


# --- sound files -----------------------------------------------------------------------------


def step(function: str, inputs: list[int], *values: str) -> dict[str, Any]:
    return {"function": function, "inputs": inputs, "value_inputs": list(values)}


COUNT = [step("scene", []), step("filter_color", [0], "red"), step("count", [1])]
EXIST = [step("scene", []), step("filter_shape", [0], "cube"), step("exist", [1])]
IMAGES = [f"CLEVR_train_{i:06d}.png" for i in range(3)]


def asked(image: int, text: str, answer: str) -> dict[str, Any]:
    return {
        "image_index": image,
        "image_filename": IMAGES[image],
        "split": "train",
        "question": text,
        "answer": answer,
    }


PEOPLES = [asked(i, f"Could {i} balls hide behind the blob?", "no") for i in range(3)]
RECORDS = [
    {**record, "question_index": number, "question_family_index": 5, "program": program}
    for number, (record, program) in enumerate(
        pair
        for i in range(3)
        for pair in (
            (asked(i, "How many red things are there?", str(i)), COUNT),
            (asked(i, "Are there any cubes?", "yes"), EXIST),
        )
    )
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each kind there is, and `cache`, a pack of each kind."""
    root = tmp_path_factory.mktemp("sound")
    for folder in ("data/images/train", "data/questions", "humans"):
        (root / folder).mkdir(parents=True)
    for name, records in (
        ("data/questions/CLEVR_train_questions.json", RECORDS),
        ("humans/CLEVR-Humans-train.json", PEOPLES),
    ):
        (root / name).write_text(json.dumps({"info": {"split": "train"}, "questions": records}))
    rng = np.random.default_rng(0)
    for name in IMAGES:
        noise = rng.integers(0, 256, (HEIGHT, WIDTH, 4), dtype=np.uint8)
        Image.fromarray(noise).save(root / "data/images/train" / name)
    values = rng.random((3, 4, 2, 3), np.float32)
    with h5py.File(root / "features.h5", "w") as file:
        file["features"] = values
    with h5py.File(root / "chunked.h5", "w") as file:
        file.create_dataset("features", data=values, chunks=(1, 4, 2, 3), compression="gzip")
    dataset = packed(root / "data", root / "cache")
    packed(root / "data", root / "cache", images=root / "features.h5")
    dataset.vocabulary.save(root / "words.json")
    write_vocab_json(root / "vocab.json", dataset.vocabulary)
    write_questions_h5(root / "questions.h5", dataset.questions)
    weights = {name: array.clone() for name, array in ResNet101(0).state_dict().items()}
    torch.save(weights, root / "weights.pth")
    save_file(weights, root / "weights.safetensors")
    return root


def packed(
    data: Path, cache: Path, images: Path | None = None, vocabulary: Path | None = None
) -> Dataset:
    words = pack_vocabulary(data, "train", cache, vocabulary)
    return pack_split(find_split(data, "train", images), cache, words, size=(WIDTH, HEIGHT))


# --- damages ---------------------------------------------------------------------------------


def damaged(content: bytes, rng: random.Random) -> bytes:
    """As disks, networks and editors do it; half of the time where a file tells what it is."""
    near = rng.choice([len(content), min(len(content), 1000)])
    first, last = sorted(rng.choices(range(near + 1), k=2))
    some = min(last, first + rng.choice([1, 4, 64, 1024]))
    match rng.randrange(8):
        case 0:
            return content[:first]
        case 1 | 2:
            flipped = bytearray(content)
            for place in rng.choices(range(near), k=rng.choice([1, 1, 3, 30])):
                flipped[place] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 3:
            return content[:first] + bytes(some - first) + content[some:]
        case 4:
            return content[:first] + rng.randbytes(some - first) + content[some:]
        case 5:
            return content[some:last] + content[first:some] + content[:first] + content[last:]
        case 6:
            return content[:first] + content[some:]
        case _:
            return content + rng.choice([b"\0", b"\n{}", rng.randbytes(50), content])


def resealed(content: bytes, rng: random.Random) -> bytes:
    """A PNG of other chunks, whose checksums hold."""
    chunks, place = [], 8
    while place < len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    which = rng.randrange(len(chunks))
    kind, data = chunks[which]
    match rng.randrange(4):
        case 0:
            del chunks[which]
        case 1:
            chunks[which] = (kind, damaged(data, rng) if data else b"x")
        case 2:
            kind = rng.choice(b"PLTE tRNS acTL fcTL iCCP zTXt gAMA IDAT zzzz".split())
            chunks.insert(which, (kind, rng.randbytes(rng.choice([0, 3, 26, 300]))))
        case _:  # width, height, depth, kind of pixels, three more
            sides = [rng.choice([0, 1, 9, 20_000, 2**31]).to_bytes(4, "big") for _ in range(2)]
            form = [rng.choice([1, 4, 8, 16]), rng.randrange(8), 0, 0, rng.randrange(2)]
            chunks[0] = (b"IHDR", b"".join(sides) + bytes(form))
    sealed = (
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        for kind, data in chunks
    )
    return content[:8] + b"".join(sealed)


STRANGE: list[Any] = [
    None, True, -1, 0, 1.5, 7, 2**31, 10**30, 1e308, float("nan"), float("inf"), "", " ", "a\nb",
    "\x1b[2J", "é" * 9000, "\ud800", "no", "scene", "CLEVR_train_000002.png", "../x.png", [], {},
    [[]], [0], [1, 2], {"a": 1}, [None], " ".join(map(str, range(300))),
    " ".join(map(str, range(40_000))), json.loads("[" * 400 + "]" * 400),
]  # fmt: skip


def mutated(content: bytes, rng: random.Random) -> bytes:
    """As programs do it that write JSON of another kind: it stays JSON, mostly."""
    root = [json.loads(content)]
    holder: Any = root
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = rng.choice(list(keys))
        below = holder[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.1:
            break
        holder = below
    match rng.randrange(5):
        case 0 if len(holder) > 1 or holder is not root:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, below)
        case 2 if isinstance(holder, dict):
            holder[rng.choice(["", "x\ny", "answer", *keys])] = holder.pop(key)
        case _:
            holder[key] = rng.choice(STRANGE)
    text = json.dumps(root[0] if root else None)
    if rng.random() < 0.05:
        text = text.replace("[", "[" * 100_000, 1)
    return text.encode()


# --- what becomes of them --------------------------------------------------------------------


class Case(NamedTuple):
    file: str
    command: str
    pack: str
    """The kind of pack that is made from the file."""


CASES = {
    "CLEVR": Case("data/questions/CLEVR_train_questions.json", "data", "questions"),
    "Humans": Case("humans/CLEVR-Humans-train.json", "humans --images data", "questions"),
    "picture": Case(f"data/images/train/{IMAGES[1]}", "data", "images"),
    "features": Case("features.h5", "data --images features.h5", "features"),
    "chunked": Case("chunked.h5", "data --images chunked.h5", "features"),
    "questions": Case(
        "questions.h5", "questions.h5 --images features.h5 --vocabulary vocab.json", "questions"
    ),
    "words": Case("words.json", "data --vocabulary words.json", "questions"),
    "vocab": Case("vocab.json", "data --vocabulary vocab.json", "questions"),
}
SAME_KIND = [
    {CASES[a].file, CASES[b].file}
    for a, b in (*((name, name) for name in CASES), ("features", "chunked"), ("words", "vocab"))
]
PROGRESS = re.compile(r"(packing|extracted) \d+/\d+, .*")


@pytest.fixture(autouse=True)
def here(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of everything, to be damaged."""
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capfd: pytest.CaptureFixture[str], command: str) -> str | None:
    """What is said if a command refuses; None if it succeeds."""
    code = main(command.split())
    captured = capfd.readouterr()
    lines = [line for line in captured.err.split("\n")[:-1] if not PROGRESS.fullmatch(line)]
    if code == 0:
        assert lines == []
        return None
    assert code == 2
    assert captured.out == ""
    (line,) = lines
    assert line.startswith("macnet: ")
    assert line.isprintable()
    assert len(line) < 600
    return line


def assert_sound(data: Dataset) -> None:
    q = data.questions
    assert (q.tokens < len(data.vocabulary)).all()
    assert (q.lengths > 0).all()
    assert np.array_equal(q.lengths, (q.tokens != 0).sum(axis=1))
    assert ((q.answers >= UNKNOWN) & (q.answers < len(ANSWERS))).all()
    assert ((q.types >= UNKNOWN) & (q.types < len(TYPES))).all()
    assert (q.programs < len(PROGRAM_TOKENS)).all()
    assert ((data.rows >= 0) & (data.rows < len(data.images))).all()
    assert np.isfinite(data.images).all()
    assert len(data) == len(q) > 0


def refusal(attempt: Callable[[], object]) -> str | None:
    """The same of something that is no command."""
    try:
        attempt()
    except InputError as error:
        said = str(error)
    else:
        return None
    assert len(said) < 900
    return said


def escapes(file: Path, attempt: Callable[[], None], seeds: range | None = None) -> list[str]:
    """What goes wrong with a file that is damaged in many ways."""
    content, found = file.read_bytes(), []
    clever = {".json": mutated, ".png": resealed}.get(file.suffix, damaged)
    for seed in seeds or SEEDS:
        rng = random.Random(f"{file.name}/{seed}")
        damage = rng.choice([clever, damaged])
        file.write_bytes(damage(content, rng))
        try:
            attempt()
        except Exception as error:
            found.append(f"{damage.__name__} {seed}: {type(error).__name__} {error}")
    file.write_bytes(content)
    return found


@pytest.mark.parametrize("name", CASES)
def test_damaged_sources(name: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    data, *options = case.command.split()
    given = dict(zip([flag[2:] for flag in options[::2]], map(Path, options[1::2]), strict=True))

    def attempt() -> None:
        shutil.rmtree("new", ignore_errors=True)
        said = run(capfd, f"pack {data} new --size {WIDTH}x{HEIGHT} {' '.join(options)}")
        if said is None:
            assert_sound(packed(Path(data), Path("new"), **given))
            return
        assert Path(case.file).name in said
        there = [path.name for path in Path().glob("new/*") if path.suffix != ".lock"]
        assert not [name for name in there if name.startswith(".")]
        # Questions about images that are not there are no damage: these may come.
        assert " missing" in said or not [name for name in there if name.startswith(case.pack)]

    attempt()
    assert Path("new").exists()
    assert not escapes(here / case.file, attempt)


def test_a_picture_is_right_or_refused(here: Path) -> None:
    file = here / "picture.png"
    gradient = np.indices((40, 60)).sum(axis=0)[..., None] * [1, 2, 3] % 256
    Image.fromarray(gradient.astype(np.uint8)).save(file)
    content, pixels = file.read_bytes(), read_picture(file, 60, 40)
    read = []
    for seed in SEEDS:
        file.write_bytes(damaged(content, random.Random(seed)))
        said = refusal(lambda: read.append(read_picture(file, 60, 40)))
        assert said is None or said.startswith(f"{file}: it cannot be read as an image")
    assert 0 < len(read) < len(SEEDS) // 2
    assert all(np.array_equal(found, pixels) for found in read)


@pytest.mark.parametrize("kind", ["words", "images", "features", "questions"])
def test_damaged_packs(kind: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder,) = (here / "cache").glob(f"{kind}-*")
    more = "--images features.h5" if kind == "features" else ""

    def attempt() -> None:
        said = run(capfd, f"pack data cache --size {WIDTH}x{HEIGHT} {more}")
        # Numbers in an array may be any. They have no checksum: to open a pack is not to read it.
        assert said is None or " missing" in said or (str(folder.name) in said and "remove" in said)

    attempt()
    assert len(list(here.glob("cache/[!.]*"))) == 4
    for file in folder.iterdir():
        many = len(SEEDS) if file.suffix == ".json" else len(SEEDS) // 5
        assert not escapes(file, attempt, SEEDS[:many])


@pytest.mark.parametrize("name", ["weights.pth", "weights.safetensors"])
def test_damaged_weights(name: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def attempt() -> None:
        said = refusal(lambda: load_resnet(here / name, 0))
        assert said is None or said.startswith(f"{here / name}: ")
        assert capfd.readouterr().err == ""

    attempt()
    assert not escapes(here / name, attempt)


@pytest.mark.parametrize("name", ["out.h5", "begun/count.json", "begun/features.h5"])
def test_damaged_extractions(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extraction.CHANNELS_AND_SIDE, 0, (64, 56))
    monkeypatch.setattr(extraction, "SECONDS_BETWEEN_COUNTS", 0.0)
    network = load_resnet(here / "weights.pth", 0)
    images = dict(enumerate(sorted((here / "data/images/train").iterdir())))
    last = images[2].read_bytes()
    images[2].write_bytes(b"")
    out, unfinished = here / "out.h5", here / ".out.h5.unfinished"
    assert refusal(lambda: extract(images, out, network, batch=1))
    images[2].write_bytes(last)
    unfinished.rename(here / "begun")
    if name == "out.h5":
        extract(images, out, network)

    def attempt() -> None:
        if name != "out.h5":
            out.unlink(missing_ok=True)
            shutil.copytree(here / "begun", unfinished, dirs_exist_ok=True)
        said = refusal(lambda: extract(images, out, network))
        if said is None:
            assert open_features(out).shape == (3, 64, 56, 56)
        else:
            assert said.startswith((f"{out}: ", f"{unfinished}: "))

    attempt()
    assert not escapes(here / name, attempt, SEEDS[: len(SEEDS) // 2])


@pytest.mark.parametrize("name", CASES)
def test_another_thing_in_its_place(
    name: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    file = here / case.file
    data, *options = case.command.split()
    command = f"pack {data} new --size {WIDTH}x{HEIGHT} {' '.join(options)}"
    contents = {other.file: (here / other.file).read_bytes() for other in CASES.values()}
    for other in ("nothing", "empty", "folder", *contents):
        file.unlink()
        if other == "folder":
            file.mkdir()
        elif other != "nothing":
            file.write_bytes(contents.get(other, b""))
        said = run(capfd, command)
        # Files of the same kind in each other's place are no error.
        if said is not None or {other, case.file} not in SAME_KIND:
            assert said is not None
            assert file.name in said, other
            assert not list(here.glob(f"new/{case.pack}-*")) or " missing" in said
            assert not list(here.glob("new/*.part"))
        if file.is_dir():
            file.rmdir()
        file.write_bytes(contents[case.file])
        shutil.rmtree("new", ignore_errors=True)


# --- the cases one meets ---------------------------------------------------------------------

QUESTIONS = Path("data/questions/CLEVR_train_questions.json")
FOLDER = Path("data/images/train")


def rewritten(change: Callable[[list[dict[str, Any]]], object]) -> None:
    content = json.loads(QUESTIONS.read_text())
    change(content["questions"])
    QUESTIONS.write_text(json.dumps(content))


def written(values: np.ndarray) -> None:
    with h5py.File("features.h5", "w") as file:
        file["features"] = values


def features(one: float = 1.0) -> np.ndarray:
    values = np.ones((3, 4, 2, 3), np.float32)
    values[1, 2, 0, 1] = one
    return values


MET: dict[str, tuple[Callable[[], object], str, str]] = {
    "missing images": (
        lambda: [(FOLDER / name).unlink() for name in IMAGES[1:]],
        "data",
        f"{FOLDER}: 1 of 3 images are there, 2 are missing: {IMAGES[1]}, {IMAGES[2]}; fetch them,",
    ),
    "no image at all": (
        lambda: [(FOLDER / name).unlink() for name in IMAGES],
        "data",
        f"{FOLDER}: it holds no images named as CLEVR_train_000000.png is",
    ),
    "a truncated picture": (
        lambda: os.truncate(FOLDER / IMAGES[2], 90),
        "data",
        f"{FOLDER / IMAGES[2]}: it cannot be read as an image (Truncated File Read)",
    ),
    "truncated features": (
        lambda: os.truncate("features.h5", 2100),
        "data --images features.h5",
        "features.h5: not HDF5, or damaged or cut short (",
    ),
    "features of another shape": (
        lambda: written(np.ones((3, 24), "f4")),
        "data --images features.h5",
        "features.h5: 'features' has the shape (3, 24); (images, channels, height, width) is",
    ),
    "NaN in features": (
        lambda: written(features(np.nan)),
        "data --images features.h5",
        "features.h5: row 1 of 'features' holds NaN or infinity",
    ),
    "features of fewer images": (
        lambda: written(features()[:2]),
        "data --images features.h5",
        f"features.h5: 2 of 3 images are there, 1 are missing: {IMAGES[2]}; fetch them, or leave",
    ),
    "truncated questions": (
        lambda: os.truncate("questions.h5", 2000),
        "questions.h5 --images features.h5 --vocabulary vocab.json",
        "questions.h5: not HDF5, or damaged or cut short (",
    ),
    "features for questions": (
        lambda: None,
        "features.h5 --images features.h5 --vocabulary vocab.json",
        'features.h5: it has no "questions"; is this a file of questions?',
    ),
    "a question about an absent image": (
        lambda: rewritten(
            lambda q: q[3].update(image_index=7, image_filename="CLEVR_train_000007.png")
        ),
        "data",
        f"{FOLDER}: 3 of 4 images are there, 1 are missing: CLEVR_train_000007.png; fetch them,",
    ),
    "an index twice": (
        lambda: rewritten(lambda q: q[3].update(question_index=1)),
        "data",
        f'{QUESTIONS}: 2 of its questions have the "question_index" 1',
    ),
    "an image twice": (
        lambda: shutil.copy(FOLDER / IMAGES[0], FOLDER / "CLEVR_train_0000000.png"),
        "data",
        f"{FOLDER}: CLEVR_train_000000.png and CLEVR_train_0000000.png are both image 0",
    ),
    "JSON cut in the middle": (
        lambda: os.truncate(QUESTIONS, 1000),
        "data",
        f"{QUESTIONS}: not JSON, or cut short at byte 1,000 (",
    ),
    "people's questions for CLEVR's": (
        lambda: shutil.copy("humans/CLEVR-Humans-train.json", QUESTIONS),
        "data",
        f'{QUESTIONS}: question 0: it has no "question_index"; is this CLEVR-Humans?',
    ),
    "CLEVR's questions for people's": (
        lambda: shutil.copy(QUESTIONS, "humans/CLEVR-Humans-train.json"),
        "humans --images data",
        'humans/CLEVR-Humans-train.json: question 0: it has a "question_index"; is this CLEVR?',
    ),
    "people's questions without images": (
        lambda: None,
        "humans",
        "humans: these come without images; say with --images where CLEVR's are",
    ),
    "no dataset": (
        lambda: None,
        "cache",
        "cache: not a dataset; it has neither questions/CLEVR_train_questions.json nor",
    ),
    "no folder": (lambda: None, "nowhere", "nowhere: there is no such folder; give the folder of"),
    "no such split": (
        lambda: None,
        "data --split val",
        "data: it has no split 'val'; it has train",
    ),
    "a size that no memory would hold": (
        lambda: None,
        "data --size 24x4097",
        "--size is 24x4097; neither may be more than 4096",
    ),
    "no vocabulary": (
        lambda: None,
        "data --vocabulary x.json",
        "x.json: there is no such file",
    ),
}


@pytest.mark.parametrize("case", MET)
def test_what_is_said_of(case: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damage, arguments, expected = MET[case]
    damage()
    before = {path for path in here.rglob("*") if "new" not in path.parts}
    said = run(capfd, f"pack {arguments} new")
    assert said is not None
    assert said.startswith(f"macnet: {expected}")
    assert before == {path for path in here.rglob("*") if "new" not in path.parts}
    assert not list(here.glob("new/.*.part"))


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_disk_that_is_full_at_any_moment(
    call: str, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = getattr(os, call), 0

    def until_full(*arguments: Any) -> Any:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        room -= 1
        return real(*arguments)

    monkeypatch.setattr(os, call, until_full)
    for moment in range(20):
        room = moment
        said = run(capfd, f"pack data new --size {WIDTH}x{HEIGHT}")
        assert not list(here.glob("new/.*.part"))
        if said is None:
            break
        kind = "questions" if moment < 6 else "images"  # so many arrays questions have
        assert re.match(rf"macnet: new/{kind}-\w+: no space left; make room, and the same", said)
        shutil.rmtree("new")
    assert moment >= 8
    assert_sound(packed(here / "data", here / "new"))
