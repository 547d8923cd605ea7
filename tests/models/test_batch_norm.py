"""Batch normalisation with what follows it: on a CPU, by interpreted kernels, and on a GPU."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from closeness import off_by
from macnet.models.encoders import PixelEncoder
from macnet.models.norm import ACTIVATIONS, Activation, BatchNorm2d
from transcription import small_config

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

KINDS: list[tuple[Activation | None, bool]] = [
    *itertools.product(("relu", "elu", None), (False, True))  # what follows; with a residual or not
]
SHAPES = {"a tile": (2, 32, 4, 2), "parts of tiles": (3, 40, 5, 7), "few": (1, 3, 1, 2)}


def some_norm(channels: int) -> BatchNorm2d:
    """A layer whose weights and statistics are as after some training."""
    torch.manual_seed(channels)
    norm = BatchNorm2d(channels)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return norm


def some_case(
    shape: tuple[int, ...], activation: Activation | None, residual: bool, dtype: torch.dtype
) -> dict[str, Any]:
    """Maps of different channels, none of them around zero, and the gradient of the output."""
    norm = some_norm(shape[1])
    spread = torch.linspace(0.5, 2, shape[1])[:, None, None]
    maps = [torch.randn(shape) for _ in range(3)]
    maps[0] = maps[0] * spread + 3 * spread.flip(0)
    x, added, dy = (m.to(dtype, memory_format=torch.channels_last) for m in maps)
    given = {"x": x, "residual": added if residual else None, "dy": dy}
    return {"activation": activation, "state": norm.state_dict(), **given}


def literal(case: dict[str, Any]) -> dict[str, Tensor]:
    """The definition in float64, channel by channel; autograd derives it."""
    x, residual, weight, bias = (
        None if t is None else t.double().requires_grad_()
        for t in (case["x"], case["residual"], case["state"]["weight"], case["state"]["bias"])
    )
    assert x is not None
    assert weight is not None
    assert bias is not None
    columns, means, variances = [], [], []
    count = x.numel() // x.shape[1]
    additions = [0.0] * x.shape[1] if residual is None else residual.unbind(1)
    for values, w, b, r in zip(x.unbind(1), weight, bias, additions, strict=True):
        mean = values.sum() / count
        square = ((values - mean) ** 2).sum()
        t = w * (values - mean) / (square / count + 1e-5).sqrt() + b + r
        negative = {"relu": 0 * t, "elu": t.clamp(max=0).exp() - 1, None: t}[case["activation"]]
        columns.append(torch.where(t > 0, t, negative))
        means.append(mean)
        variances.append(square / (count - 1))
    y = torch.stack(columns, 1)
    inputs = {"x": x, "weight": weight, "bias": bias}
    if residual is not None:
        inputs["residual"] = residual
    gradients = torch.autograd.grad(y, [*inputs.values()], case["dy"].double())
    state, (mean, variance) = case["state"], (torch.stack(s) for s in (means, variances))
    return {
        "y": y.detach(),
        **{f"d{name}": dx for name, dx in zip(inputs, gradients, strict=True)},
        "running_mean": (0.9 * state["running_mean"].double() + 0.1 * mean).detach(),
        "running_var": (0.9 * state["running_var"].double() + 0.1 * variance).detach(),
        "num_batches_tracked": state["num_batches_tracked"] + 1,
    }


def run(norm: nn.Module, case: dict[str, Any], plain: bool = False) -> dict[str, Tensor]:
    """The layer's output, gradients and statistics; `plain`: by separate functions of torch."""
    x, residual = case["x"].detach().requires_grad_(), case["residual"]
    inputs = {"x": x, "weight": norm.weight, "bias": norm.bias}
    if residual is not None:
        inputs["residual"] = residual = residual.detach().requires_grad_()
    activation = case["activation"]
    if plain:
        y = norm(x) if residual is None else norm(x) + residual
        y = ACTIVATIONS[activation](y) if activation else y
    else:
        y = norm(x, activation, residual)
    gradients = torch.autograd.grad(y, [*inputs.values()], case["dy"])
    found = {f"d{name}": dx for name, dx in zip(inputs, gradients, strict=True)}
    return {"y": y.detach(), **found, **{name: b.clone() for name, b in norm.named_buffers()}}


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Maps but for their rounding, and what is of channels to more digits."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        result = found[name].to(value)
        limit = max(torch.finfo(dtype).eps, 1e-10) if found[name].dtype == dtype else 1e-5
        text = (name + ": {}").format
        torch.testing.assert_close(result, value, rtol=limit, atol=limit, msg=text)


