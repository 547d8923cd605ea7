"""`macnet extract`: the same file however it came about, and a sentence for whatever goes wrong."""

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from macnet.cli import main
from macnet.data import extract as module
from macnet.data.extract import extract_features
from macnet.data.features import open_features
from macnet.data.resnet import ResNet101, load_resnet
from macnet.errors import InputError
from macnet.files import locked_folder
from processes import warm
from tiny_resnet import literal, random_weights

COUNT = 5
OPTIONS = ("--weights", "weights.pth", "--split", "val", "--stage", "2", "--batch", "2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of noise, weights, and the features of one by the other."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data/images/val").mkdir(parents=True)
    (folder / "data/questions").mkdir()
    questions = []
    for i in range(COUNT):
        name = f"CLEVR_val_{i:06d}.png"
        noise = np.random.default_rng(i).integers(0, 256, (20, 30, 4), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "data/images/val" / name)
        questions.append(
            {
                "question_index": i,
                "image_index": i,
                "image_filename": name,
                "split": "val",
                "question": "How many things are there?",
                "answer": "3",
                "question_family_index": 84,
                "program": [
                    {"function": "scene", "inputs": [], "value_inputs": []},
                    {"function": "count", "inputs": [0], "value_inputs": []},
                ],
            }
        )
    content = json.dumps({"info": {}, "questions": questions})
    (folder / "data/questions/CLEVR_val_questions.json").write_text(content)
    torch.save(random_weights(2), folder / "weights.pth")
    network = load_resnet(folder / "weights.pth", 2)
    extract_features(images(folder), folder / "val.h5", network, split="val", batch=2)
    return folder


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the dataset and the weights; what each test adds to it is seen at the end."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_COUNTS", 0.0)
    return tmp_path


def run(out: str, *more: str, code: int = 0) -> None:
    assert main(["extract", "data", out, *OPTIONS, *more]) == code


