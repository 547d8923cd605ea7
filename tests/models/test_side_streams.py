"""Work on CUDA streams of its own gives the same as work in turn, captured or not."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from macnet.models.kernels.streams import SideStream, run_on_streams

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def compute(x: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """What is computed beside comes first, and is used last; it has a weight to itself."""
    with SideStream(x.device) as side:
        beside = (x @ other).relu() @ other
    here = x.tanh()
    side.join(beside)
    return here @ own + beside


def in_turn(x: Tensor, own: Tensor, other: Tensor) -> Tensor:
    return x.tanh() @ own + (x @ other).relu() @ other


def given(device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, *weights = (torch.randn(64, 64, generator=generator) / 8 for _ in range(3))
    return [x.to(device), *(weight.to(device).requires_grad_() for weight in weights)]


def gradients(*weights: Tensor) -> list[Tensor]:
    return [weight.grad for weight in weights if weight.grad is not None]


def test_without_a_gpu_all_is_done_in_turn() -> None:
    done: list[int] = []
    run_on_streams([partial(done.append, k) for k in range(4)], CPU)
    assert done == [0, 1, 2, 3]
    torch.testing.assert_close(compute(*given(CPU)), in_turn(*given(CPU)))


def test_on_a_cpu_no_gpu_is_started_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_up() -> None:
        raise AssertionError("CUDA was started up")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", start_up)
    compute(*given(CPU))
    run_on_streams([lambda: None], CPU)


@needs_cuda
@pytest.mark.gpu
def test_results_and_gradients_are_those_of_work_in_turn() -> None:
    found = []
    for function in compute, in_turn:
        x, *weights = given(torch.device("cuda"))
        result = function(x, *weights)
        result.square().sum().backward()
        found.append([result.detach(), *gradients(*weights)])
    assert [*map(len, found)] == [3, 3]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@needs_cuda
@pytest.mark.gpu
def test_a_graph_holds_the_streams_and_the_backward_pass_on_them() -> None:
    x, *weights = given(torch.device("cuda"))
    totals = [torch.zeros_like(weight) for weight in weights]

    def add(total: Tensor, weight: Tensor) -> None:
        total += gradients(weight)[0]

    def step() -> None:
        for weight in weights:
            weight.grad = None
        compute(x, *weights).square().sum().backward()
        pairs = zip(totals, weights, strict=True)
        run_on_streams([partial(add, *pair) for pair in pairs], x.device)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    wanted = [3 * gradient for gradient in gradients(*weights)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    for total in totals:
        total.zero_()
    for _ in range(3):
        graph.replay()
    for total, gradient in zip(totals, wanted, strict=True):
        torch.testing.assert_close(total, gradient)
