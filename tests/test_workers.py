"""Work handed out ahead of its use: in order, and never more of it than was asked for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.clevr.world import World, encode_questions, sample_candidates
from macnet.data.block_encoder import BlockEncoder, world_texts
from macnet.data.vocab import Vocabulary
from macnet.workers import InProcess, map_in_order, pool


@settings(max_examples=50, deadline=None)
@given(tasks=st.lists(st.integers(), max_size=12), ahead=st.integers(0, 5))
def test_results_come_in_the_order_of_their_tasks(tasks: list[int], ahead: int) -> None:
    begun: list[int] = []

    def negative(task: int) -> int:
        begun.append(task)
        return -task

    results = []
    for result in map_in_order(InProcess(), negative, tasks, ahead):
        results.append(result)
        assert len(begun) == min(len(results) + ahead, len(tasks))
    assert results == [-task for task in tasks]


def test_an_error_comes_where_its_result_would() -> None:
    tasks: list[Any] = ["a", "bc", 3, "d"]
    results = map_in_order(InProcess(), len, tasks, ahead=3)
    assert (next(results), next(results)) == (1, 2)
    with pytest.raises(TypeError):
        next(results)


@pytest.mark.usefixtures("warm_workers")
def test_the_work_of_other_processes() -> None:
    with pool(2) as executor:
        assert list(map_in_order(executor, str, range(9), ahead=4)) == [str(i) for i in range(9)]


def test_workers_of_the_stream_do_without_torch() -> None:
    world = World(seed=1, width=24, height=16)
    encoder = BlockEncoder.for_world(world, Vocabulary.build(world_texts()))
    with pool(1) as executor:
        scenes = executor.submit(sample_candidates, world, "train", range(2), 0).result()
        table = executor.submit(encode_questions, world, "train", 0, scenes, encoder).result()
        assert len(table) == 20
        assert not executor.submit(eval, "'torch' in __import__('sys').modules").result()