# --- on a CPU --------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "residual"), KINDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_layer_equals_its_definition(
    shape: tuple[int, ...], activation: Activation | None, residual: bool
) -> None:
    case = some_case(shape, activation, residual, torch.float64)
    norm = BatchNorm2d(shape[1])
    norm.load_state_dict(case["state"])
    assert_close(run(norm.double(), case), literal(case), torch.float64)


def test_names_of_weights_are_those_of_every_checkpoint() -> None:
    """Of a convolution and its normalisation, wherever the activation is."""
    names = {name.rpartition(".")[0] for name in PixelEncoder(small_config()).state_dict()}
    layers = ["features.0", "features.2", "features.5", "trunk.first", "trunk.second"]
    layers += [f"features.{i}.{part}" for i in (4, 7, 8) for part in ("first", "second")]
    assert names == {f"{layer}.{i}" for layer in layers for i in (0, 1)}


# --- in the interpreter ----------------------------------------------------------------------


@needs_triton
def test_interpreted_kernels_equal_the_definition(tmp_path: Path) -> None:
    tiles: dict[str, Any] = {"small tiles": False}
    half = torch.float16  # the interpreter cuts off what a bfloat16 does not hold
    cases = [some_case((2, 48, 13, 12), "relu", True, torch.bfloat16) | tiles]  # those of a GPU
    tiles = {"small tiles": True}
    cases += [some_case(SHAPES["parts of tiles"], *kind, half) | tiles for kind in KINDS]
    cases += [some_case(shape, "relu", False, half) | tiles for shape in SHAPES.values()]
    # The square of the mean is a million times the variance: what a sum of squares would lose.
    far = some_case(SHAPES["parts of tiles"], None, False, half) | tiles
    far["x"] = (1000 + torch.randn_like(far["x"], dtype=torch.float32)).to(far["x"])
    cases.append(far)
    torch.save(cases, tmp_path / "cases.pt")
    script = Path(__file__).with_name("interpreted_batch_norm.py")
    subprocess.run(
        [sys.executable, script, tmp_path / "cases.pt", tmp_path / "out.pt"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
    )
    for case, found in zip(cases, torch.load(tmp_path / "out.pt"), strict=True):
        wanted = literal(case)
        assert found["y"].is_contiguous(memory_format=torch.channels_last)
        if case is far:  # in float32, a mean of 1000 is off by more than gradients may be
            wanted, found = ({k: of[k] for k in ("y", "running_var")} for of in (wanted, found))
        assert_close(found, wanted, case["x"].dtype)


# --- on a GPU --------------------------------------------------------------------------------


def on_gpu(case: dict[str, Any]) -> tuple[BatchNorm2d, dict[str, Any]]:
    """The layer and the maps of a case, on the GPU."""
    norm = BatchNorm2d(case["x"].shape[1])
    norm.load_state_dict(case["state"])
    moved = {k: v.cuda() if isinstance(v, Tensor) else v for k, v in case.items()}
    return norm.cuda(), moved | {"state": norm.state_dict()}


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("shape", "activation", "residual"),
    [
        ((64, 64, 64, 64), "relu", False),
        ((64, 128, 32, 32), "relu", True),
        ((64, 256, 16, 16), "relu", True),
        ((64, 384, 16, 16), "elu", False),
        ((64, 384, 16, 16), "elu", True),
        ((7, 24, 9, 5), None, True),
        ((640, 1024, 1, 1), None, False),
        ((1, 3, 2, 3), "elu", False),
    ],
)
def test_a_gpu_in_low_precision_equals_the_definition(
    shape: tuple[int, ...], activation: Activation | None, residual: bool, dtype: torch.dtype
) -> None:
    norm, case = on_gpu(some_case(shape, activation, residual, dtype))
    theirs = nn.BatchNorm2d(shape[1]).cuda()
    theirs.load_state_dict(norm.state_dict())
    wanted = literal(case)
    found, plain = run(norm, case), run(theirs, case, plain=True)
    for name, value in wanted.items():
        assert found[name].dtype == plain[name].dtype, name
        # The steps of torch round in between, too. Sums are in float32 by either; but where t is
        # almost zero, ReLU's derivative may be that of the other side.
        least = 2e-3 if name.startswith("d") else 1e-5
        limit = max(1.1 * off_by(plain[name], value), least)
        assert off_by(found[name], value) <= min(limit, 1e-2), name
    for name in ("y", "dx"):
        assert found[name].is_contiguous(memory_format=torch.channels_last)


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize(("activation", "residual"), KINDS)
def test_maps_may_lie_in_memory_in_any_way(activation: Activation | None, residual: bool) -> None:
    norm, case = on_gpu(some_case((4, 64, 9, 8), activation, residual, torch.bfloat16))
    other = copy.deepcopy(norm)
    dense = {k: v.contiguous() for k, v in case.items() if k != "state" and isinstance(v, Tensor)}
    wanted, found = run(norm, case), run(other, case | dense)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize(("activation", "residual"), [("relu", True), ("elu", False)])
