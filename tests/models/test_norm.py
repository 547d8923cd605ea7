"""Two processes with half of a batch each normalise as one process with all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from macnet import distributed
from macnet.errors import InputError
from macnet.models.encoders import PixelBackbone
from macnet.models.norm import BatchNorm2d
from processes import in_processes

Found = dict[str, np.ndarray]
STEPS = 3
CASES = ["weights", "no weights", "far from zero", "images"]


def network(case: str) -> nn.Module:
    torch.manual_seed(1)
    if case == "images":
        return PixelBackbone().double()
    layer = BatchNorm2d(5, affine=case != "no weights").double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def batch(case: str, step: int) -> tuple[Tensor, Tensor]:
    """The input of a step, and the gradient of the output."""
    torch.manual_seed(step)
    if case == "images":
        return torch.randint(0, 256, (4, 16, 24, 3), dtype=torch.uint8), torch.randn(4, 256, 2, 3)
    # The halves differ, and so do channels.
    x = torch.randn(6, 5, 3, 4) * torch.arange(1, 6)[:, None, None]
    x += torch.arange(6)[:, None, None, None] + (1e5 if case == "far from zero" else 0)
    return x, torch.randn(6, 5, 3, 4)


def learn(case: str) -> Found:
    """Outputs, gradients and statistics of this process, for its part of a few batches."""
    net, found = network(case).train(), {}
    for step in range(STEPS):
        x, dy = (half.chunk(distributed.size())[distributed.rank()] for half in batch(case, step))
        if x.is_floating_point():
            x = x.double().contiguous(memory_format=torch.channels_last).requires_grad_()
        y = net(x)
        y.backward(dy.double())
        found[f"output {step}"] = y
        if x.grad is not None:
            found[f"input gradient {step}"] = x.grad
    found |= {f"gradient {name}": p.grad for name, p in net.named_parameters()}
    found |= dict(net.named_buffers())
    found["evaluated"] = net.eval()(x)
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


def in_low_precision() -> dict[str, Any]:
    torch.manual_seed(0)
    layer = BatchNorm2d(16).train()
    x = (torch.randn(8, 16, 5, 5) + 3).to(memory_format=torch.channels_last)
    share = x.chunk(distributed.size())[distributed.rank()].bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(share)
    (y.float() ** 3).sum().backward()
    assert share.grad is not None
    assert layer.weight.grad is not None
    return {
        "dtypes": [y.dtype, share.grad.dtype, layer.weight.grad.dtype],
        "channels last": y.is_contiguous(memory_format=torch.channels_last),
        "output": y.detach().float().numpy(),
        "input gradient": share.grad.float().numpy(),
    }


def everything() -> tuple[dict[str, Found], dict[str, Any]]:
    return {case: learn(case) for case in CASES}, in_low_precision()


@pytest.fixture(scope="module")
def two() -> list[tuple[dict[str, Found], dict[str, Any]]]:
    """The results of two processes, started once for all cases, as that takes seconds."""
    return in_processes(everything)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(case: str, two: list[tuple[dict[str, Found], Any]]) -> None:
    whole, halves = learn(case), [found[case] for found, _ in two]
    assert {*halves[0]} == {*halves[1]} == {*whole}
    far = 1e5 if case == "far from zero" else 1
    for name, wanted in whole.items():
        first, second = (half[name] for half in halves)
        if name.startswith("gradient"):
            found = first + second
        elif name.startswith(("output", "input gradient", "evaluated")):
            found = np.concatenate([first, second])
        else:
            assert np.array_equal(first, second), name  # running statistics, and no drifting apart
            found = first
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10 * far, err_msg=name)


def test_low_precision_has_exact_statistics(two: list[tuple[Any, dict[str, Any]]]) -> None:
    whole, halves = in_low_precision(), [found for _, found in two]
    for half in halves:
        assert half["dtypes"] == [torch.bfloat16, torch.bfloat16, torch.float32]
        assert half["channels last"]
    for name in ("output", "input gradient"):
        found = np.concatenate([half[name] for half in halves])
        # A bfloat16 has 8 bits, and the gradient is a difference of numbers of about 10.
        np.testing.assert_allclose(found, whole[name], rtol=0.01, atol=0.1, err_msg=name)


@pytest.mark.parametrize("affine", [False, True])
def test_one_process_equals_torchs_batch_norm(affine: bool) -> None:
    ours, theirs = BatchNorm2d(5, affine=affine), nn.BatchNorm2d(5, affine=affine)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for training in (True, True, False):
        x = torch.randn(4, 5, 3, 3)
        a, b = (x.clone().requires_grad_() for _ in range(2))
        y, wanted = ours.train(training)(a), theirs.train(training)(b)
        (y**3).sum().backward()
        (wanted**3).sum().backward()
        assert torch.equal(y, wanted)
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad)
        for name, value in ours.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[name]), name


def test_a_single_value_has_no_variance() -> None:
    layer = BatchNorm2d(5)
    with pytest.raises(InputError, match="one value of each channel cannot be normalised"):
        layer(torch.ones(1, 5, 1, 1))
    assert torch.isfinite(layer.eval()(torch.ones(1, 5, 1, 1))).all(), "in evaluation it has one"
