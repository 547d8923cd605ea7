"""Work done ahead: the same items in the same order, errors where they belong, no thread left."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from torch import Tensor

from macnet.data.prefetch import Prefetcher

Item = tuple[Tensor]


def count(device: str = "cpu") -> Iterator[Item]:
    number = torch.zeros((), device=device)
    while True:
        yield (number.clone(),)
        number += 1


def threads() -> int:
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


def test_items_come_in_order_and_only_so_many_are_made() -> None:
    made = []

    def watched() -> Iterator[Item]:
        for item in count():
            made.append(item)
            yield item

    with closing(Prefetcher(watched(), "cpu", depth=2)) as ahead:
        assert [int(next(ahead)[0]) for _ in range(5)] == [0, 1, 2, 3, 4]
        time.sleep(0.2)
        assert len(made) <= 5 + 2 + 1  # taken, waiting, and the one in hand
    assert threads() == 0
    with pytest.raises(StopIteration):
        next(ahead)


def test_an_end_ends_it() -> None:
    assert len(list(Prefetcher(iter([(torch.ones(1),)] * 3), "cpu"))) == 3
    assert threads() == 0


def test_an_error_comes_after_the_items_before_it() -> None:
    def failing() -> Iterator[Item]:
        yield (torch.ones(1),)
        raise RuntimeError("the second is missing")

    ahead = Prefetcher(failing(), "cpu")
    next(ahead)
    with pytest.raises(RuntimeError, match="the second is missing"):
        next(ahead)
    assert threads() == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_fails_at_once() -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        Prefetcher(count(), "cuda")


def test_one_that_is_forgotten_ends_its_thread() -> None:
    ahead = Prefetcher(count(), "cpu")
    next(ahead)
    assert threads() == 1
    del ahead
    gc.collect()
    assert threads() == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_cuda_items_are_ready_on_the_stream_of_whoever_takes_them() -> None:
    def slow() -> Iterator[Item]:
        for number in range(30):
            torch.cuda._sleep(2_000_000)  # the kernel that fills it comes later than `yield`
            yield (torch.full((1 << 20,), number, device="cuda"),)

    with closing(Prefetcher(slow(), "cuda")) as ahead:
        for number, (item,) in enumerate(ahead):
            assert (item == number).all()
            del item  # its memory may now be used for another, which must wait for the line above


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_graph_can_be_captured_meanwhile() -> None:
    x = torch.ones(8, device="cuda")
    with closing(Prefetcher(count("cuda"), "cuda")) as ahead:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = x * 2
        for expected in range(10):
            x.fill_(float(next(ahead)[0]))
            graph.replay()
            assert (y == 2 * expected).all()
