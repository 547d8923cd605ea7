"""Work on CUDA streams of its own gives the same as work in turn, captured or not."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from macnet.models.kernels.streams import SideStream, run_side_by_side

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def compute(x: Tensor, weight: Tensor) -> Tensor:
    """What is computed beside comes first, and is used last."""
    with SideStream(x.device) as side:
        beside = (x @ weight).relu() @ weight
    own = x.tanh()
    side.join(beside)
    return own @ weight + beside


def in_turn(x: Tensor, weight: Tensor) -> Tensor:
    return x.tanh() @ weight + (x @ weight).relu() @ weight


def given(device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(64, 64, generator=generator) for _ in range(2))
    return x.to(device), (weight / 8).to(device).requires_grad_()


def gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def test_without_a_gpu_all_is_done_in_turn() -> None:
    done: list[int] = []
    run_side_by_side([partial(done.append, k) for k in range(4)], CPU)
    assert done == [0, 1, 2, 3]
    torch.testing.assert_close(compute(*given(CPU)), in_turn(*given(CPU)))


@needs_cuda
@pytest.mark.gpu
def test_results_and_gradients_are_those_of_work_in_turn() -> None:
    found = []
    for function in compute, in_turn:
        x, weight = given(torch.device("cuda"))
        result = function(x, weight)
        result.square().sum().backward()
        found.append((result.detach(), gradient(weight)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@needs_cuda
@pytest.mark.gpu
def test_a_graph_holds_the_streams_and_the_backward_pass_on_them() -> None:
    x, weight = given(torch.device("cuda"))
    total = torch.zeros_like(weight)

    def add_rows(first: int) -> None:
        total[first::2] += gradient(weight)[first::2]

    def step() -> None:
        weight.grad = None
        compute(x, weight).square().sum().backward()
        run_side_by_side([partial(add_rows, first) for first in range(2)], x.device)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    wanted = gradient(weight).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()
    total.zero_()
    for _ in range(3):
        graph.replay()
    torch.testing.assert_close(total, 3 * wanted)
