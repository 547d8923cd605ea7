"""Bad input is answered with one sentence and exit code 2, and leaves nothing behind."""

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from macnet.clevr.camera import CAMERA
from macnet.clevr.release import image_name, read_scenes
from macnet.clevr.render import render
from macnet.clevr.scene import Object, Scene, to_record
from macnet.cli import main
from macnet.cli.commands import usage_error
from macnet.workers import pool

SCENE = Scene(
    (
        Object("large", "red", "metal", "cube", 0.0, 0.0, 45.0),
        Object("small", "blue", "rubber", "sphere", 2.0, 1.0, 0.0),
    )
)
LOG = to_record(SCENE, "val", 0, image_name("val", 0), 480, 320)


def changed(path: tuple[str | int, ...], value: Any = None) -> str:
    """A scene file with one value replaced, or removed."""
    content: Any = json.loads(json.dumps({"info": {}, "scenes": [LOG]}))
    holder = content
    for step in path[:-1]:
        holder = holder[step]
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return json.dumps(content)


FIRST = ("scenes", 0, "objects", 0)
BROKEN_SCENES = {
    "no JSON": ("objects: none", "not JSON, or cut short"),
    "cut short": (changed(("info",), {})[:-40], "not JSON, or cut short"),
    "no scenes": (changed(("scenes",)), 'it has no list "scenes"'),
    "not even one": (changed(("scenes",), []), "it holds no scenes"),
    "not a record": (changed(("scenes",), [1]), 'entry 0 of "scenes" has no "image_filename"'),
    "no objects": (changed(("scenes", 0, "objects")), 'scene 0: the scene has no "objects"'),
    "no shape": (changed((*FIRST, "shape")), 'scene 0: object 0 has no "shape"'),
    "unknown colour": (changed((*FIRST, "color"), "pink"), "has the unknown color 'pink'"),
    "no place": (changed((*FIRST, "3d_coords"), [1, "x"]), "must be three numbers"),
    "no image name": (changed(("scenes", 0, "image_filename"), 7), 'has no "image_filename"'),
    "a path": (changed(("scenes", 0, "image_filename"), "../../x.png"), "image_filename '../../x"),
    "no picture": (changed(("scenes", 0, "image_filename"), "x.txt"), "image_filename 'x.txt'"),
    "no name": (changed(("scenes", 0, "image_filename"), "\0.png"), "has the image_filename"),
    "twice": (changed(("scenes",), [LOG, LOG]), "the same image_filename"),
    "too many": (
        changed(("scenes", 0, "objects"), LOG["objects"] * 6),
        "12 objects; a scene holds 10 at most",
    ),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("macnet: ")
    return line


@pytest.mark.parametrize("case", BROKEN_SCENES)
@pytest.mark.parametrize("command", ["render", "compare"])
def test_scene_files(
    case: str, command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, expected = BROKEN_SCENES[case]
    (here / "scenes.json").write_text(content)
    arguments = {"render": ["out"], "compare": [".", "out.png"]}[command]
    said = complaint(capsys, command, "scenes.json", *arguments)
    assert said.startswith("macnet: scenes.json: ")
    assert expected in said
    assert [path.name for path in here.iterdir()] == ["scenes.json"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--train 1 --size 480", "--size is '480'; it must be two positive numbers"),
        ("--train 1 --size 0x320", "--size is '0x320'"),
        ("--train 1 --size 480x-320", "--size is '480x-320'"),
        ("--train 1 --questions-per-image 91", "--questions-per-image is 91; it must lie between"),
        ("--train 1 --questions-per-image 0", "--questions-per-image is 0"),
        ("--train -1 --val 2", "--train -1 --val 2 --test 0: counts must not be negative"),
        ("", "--train 0 --val 0 --test 0: counts must not be negative, and not all be zero"),
        ("--train 1 --device tpu", "--device is 'tpu'"),
        ("--train 1 --device cuda:99", "--device is cuda:99, but this machine has"),
    ],
)
def test_generate(
    arguments: str, expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in complaint(capsys, "generate", "out", *arguments.split())
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("command", ["generate out --train 1", "extract . out", "pack . out"])
@pytest.mark.parametrize("workers", ["0", "-3"])
def test_workers(
    command: str, workers: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(capsys, *command.split(), "--workers", workers)
    assert said == f"macnet: --workers is {workers}; it must be at least 1"
    assert list(here.iterdir()) == []


def test_two_tokenisings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--vocabulary", "words.json", "--tokenizer", "n2nmn")
    assert complaint(capsys, "pack", ".", "out", *options) == (
        "macnet: --tokenizer is n2nmn, but words.json says itself how questions become words; "
        "give one of the two"
    )
    assert list(here.iterdir()) == []


def test_generate_into_what_is_not_its_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").write_text("mine")
    assert "this is a file" in complaint(capsys, "generate", "file", "--train", "1")
    assert "it holds something else already (file)" in complaint(
        capsys, "generate", ".", "--train", "1"
    )
    (here / "world.json").write_text("{}")
    assert "it holds another world" in complaint(capsys, "generate", ".", "--train", "1")
    (here / "world.json").write_text("{")
    assert "not JSON" in complaint(capsys, "generate", ".", "--train", "1")
    assert sorted(path.name for path in here.iterdir()) == ["file", "world.json"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "",
            "there is no command; choose one of ask, explain, train, evaluate, export, generate, ",
        ),
        ("trian out", "there is no command 'trian'; did you mean train?"),
        ("zzz", "there is no command 'zzz'; choose one of ask, explain, train, evaluate, "),
        ("--foo", "there is no option --foo before a command; see macnet --help"),
        ("generate", "OUT must be given; see macnet generate --help"),
        ("explain a.png cube", "--out must be given; see macnet explain --help"),
        (
            "generate out --trian 3",
            "there is no option --trian (did you mean --train?); see macnet ",
        ),
        (
            "train --modle.d 3 --out x",
            "there is no option --modle.d (did you mean --model.d?); see",
        ),
        (
            "generate out --train many",
            "--train is 'many'; it must be a whole number; see macnet ge",
        ),
        (
            "generate out --workers x",
            "--workers is 'x'; it must be a whole number; see macnet gene",
        ),
        (
            "train --out x --recipe.lr x",
            "--recipe.lr is 'x'; it must be a number; see macnet train",
        ),
        ("generate out --condition C", "--condition is 'C'; choose one of "),
        (
            "generate out --quality best",
            "--quality is 'best'; choose one of fast, fine; see macnet",
        ),
        ("ask --top", "--top needs a value; see macnet ask --help"),
        ("train --out", "--out needs a value; see macnet train --help"),
        ("ask a.png What color", "'color' is one argument too many; see macnet ask --help"),
        (
            "train --out x --model.p 99999999999999999999",
            "--model.p is 99999999999999999999; it mu",
        ),
    ],
)
def test_usage(
    arguments: str, expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint(capsys, *arguments.split()).startswith(f"macnet: {expected}")
    assert list(here.iterdir()) == []


def test_usage_that_the_parser_words_otherwise() -> None:
    """Of a version to come, the first sentence is told as it is."""
    for box in (
        "╭─ Oh ────╮\n│ Not so  │\n│ ─────── │\n│ Help    │\n╰─────────╯\n",
        " \x1b[1;31mOh       \n --------- \x1b[0m\n  Not so   \n  ---------\n  Help     \n",
    ):
        assert usage_error(box, ["ask"]) == "Not so; see macnet ask --help"


def test_files_that_are_not_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "x.json: there is no such file" in complaint(capsys, "render", "x.json", "out")
    assert "no images with questions" in complaint(capsys, "sheet", "nowhere", "out.png")
    assert "--images is 0" in complaint(capsys, "sheet", ".", "out.png", "--images", "0")
    assert list(here.iterdir()) == []


def full_disk(handle: int) -> None:
    assert os.fstat(handle).st_size  # something was written
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "scenes.json").write_text(json.dumps({"info": {}, "scenes": [LOG]}))
    monkeypatch.setattr(os, "fsync", full_disk)
    said = complaint(capsys, "render", "scenes.json", "out", "--size", "48x32")
    assert said.startswith("macnet: out/CLEVR_val_000000.png: no space left; make room")
    assert list((here / "out").iterdir()) == []


def test_a_folder_that_may_not_be_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)  # the tests may run as root, who may do anything
    said = complaint(capsys, "generate", "out", "--train", "1")
    assert said == "macnet: out: Permission denied"


