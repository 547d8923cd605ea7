"""The kernels render what the torch renderer renders: on a GPU, and interpreted on a CPU."""

from __future__ import annotations

import importlib.util
import math
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from macnet.clevr import backend
from macnet.clevr.backend import check_backend, fastest_backend
from macnet.clevr.quality import QUALITIES
from macnet.clevr.render import Rendering, all_visible, render
from macnet.clevr.scene import COLORS, Object, Scene, sample_scenes
from macnet.clevr.scene_array import object_mask, scenes_to_array
from macnet.devices import upload
from macnet.errors import InputError

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
PSNR = 45.0  # in dB, of a set of images: what rounding may cost, and no visible difference


def sample(seed: int, count: int) -> list[Scene]:
    """Scenes in which objects may hide each other."""
    return sample_scenes([random.Random(f"{seed}/{i}") for i in range(count)])


def every_kind() -> Scene:
    """Both sizes, both materials, all shapes, and metal beside everything."""
    kinds = [(shape, material) for shape in ("cube", "sphere", "cylinder") for material in "mr"]
    return Scene(
        tuple(
            Object(
                "large" if i % 2 else "small",
                COLORS[i],
                "metal" if material == "m" else "rubber",
                shape,
                2.0 * math.cos(i),
                2.0 * math.sin(i),
                40.0 * i,
            )
            for i, (shape, material) in enumerate(kinds)
        )
    )


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2)
    return 10 * math.log10(255**2 / max(float(error), 1e-9))


def on_outline(objects: np.ndarray) -> np.ndarray:
    """(s, h, w): pixels one of whose eight neighbors shows something else."""
    _, height, width = objects.shape
    padded = np.pad(objects, ((0, 0), (1, 1), (1, 1)), mode="edge")
    around = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.asarray(np.any([other != objects for other in around], axis=0))


def assert_alike(found: Rendering, wanted: Rendering) -> None:
    """Images but for rounding, objects but for a few pixels on outlines."""
    images, objects, visible = (column.cpu().numpy() for column in found)
    images_, objects_, visible_ = (column.cpu().numpy() for column in wanted)
    assert [str(column.dtype) for column in found] == [str(column.dtype) for column in wanted]
    assert images.shape == images_.shape
    assert psnr(images, images_) >= PSNR
    assert min(map(psnr, images, images_)) >= PSNR - 5
    differs = objects != objects_
    assert differs.mean() <= 1e-4
    assert not np.any(differs & ~on_outline(objects_))
    assert np.abs(visible - visible_).max() <= 2
    counts = np.stack([(objects == i).sum((1, 2)) for i in range(visible.shape[1])], axis=1)
    np.testing.assert_array_equal(visible, counts)


# --- where they cannot run -------------------------------------------------------------------