def complaint(capsys: pytest.CaptureFixture[str], out: str, *more: str) -> str:
    """What is said; `out` and all else is as if nobody had asked."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    capsys.readouterr()
    run(out, *more, code=2)
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.splitlines()[-1]
    assert line.startswith("macnet: ")
    assert "Traceback" not in captured.err
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    return line


def network(here: Path) -> ResNet101:
    return load_resnet(here / "weights.pth", 2)


def images(here: Path) -> dict[int, Path]:
    return dict(enumerate(sorted((here / "data/images/val").iterdir())))


# --- what is in the file ---------------------------------------------------------------------


@pytest.mark.parametrize(("normalization", "blue"), [("public", 0.224), ("imagenet", 0.225)])
def test_features_are_those_of_the_public_recipe(
    here: Path, normalization: str, blue: float
) -> None:
    run("f.h5", "--dtype", "float32", "--normalization", normalization)
    state = {name: array.double() for name, array in torch.load("weights.pth").items()}
    with Image.open(images(here)[3]) as image:
        assert image.mode == "RGBA"
        squeezed = np.asarray(image.convert("RGB").resize((224, 224), Image.Resampling.BICUBIC))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, blue])
    x = torch.from_numpy((squeezed / 255 - mean) / std).permute(2, 0, 1)[None]
    expected = literal(state, x, 2).numpy()
    with h5py.File("f.h5") as file:
        array = file["features"]
        assert (array.shape, array.dtype) == ((COUNT, 512, 28, 28), np.float32)
        np.testing.assert_allclose(array[3:4], expected, rtol=1e-3, atol=1e-3 * expected.std())
        metadata = dict(file.attrs)
    assert metadata["normalization"] == normalization
    assert metadata["stage"] == 2
    assert {"weights", "image_files", "macnet"} < set(metadata)


def test_half_precision_is_the_default(here: Path) -> None:
    run("f.h5", "--dtype", "float32")
    half, full = open_features(here / "val.h5"), open_features(here / "f.h5")
    assert (half.dtype.name, full.dtype.name) == ("float16", "float32")
    np.testing.assert_array_equal(half.rows(0, COUNT), full.rows(0, COUNT).astype(np.float16))


def test_stage_3_is_the_shape_the_community_has(here: Path) -> None:
    torch.save(random_weights(3), here / "weights.pth")
    run("f.h5", "--stage", "3")
    assert open_features(here / "f.h5").shape == (COUNT, 1024, 14, 14)


# --- the same file however it came about -----------------------------------------------------


@pytest.mark.usefixtures("warm_workers")
def test_the_command_the_function_and_workers_make_the_same_bytes(here: Path) -> None:
    run("command.h5")
    made = extract_features(
        images(here), here / "workers.h5", network(here), split="val", batch=2, workers=2
    )
    assert (made.path, made.shape, made.split) == (here / "workers.h5", (COUNT, 512, 28, 28), "val")
    expected = (here / "val.h5").read_bytes()
    assert (here / "command.h5").read_bytes() == expected
    assert (here / "workers.h5").read_bytes() == expected
    assert not list(here.glob(".*"))


def test_a_finished_file_is_left_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (here / "val.h5").stat().st_mtime_ns
    run("val.h5")
    assert "val.h5: these features are finished already; nothing to do" in capsys.readouterr().out
    assert (here / "val.h5").stat().st_mtime_ns == before
    assert not list(here.glob(".*"))


def stop_after(batches: int, error: BaseException) -> Callable[..., Any]:
    real, calls = module._features, iter(range(batches + 1))

    def features(*arguments: Any) -> Any:
        if next(calls) == batches:
            raise error
        return real(*arguments)

    return features


@pytest.mark.parametrize("batches", [1, 2])
def test_a_run_that_was_stopped_goes_on(
    here: Path, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_features", stop_after(batches, KeyboardInterrupt()))
        run("f.h5", code=130)
    assert not (here / "f.h5").exists()
    monkeypatch.setattr(module, "_features", counted := Counted())
    run("f.h5")
    assert counted.images == COUNT - 2 * batches
    assert (here / "f.h5").read_bytes() == (here / "val.h5").read_bytes()
    assert not list(here.glob(".*"))


class Counted:
    def __init__(self) -> None:
        self.real, self.images = module._features, 0

    def __call__(self, network: ResNet101, pictures: np.ndarray, *arguments: Any) -> np.ndarray:
        self.images += len(pictures)
        return self.real(network, pictures, *arguments)


def run_slowly(folder: Path) -> None:
    """For a process of its own: after the first batch there is time to kill it."""
    real, calls = module._features, iter(range(2))

    def features(*arguments: Any) -> Any:
        if next(calls) == 1:
            time.sleep(60)
        return real(*arguments)

    torch.set_num_threads(1)
    os.chdir(folder)
    module.SECONDS_BETWEEN_COUNTS = 0.0
    module._features = features  # type: ignore[assignment]
    run("f.h5")


def test_a_run_that_was_killed_goes_on(here: Path) -> None:
    process = warm().Process(target=run_slowly, args=(here,))
    process.start()
    count = here / ".f.h5.unfinished" / "count.json"
    deadline = time.monotonic() + 60
    while not count.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert json.loads(count.read_text())["rows"] == 2
    assert not (here / "f.h5").exists()
    run("f.h5")
    assert (here / "f.h5").read_bytes() == (here / "val.h5").read_bytes()


def test_a_run_killed_while_hdf5_wrote_starts_over(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_features", stop_after(1, KeyboardInterrupt()))
        run("f.h5", code=130)
    part = here / ".f.h5.unfinished" / "features.h5"
    part.write_bytes(b"\0" * 100 + part.read_bytes()[100:])
    run("f.h5")
    assert (here / "f.h5").read_bytes() == (here / "val.h5").read_bytes()


def test_going_on_with_other_settings_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "_features", stop_after(1, KeyboardInterrupt()))
        run("f.h5", code=130)
    said = complaint(capsys, "f.h5", "--dtype", "float32")
    assert "dtype float16 where float32 is asked for); remove this folder, or give" in said
    with images(here)[0].open("ab") as file:
        file.write(b"another picture")
    assert ".f.h5.unfinished: it holds other features (image_files " in complaint(capsys, "f.h5")


# --- what is refused -------------------------------------------------------------------------


def test_another_file_is_not_written_over(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "val.h5", "--normalization", "imagenet")
    assert said == (
        "macnet: val.h5: it holds other features (normalization public where imagenet is asked "
        "for); give another file"
    )
    torch.save(random_weights(2, seed=1), here / "weights.pth")
    assert "it holds other features (weights " in complaint(capsys, "val.h5")
    with h5py.File("theirs.h5", "w") as file:
        file["features"] = np.ones((COUNT, 512, 28, 28), np.float32)
    assert "theirs.h5: it is there already, and not made by" in complaint(capsys, "theirs.h5")
    Path("text.h5").write_text("mine")
    assert "text.h5: not HDF5" in complaint(capsys, "text.h5")
    assert "data: this is a folder; give the name of a file" in complaint(capsys, "data")


def test_a_picture_that_is_cut_short_can_be_replaced(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = images(here)[0], images(here)[4]
    whole = first.read_bytes()
    first.write_bytes(whole[:-200])
    assert f"{first.name}: it cannot be read as an image" in complaint(capsys, "f.h5")
    assert not list(here.glob(".*"))  # there was nothing to go on from
    first.write_bytes(whole)
    whole = last.read_bytes()
    last.write_bytes(whole[:-200])
    run("f.h5", code=2)
    assert f"{last.name}: it cannot be read as an image" in capsys.readouterr().err
    assert not (here / "f.h5").exists()
    last.write_bytes(whole)
    monkeypatch.setattr(module, "_features", counted := Counted())
    run("f.h5")
    assert counted.images == 1
    assert (here / "f.h5").read_bytes() == (here / "val.h5").read_bytes()


def test_missing_images(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = images(here)
    files[1].unlink()
    assert f"4 of 5 images are there, 1 are missing: {files[1].name};" in complaint(capsys, "f.h5")
    with pytest.raises(
        InputError, match="images/val: 2 of 5 images are missing, first number 1, 3"
    ):
        extract_features(
            {i: files[i] for i in (0, 2, 4)}, here / "f.h5", network(here), split="val"
        )
    with pytest.raises(InputError, match="there are no images"):
        extract_features({}, here / "f.h5", network(here), split="val")


def test_other_arguments(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--batch is 0" in complaint(capsys, "f.h5", "--batch", "0")
    assert "--device is 'tpu'" in complaint(capsys, "f.h5", "--device", "tpu")
    assert "x.pth: there is no such file" in complaint(capsys, "f.h5", "--weights", "x.pth")
    Path("weights.pth").write_bytes(b"not weights")
    assert "weights.pth: it cannot be read as weights" in complaint(capsys, "f.h5")


def test_a_second_run_waits_outside(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked_folder(here / ".f.h5.unfinished"):
        assert ".f.h5.unfinished: another run is at work here" in complaint(capsys, "f.h5")


def test_a_run_that_finishes_while_another_starts(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def late(folder: Path) -> Iterator[None]:
        with locked_folder(folder):
            folder.rmdir()  # as the other run does when it has the file
            shutil.copy("val.h5", "f.h5")
            yield

    monkeypatch.setattr(module, "locked_folder", late)
    run("f.h5", code=2)
    assert "macnet: f.h5: another run has finished it just now" in capsys.readouterr().err
    assert (here / "f.h5").read_bytes() == (here / "val.h5").read_bytes()


@pytest.mark.parametrize("function", ["posix_fallocate", "pwrite", "fsync"])
def test_a_full_disk(
    here: Path,
    function: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        said = complaint(capsys, "f.h5")
    assert said.startswith("macnet: f.h5: no space left; make room, and the same command")
    assert not list(here.glob(".*"))
    run("f.h5")
    assert (here / "f.h5").read_bytes() == (here / "val.h5").read_bytes()


def test_features_that_half_precision_cannot_hold(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = random_weights(2)
    state["bn1.weight"] *= 1e6
    torch.save(state, here / "weights.pth")
    said = complaint(capsys, "f.h5")
    assert said.endswith("CLEVR_val_000000.png: its features are too large for float16")