def lacking(error: Exception) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


LACKS = [
    lambda: np.empty((1 << 50, 8)),
    lambda: torch.empty(1 << 50, 8),
    lacking(OSError(errno.ENOMEM, "Cannot allocate memory")),
    lacking(RuntimeError("could not create a primitive")),
    lacking(ImportError("libtorch.so: failed to map segment from shared object")),
]


@pytest.mark.parametrize("make", LACKS)
def test_too_little_memory(
    make: Callable[[], object],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("macnet.clevr.generate.generate", lambda *_, **__: make())
    said = complaint(capsys, "generate", "world")
    assert said.startswith("macnet: there is not enough memory; try smaller batches (")


@pytest.mark.parametrize(
    "where",
    [
        "checkpoint.safe_open",
        "checkpoint.TrainedNetwork.network",
        "explain.image._to_rgb",
    ],
)
def test_memory_is_not_blamed_on_a_file_nor_on_a_device(
    where: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"macnet.{where}", lambda *_, **__: LACKS[1]())
    Image.new("RGB", (48, 32)).save("scene.png")
    said = complaint(capsys, "ask", "scene.png", "What color is the cube?")
    assert said.startswith("macnet: there is not enough memory; try smaller batches (")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "too many files are open at once; allow"),
        (OSError(errno.ENOSPC, "No space left"), "standard output: no space left; make room whe"),
        (OSError(errno.ELOOP, "Too many levels of symbolic links", "x"), "x: Too many levels of"),
        (RuntimeError("Symlink loop from 'x'"), "Symlink loop from 'x'; name another path"),
    ],
)
def test_what_the_system_refuses(
    error: Exception,
    expected: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("macnet.clevr.generate.generate", lambda *_, **__: lacking(error)())
    assert complaint(capsys, "generate", "world").startswith(f"macnet: {expected}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "ask scene.png cube --model /dev/null",
            "/dev/null: this is not a regular file, so it is no",
        ),
        ("ask scene.png cube --model loop", "loop: there is no such file"),
        ("ask loop cube", "loop: there is no such file"),
        ("explain scene.png cube --out loop/a.png", ""),
        ("explain scene.png cube --out loop.png", ""),
        ("evaluate loop", "loop: there is no such file"),
        ("render loop out", "loop: there is no such file"),
        ("generate loop --train 1", "loop: "),
        ("pack loop out", "loop: there is no such folder"),
        ("train loop --out run", "loop: there is no such folder"),
    ],
)
def test_paths_that_lead_nowhere(
    arguments: str, expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (48, 32)).save("scene.png")
    for name in ("loop", "loop.png"):
        (here / name).symlink_to(name)
    assert complaint(capsys, *arguments.split()).startswith(f"macnet: {expected}")