def test_what_cannot_be_rendered_is_said_in_a_sentence() -> None:
    scenes = [Scene(())]
    with pytest.raises(InputError, match="must be one of torch, triton"):
        render(scenes, 48, 32, backend="opengl")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="fine quality"):
        render(scenes, 48, 32, "fine", "cuda", backend="triton")
    with pytest.raises(InputError, match="needs a CUDA device, but `device` is 'cpu'"):
        render(scenes, 48, 32, backend="triton")
    with pytest.raises(InputError, match="needs a CUDA device"):
        all_visible(scenes, 48, 32, backend="triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_said_in_a_sentence() -> None:
    with pytest.raises(InputError, match="needs a CUDA device, but there is none"):
        render([Scene(())], 48, 32, device="cuda", backend="triton")


def test_a_missing_or_old_triton_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs Triton, which is not installed; use the backend"):
        check_backend("triton", torch.device("cuda"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "somewhere")
    old = types.SimpleNamespace(__version__="3.3.1")
    monkeypatch.setitem(sys.modules, "triton", old)
    with pytest.raises(InputError, match=r"needs Triton 3\.4 or later, but this is 3\.3\.1"):
        check_backend("triton", torch.device("cuda"))
    old.__version__ = "3.10.0+git"
    check_backend("triton", torch.device("cuda"))


@pytest.mark.parametrize(
    ("hip", "capability", "found", "CC", "expected"),
    [
        (None, (9, 0), {"gcc", "Python.h"}, None, "triton"),
        (None, (7, 0), {"clang", "Python.h"}, None, "triton"),
        (None, (8, 0), {"/opt/cc", "Python.h"}, "/opt/cc", "triton"),
        (None, (8, 0), {"gcc", "Python.h"}, "/opt/cc", "torch"),
        (None, (8, 0), {"Python.h"}, None, "torch"),
        (None, (8, 0), {"gcc"}, None, "torch"),
        (None, (6, 1), {"gcc", "Python.h"}, None, "torch"),
        ("6.4", (9, 4), {"gcc", "Python.h"}, None, "torch"),
    ],
)
def test_torch_renders_where_triton_could_not_compile(
    hip: str | None,
    capability: tuple[int, int],
    found: set[str],
    CC: str | None,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "_missing_for_triton", lambda device, quality: None)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in found else None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme: str(tmp_path))
    if "Python.h" in found:
        (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    if CC is not None:
        monkeypatch.setenv("CC", CC)
    assert fastest_backend(torch.device("cuda")) == expected


def test_on_a_cpu_torch_renders() -> None:
    assert fastest_backend(torch.device("cpu")) == "torch"


def test_fast_quality_is_what_the_kernels_are_written_for() -> None:
    fast = QUALITIES["fast"]
    assert (fast.bounces, fast.supersample_bodies) == (1, False)
    assert fast.grid > 1
    assert fast.grid & (fast.grid - 1) == 0  # rays of a pixel fill a part of a tile


# --- in the interpreter ----------------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize(("width", "height", "count"), [(48, 32, 3), (25, 17, 0)])
def test_interpreted_kernels_render_the_same(
    tmp_path: Path, width: int, height: int, count: int
) -> None:
    above_horizon = replace(every_kind(), camera=(7.5, -6.5, 0.9))  # the upper rays point up
    others = [*sample(1, 1), above_horizon, Scene(())]
    scenes = scenes_to_array([every_kind(), *others[:count]])
    np.save(tmp_path / "scenes.npy", scenes)
    script = Path(__file__).with_name("interpreted_render.py")
    arguments = [tmp_path / "scenes.npy", width, height, tmp_path / "out.npz"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, script, *map(str, arguments)], env=environment, check=True)
    found = np.load(tmp_path / "out.npz")
    columns = (torch.from_numpy(found[name]) for name in Rendering._fields)
    assert_alike(Rendering(*columns), render(scenes, width, height))
    np.testing.assert_array_equal(found["counted"], found["visible"])


@needs_triton
def test_tables_hold_nothing_but_the_scenes_objects() -> None:
    from macnet.clevr.kernels import tables

    scenes = scenes_to_array([every_kind(), *sample(2, 3), Scene(())])
    scenes["poses"][~object_mask(scenes)] = 7.0  # whatever is there
    table = tables.build_table(scenes)
    assert table.dtype == np.float32
    assert np.isfinite(table).all()
    bodies = table[:, -10 * 13 :].reshape(len(scenes), 10, 13)
    assert not bodies[~object_mask(scenes)].any()
    assert set(bodies[object_mask(scenes)][:, 2]) == {np.float32(0.7), np.float32(0.35)}


# --- on a GPU --------------------------------------------------------------------------------


@needs_triton
@needs_cuda
@pytest.mark.gpu
def test_where_kernels_can_be_compiled_they_render() -> None:
    assert fastest_backend(torch.device("cuda")) == "triton"


@needs_triton
@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize(("width", "height"), [(128, 128), (224, 224), (97, 63), (480, 320)])
def test_kernels_render_what_torch_renders(width: int, height: int) -> None:
    scenes = [every_kind(), Scene(()), *sample(3, 64 if width < 480 else 8)]
    kernels = render(scenes, width, height, device="cuda", backend="triton")
    assert_alike(kernels, render(scenes, width, height, device="cuda"))


@needs_triton
@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize(("width", "height"), [(128, 128), (224, 224), (480, 320)])
def test_kernels_find_visible_what_torch_finds_visible(width: int, height: int) -> None:
    scenes = sample(4, 300)
    kernels = all_visible(scenes, width, height, "cuda", backend="triton")
    expected = all_visible(scenes, width, height, "cuda")
    assert {True, False} == set(expected)
    assert sum(a != b for a, b in zip(kernels, expected, strict=True)) <= 1  # a pixel may decide


@needs_triton
@needs_cuda
@pytest.mark.gpu
def test_kernels_render_the_same_at_each_run_and_in_any_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from macnet.clevr.kernels import launch

    scenes = [*sample(5, 40), Scene(())]
    one, other = (render(scenes, 128, 128, device="cuda", backend="triton") for _ in range(2))
    assert all(map(torch.equal, one, other))
    few = render(scenes[7:12], 128, 128, device="cuda", backend="triton")
    assert all(map(torch.equal, few, (column[7:12] for column in one)))
    monkeypatch.setattr(launch, "SCRATCH_BYTES", 3_000_000)  # a few scenes at a time
    parts = render(scenes, 128, 128, device="cuda", backend="triton")
    assert all(map(torch.equal, parts, one))


@needs_triton
@needs_cuda
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_never_waits_for_the_device() -> None:
    scenes = scenes_to_array(sample(6, 8))
    render(scenes, 64, 48, device="cuda", backend="triton")  # compiled now
    try:
        torch.cuda.set_sync_debug_mode("error")
        render(scenes, 64, 48, device="cuda", backend="triton")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_triton
@needs_cuda
@pytest.mark.gpu
def test_drawing_can_be_captured_in_a_graph() -> None:
    from macnet.clevr.kernels import launch, tables

    scenes, device = scenes_to_array(sample(7, 8)), torch.device("cuda")
    wanted = render(scenes, 64, 48, device=device, backend="triton")
    frame = launch.fast_frame(64, 48)
    table = upload(tables.build_table(scenes), device)
    images, objects, visible = (torch.zeros_like(column) for column in wanted)
    scratch = launch.allocate(len(scenes), frame, device)

    def draw() -> None:
        visible.zero_()
        launch.build_maps(table, scratch, frame)
        launch.draw(table, scratch, images, objects, visible, frame)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        draw()
    for column in (images, objects, visible):
        column.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, (images, objects, visible), wanted))
