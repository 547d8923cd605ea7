"""The commands as a user runs them: each in a process of its own."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from broken_off import room_for
from macnet.cli import main
from processes import Command
from tiny_resnet import random_weights

Again = Callable[..., Any]  # gives what was written to both streams
MACNET = Path(sys.executable).with_name("macnet")
REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
# Enough groups of ten for a run to be stopped between two of them.
SMALL = ("--train", "90", "--val", "4", "--test", "4", "--size", "96x64", "--seed", "3")


def macnet(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which takes two seconds to begin."""
    run = subprocess.run([MACNET, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    return run


@pytest.fixture
def again(capsys: pytest.CaptureFixture[str]) -> Again:
    """The same command in this process, where it is not the process that matters."""

    def run(*arguments: str | Path, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == code
        return capsys.readouterr()

    return run


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated once, for all processes of xdist, whose folders are in one."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    out = shared / "world of commands"
    with (shared / "lock of the world").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            run = macnet("generate", out, *SMALL, "--workers", "1")
            assert f"{out}: 98 images made in" in run.stdout
            assert "rendering 98/98" in run.stderr
    return out


def test_generate_again_is_a_no_op(world: Path, again: Again) -> None:
    before = hashes(world)
    start = time.monotonic()
    assert "finished already; nothing to do" in again("generate", world, *SMALL).out
    assert time.monotonic() - start < 20
    assert hashes(world) == before


def test_output_that_nobody_reads_is_no_error(world: Path) -> None:
    with Command("generate", world, *SMALL, unread=True) as run:
        assert run.wait(timeout=20) == 128 + signal.SIGPIPE
        assert run.stderr.read() == ""


def test_generate_refuses_another_world(world: Path, again: Again) -> None:
    before = hashes(world)
    assert again("generate", world, *SMALL[:-1], "4", code=2).err == (
        f"macnet: {world}: it holds another world (--seed 3 where 4 is asked for); "
        "give another folder\n"
    )
    assert hashes(world) == before


def is_at_work(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, though nobody has asked how


def wait_for_end(processes: list[int]) -> None:
    """The keeper of workers' resources ends a moment after its parent."""
    deadline = time.monotonic() + 10
    while any(map(is_at_work, processes)):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.01)


def stop_in_the_middle(out: Path, stop: Callable[[Command, list[int]], None]) -> str:
    """Start to generate, stop once a group is finished, and see that nobody is left at work.

    `stop` is given the run and the process ids of its workers; what the run said is returned.
    """
    with Command("generate", out, *SMALL, "--workers", "1") as run:
        deadline = time.monotonic() + 60
        while not list(out.glob(".unfinished/*scenes*.jsonl")):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        listed = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text()
        children = [int(child) for child in listed.split()]
        assert len(children) >= 2  # a worker, and the keeper of its resources
        stop(run, children)
        said = run.stderr.read()
    wait_for_end(children)
    assert (out / ".unfinished").exists()
    return said


@pytest.mark.usefixtures("warm_workers")
def test_killed_and_run_again_is_as_if_never_killed(
    world: Path, tmp_path: Path, again: Again
) -> None:
    out = tmp_path / "world"
    stop_in_the_middle(out, lambda run, _: run.kill())
    done = [
        json.loads(line)["image_filename"]
        for part in out.glob(".unfinished/*scenes*.jsonl")
        for line in part.read_text().splitlines()[1:]  # the first is a hash
    ]
    assert 0 < len(done) < 98
    # Under a final name there are whole pictures only, as in the unbroken run.
    pictures = {name: value for name, value in hashes(out / "images").items() if "/." not in name}
    assert pictures.items() <= hashes(world / "images").items()
    images = {path.name: path for path in out.rglob("*.png")}
    before = {name: images[name].stat().st_mtime_ns for name in done}
    again("generate", out, *SMALL, "--workers", "1")
    assert {name: images[name].stat().st_mtime_ns for name in done} == before
    assert hashes(out) == hashes(world)


def test_interrupted_it_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "world"

    def interrupt(run: Command, _: list[int]) -> None:
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=20) == 130

    said = stop_in_the_middle(out, interrupt)
    assert said.splitlines()[-1] == "macnet: stopped; the same command goes on from here"
    assert "Traceback" not in said


def test_a_lost_worker_ends_the_run(tmp_path: Path) -> None:
    def kill_a_worker(run: Command, children: list[int]) -> None:
        os.kill(children[-1], signal.SIGKILL)
        assert run.wait(timeout=20) == 2

    said = stop_in_the_middle(tmp_path / "world", kill_a_worker)
    assert said.splitlines()[-1].startswith("macnet: a worker was killed, perhaps for memory")


@pytest.mark.usefixtures("warm_workers")
def test_a_full_disk(tmp_path: Path, again: Again) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("a small file system cannot be mounted here")
    try:
        said = again("generate", disk / "world", *SMALL, "--workers", "1", code=2).err
        assert "Traceback" not in said
        last = said.splitlines()[-1]
        assert last.startswith(f"macnet: {disk}/world/")
        assert last.endswith("no space left; make room, and the same command goes on from here")
        for path in disk.rglob("*.png"):
            with Image.open(path) as image:
                image.load()
        assert not list(disk.glob("world/questions/*"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_render_draws_a_scene_file_and_goes_on(world: Path, tmp_path: Path, again: Again) -> None:
    scenes = world / "scenes" / "CLEVR_val_scenes.json"
    command = ("render", scenes, tmp_path)
    assert "4 images rendered, 96x64 and fast" in again(*command).out
    drawn = hashes(tmp_path)
    assert len(drawn) == 4
    for name in drawn:
        with Image.open(tmp_path / name) as ours, Image.open(world / "images/val" / name) as made:
            assert ours.tobytes() == made.tobytes()
    (tmp_path / "CLEVR_val_000002.png").unlink()
    assert "1 images rendered, 96x64 and fast; 3 were there" in again(*command).out
    assert hashes(tmp_path) == drawn


def test_sheet(world: Path, tmp_path: Path, again: Again) -> None:
    out = tmp_path / "sheet.png"
    assert f"{out}: a sheet of 6 images" in again("sheet", world, out, "--images", "6").out
    with Image.open(out) as sheet:
        assert len(sheet.getcolors(1 << 24) or []) > 100


def test_compare_with_originals(tmp_path: Path, again: Again) -> None:
    real = REFERENCE / "clevr_train32"
    if not real.exists():
        pytest.skip(f"there are no originals in {real}")
    content = json.loads((real / "scenes" / "CLEVR_train_scenes.json").read_text())
    content["scenes"] = content["scenes"][:2]
    (tmp_path / "scenes.json").write_text(json.dumps(content))
    out, numbers = tmp_path / "sheet.png", tmp_path / "numbers.json"
    run = again(
        "compare", tmp_path / "scenes.json", real / "images" / "train", out,
        "--quality", "fast", "--json", numbers,
    )  # fmt: skip
    measured = json.loads(numbers.read_text())
    assert len(measured["psnr"]) == 2
    assert measured["mean_psnr"] == pytest.approx(np.mean(list(measured["psnr"].values())))
    assert f"{measured['mean_psnr']:.2f}" in run.out
    assert 20 < measured["mean_psnr"] < 50
    assert out.exists()


# --- from files to arrays --------------------------------------------------------------------


def test_pack_and_open_again(world: Path, tmp_path: Path, again: Again) -> None:
    cache = tmp_path / "cache"
    made = macnet("pack", world, cache, "--split", "train", "--size", "32x24")
    assert re.fullmatch(r"packing 90/90, [\d,.]+ images/s, 0:00 left\n", made.stderr)
    words, ready = made.stdout.splitlines()
    assert words == "the vocabulary holds every word of 900 questions"
    told = rf"{cache}: 900 questions about 90 images of 32x24x3 ready in [\d.]+ s: (images-.*)"
    match = re.fullmatch(told, ready)
    assert match
    packs = match[1].split(", ")
    before = hashes(cache)
    opened = again("pack", world, cache, "--split", "train", "--size", "32x24")
    assert opened.err == ""
    assert opened.out.splitlines()[-1].endswith(": " + ", ".join(packs))
    assert hashes(cache) == before
    images = np.load(cache / packs[0] / "images.npy")
    for i in (0, 89):
        with Image.open(world / f"images/train/CLEVR_train_{i:06d}.png") as picture:
            small = picture.convert("RGB").resize((32, 24), Image.Resampling.BICUBIC)
        assert np.array_equal(images[i], np.asarray(small))


def test_extract_and_pack_the_features(world: Path, tmp_path: Path, again: Again) -> None:
    torch.save(random_weights(2), tmp_path / "resnet101.pth")
    out, cache = tmp_path / "val.h5", tmp_path / "cache"
    options = ("--split", "val", "--weights", tmp_path / "resnet101.pth", "--stage", "2")
    made = again("extract", world, out, *options)
    assert re.fullmatch(r"extracted 4/4, [\d,.]+ images/s, 0:00 left\n", made.err)
    assert made.out.startswith(f"{out}: features of 4 images made in ")
    finished = again("extract", world, out, *options)
    assert finished.out == f"{out}: these features are finished already; nothing to do\n"
    assert finished.err == ""
    packed = again("pack", world, cache, "--split", "val", "--images", out)
    assert "40 questions about 4 images of 28x28x512" in packed.out
    (array,) = cache.glob("features-*/images.npy")
    with h5py.File(out) as file:
        features = file["features"][...]
    assert np.array_equal(np.load(array), features.transpose(0, 2, 3, 1))


@pytest.fixture(scope="module")
def many(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many pictures that several processes decode them, for a second or so."""
    folder = tmp_path_factory.mktemp("many") / "data"
    shutil.copytree(world, folder, copy_function=os.link)
    images = folder / "images/train"
    for i in range(90, 600):
        os.link(images / f"CLEVR_train_{i % 90:06d}.png", images / f"CLEVR_train_{i:06d}.png")
    return folder


def start_to_pack(data: Path, cache: Path) -> Command:
    return Command("pack", data, cache, "--size", "256x256", "--workers", "1")


def has_rows(array: Path) -> bool:
    try:
        return bool(np.load(array, mmap_mode="r")[::50].any())
    except (OSError, EOFError, ValueError):  # it has its header, if that, and not yet its rows
        return False


def wait_for_rows(run: Command, cache: Path) -> list[int]:
    """Until some pictures are packed; gives the processes that do it."""
    deadline = time.monotonic() + 60
    while not any(map(has_rows, cache.glob(".images-*.part/images.npy"))):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    listed = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text()
    return [int(child) for child in listed.split()]


def test_packing_that_is_interrupted_leaves_nothing(many: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with start_to_pack(many, cache) as run:
        children = wait_for_rows(run, cache)
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=20) == 130
        assert run.stdout.read() == ""
        assert run.stderr.read() == "macnet: stopped; the same command goes on from here\n"
    assert len(children) >= 2
    wait_for_end(children)
    there = sorted(path.name.partition("-")[0] for path in cache.iterdir())
    assert there == [".images", ".questions", ".words", "questions", "words"]
    assert not list(cache.glob("*.part"))


def test_two_that_pack_the_same(many: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with start_to_pack(many, cache) as first:
        wait_for_rows(first, cache)
        first.send_signal(signal.SIGSTOP)  # in the middle of it, however slow the other starts
        with start_to_pack(many, cache) as second:
            line = second.stderr.readline()
            assert line == f"{cache}: waiting for another process that packs the same\n"
            first.send_signal(signal.SIGCONT)
            assert [run.wait(timeout=60) for run in (first, second)] == [0, 0]
            said = [(run.stdout.read(), run.stderr.read()) for run in (first, second)]
    (_, ready), (_, also) = (out.splitlines() for out, _ in said)
    assert ready.rpartition(":")[2] == also.rpartition(":")[2]
    assert said[0][1].splitlines()[-1].startswith("packing 600/600")
    assert said[1][1] == ""
    assert len(list(cache.glob("images-*"))) == 1
    assert not list(cache.glob("*.part"))


def test_a_file_that_may_not_grow(world: Path, tmp_path: Path, again: Again) -> None:
    """A real error of the system, where a full disk cannot be had: 100 kB, and no more."""
    cache = tmp_path / "cache"
    with room_for(100_000):
        said = again("pack", world, cache, code=2)
    assert said.out == ""
    assert re.fullmatch(rf"macnet: {cache}/images-\w+: File too large\n", said.err)
    assert not list(cache.glob("*images*/*"))


@pytest.mark.parametrize(
    "command",
    [(), *((name,) for name in ("generate", "render", "sheet", "compare", "extract", "pack"))],
)
def test_help(command: tuple[str, ...]) -> None:
    run = macnet(*command, "--help")
    assert "usage: macnet" in run.stdout
    assert run.stderr == ""