def test_a_graph_of_it_is_replayed_bit_for_bit(
    activation: Activation | None, residual: bool
) -> None:
    cases = [some_case((16, 128, 16, 16), activation, residual, torch.bfloat16) for _ in range(2)]
    cases[1]["x"] = cases[1]["x"].flip(0) * 2
    norm, static = on_gpu(cases[0])
    eager = copy.deepcopy(norm)
    run(copy.deepcopy(norm), static)  # compiled now
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(norm, static)
    for case in (cases[1], cases[0], cases[1]):
        static["x"].copy_(case["x"])
        graph.replay()
        wanted = run(eager, static)
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert norm.num_batches_tracked is not None
    assert norm.num_batches_tracked.item() == 3


@needs_cuda
@pytest.mark.gpu
def test_what_has_no_kernel_is_done_by_torch() -> None:
    """float32, evaluation, and a layer without weights."""
    case = some_case((4, 16, 6, 6), "relu", True, torch.bfloat16)
    norm, moved = on_gpu(case)
    theirs = nn.BatchNorm2d(16).cuda()
    theirs.load_state_dict(norm.state_dict())
    exact = {k: moved[k].float() for k in ("x", "residual", "dy")}
    for training, inputs in ((True, exact), (False, exact), (False, {})):
        found = run(norm.train(training), moved | inputs)
        wanted = run(theirs.train(training), moved | inputs, plain=True)
        assert all(torch.equal(found[name], value) for name, value in wanted.items())
    free = BatchNorm2d(16, affine=False).cuda()
    wanted_y = nn.BatchNorm2d(16, affine=False).cuda()(moved["x"])
    assert torch.equal(free(moved["x"]), wanted_y)


@needs_cuda
@pytest.mark.gpu
@pytest.mark.parametrize("activation", [*ACTIVATIONS, None])
def test_what_is_not_finite_stays_so(activation: Activation | None) -> None:
    x = torch.randn(2, 8, 3, 3, device="cuda").bfloat16()
    x[0, 2, 1, 1] = torch.nan
    y = BatchNorm2d(8).cuda()(x, activation)
    assert y[:, 2].isnan().all()
    assert y[:, :2].isfinite().all()