def test_an_interruption(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    (here / "scenes.json").write_text("{}")
    monkeypatch.setattr("macnet.clevr.images.render_file", interrupt)
    said = complaint(capsys, "render", "scenes.json", "out", code=130)
    assert said == "macnet: stopped; the same command goes on from here"


TURNED = changed((*FIRST, "rotation"), 10)


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (TURNED, "--size 48x32 --quality fast"),
        (changed(("info",), {}), "--size 60x40 --quality fast"),
        (changed(("info",), {}), "--size 48x32 --quality fine"),
    ],
)
def test_a_picture_is_drawn_again_when_what_it_was_made_from_changed(
    content: str, options: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["render", "scenes.json", "out"]
    (here / "scenes.json").write_text(changed(("info",), {}))
    assert main([*command, "--size", "48x32", "--quality", "fast"]) == 0
    (picture,) = (here / "out").iterdir()
    before = picture.read_bytes()
    assert main([*command, "--size", "48x32", "--quality", "fast"]) == 0
    assert "0 images rendered, 48x32 and fast; 1 were there already" in capsys.readouterr().out
    assert picture.read_bytes() == before
    (here / "scenes.json").write_text(content)
    assert main([*command, *options.split()]) == 0
    assert "1 images rendered" in capsys.readouterr().out
    fresh = ["render", "scenes.json", "fresh", *options.split()]
    assert main(fresh) == 0
    assert picture.read_bytes() == (here / "fresh" / picture.name).read_bytes() != before


@pytest.mark.parametrize("content", ["another's", "damaged"])
def test_a_picture_of_others_is_never_written_over(
    content: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "scenes.json").write_text(changed(("info",), {}))
    picture = here / "out" / LOG["image_filename"]
    picture.parent.mkdir()
    if content == "damaged":
        picture.write_bytes(b"something")
    else:
        Image.new("RGB", (48, 32)).save(picture)
    before = picture.read_bytes()
    said = complaint(capsys, "render", "scenes.json", "out", "--size", "48x32")
    expected = {
        "another's": "it is there already, and was not made by macnet render; move it away, or",
        "damaged": "it cannot be read as an image",
    }[content]
    assert f"out/{picture.name}: {expected}" in said
    assert picture.read_bytes() == before


def test_images_of_a_world_are_made_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the README says: in the world's own size and quality, whichever they are."""
    for quality, size, count in (("fast", "60x40", 11), ("fine", "30x20", 2)):
        options = ("--val", str(count), "--size", size, "--quality", quality, "--workers", "1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("macnet.clevr.generate.pool", lambda _: pool(0))
            assert main(["generate", quality, *options]) == 0
        out = here / f"again-{quality}"
        assert main(["render", f"{quality}/scenes/CLEVR_val_scenes.json", str(out)]) == 0
        assert f"{count} images rendered, {size} and {quality}\n" in capsys.readouterr().out
        for picture in sorted((here / quality / "images" / "val").iterdir()):
            with Image.open(picture) as ours, Image.open(out / picture.name) as again:
                assert ours.mode == again.mode
                np.testing.assert_array_equal(np.asarray(ours), np.asarray(again))


def test_the_scene_of_the_docs_can_be_drawn(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = (Path(__file__).parents[2] / "docs" / "world.md").read_text()
    (example,) = re.findall("```json\n(.*?)```", docs, re.DOTALL)
    assert example.count("\n") <= 10
    (here / "scenes.json").write_text(example)
    assert main(["render", "scenes.json", "out", "--size", "48x32", "--quality", "fast"]) == 0
    first, second = read_scenes(here / "scenes.json").values()
    assert (first.camera, first.lamps) == (CAMERA, Scene(()).lamps)
    assert second.camera == CAMERA
    assert (first.objects[0].x, first.objects[0].y, first.objects[0].rotation) == (0, -1, 0)
    drawn = sorted((here / "out").iterdir())
    assert [path.name for path in drawn] == ["mine.png", "scene_000000.png"]
    expected = render([first, second], 48, 32, "fast").images.numpy()
    for path, pixels in zip(reversed(drawn), expected, strict=True):
        with Image.open(path) as image:
            np.testing.assert_array_equal(np.asarray(image.convert("RGB")), pixels)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["render", "scenes.json", "out", "--size", "9000x9000"], "and at most 4096x4096"),
        (["generate", "out", "--train", "1", "--size", "24x5000"], "and at most 4096x4096"),
        (["generate", "out", "--train", "1", "--size", "9" * 5000 + "x1"], "two positive numbers"),
        (["generate", "out", "--train", "1000001"], "1,000,000 images at most"),
    ],
)
def test_what_no_memory_would_hold_is_refused_at_once(
    arguments: list[str], expected: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "scenes.json").write_text(changed(("info",), {}))
    assert expected in complaint(capsys, *arguments)
    assert not (here / "out").exists()


def test_threads_wait_without_spinning() -> None:
    """It must be said before torch loads OpenMP, which asks once; hence in the first module."""
    script = (
        "import sys, os, macnet.cli\n"
        "sys.exit('torch' in sys.modules or os.environ['GOMP_SPINCOUNT'] != '1000')"
    )
    environment = {k: v for k, v in os.environ.items() if "OMP" not in k}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_help_loads_no_torch() -> None:
    script = (
        "import sys\nfrom macnet.cli import main\n"
        "try: main(['pack', '--help'])\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_as_a_module(here: Path) -> None:
    command = [sys.executable, "-m", "macnet", "render", "x.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "macnet: OUT must be given; see macnet render --help\n"
