"""Every question once an epoch, whatever the shape, the workers and where one stops."""

from __future__ import annotations

import gc
import weakref
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.data.batches import EMPTY_SLOT, Batch, Batches, BatchSource, Order
from macnet.data.dataset import Dataset, Subset, random_order, rows_of
from macnet.data.question_arrays import UNKNOWN, TokenizedQuestion, collect, program_ids
from macnet.data.vocab import SPECIALS, Vocabulary
from macnet.errors import InputError

WORDS = Vocabulary((*SPECIALS, *(f"w{i}" for i in range(40))))
EXIST = program_ids(["exist", "scene"])


def dataset(counts: list[int], seed: int = 0, features: bool = False) -> Dataset:
    """Images with so many questions each, all of whose numbers tell which they are."""
    rng = np.random.default_rng(seed)
    of = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    rows = [
        TokenizedQuestion([4 + q % 40] * (1 + q % 7), int(q % 28), EXIST, int(image), type=q % 13)
        for q, image in enumerate(of)
    ]
    shape = (len(counts), 3, 2, 5 if features else 3)
    pictures = np.broadcast_to(np.arange(len(counts))[:, None, None, None] % 200, shape)
    return Dataset(
        pictures.astype(np.float16 if features else np.uint8),
        collect(rows),
        of.astype(np.int32),
        np.arange(len(rows), dtype=np.int32),
        WORDS,
        {},
    )


def flat(batches: list[Batch]) -> list[int]:
    numbers = torch.cat([batch.question_index for batch in batches])
    return sorted(numbers[numbers != UNKNOWN].tolist())


counts = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)


@settings(max_examples=60, deadline=None)
@given(
    counts=counts,
    images=st.integers(1, 5),
    questions=st.integers(1, 11),
    shards=st.integers(1, 4),
    seed=st.none() | st.integers(0, 5),
    epoch=st.integers(0, 3),
    share=st.sampled_from([1.0, 0.5, 0.01]),
    by=st.sampled_from(["question", "image"]),
)
def test_an_epoch_holds_every_chosen_question_once_over_all_shards(
    counts: list[int],
    images: int,
    questions: int,
    shards: int,
    seed: int | None,
    epoch: int,
    share: float,
    by: str,
) -> None:
    data = dataset(counts).subset(Subset(by, share))  # type: ignore[arg-type]
    shape: dict[str, Any] = {"images": images, "questions": questions, "seed": seed}
    steps = Batches(data, shard=(0, shards), **shape).steps
    position = epoch * steps
    of_shards = [
        list(islice(Batches(data, shard=(k, shards), position=position, **shape), steps))
        for k in range(shards)
    ]
    everything = list(chain(*of_shards))
    assert flat(everything) == sorted(data.selected.tolist())
    for batch in everything:
        assert batch.images.shape[0] == images
        assert all(len(column) == images * questions for column in batch[1:])
        filler = batch.question_index == UNKNOWN
        for column in (batch.answers, batch.types):
            assert (column[filler] == UNKNOWN).all()
        assert not batch.programs[filler].any()
        assert (batch.lengths > 0).all()  # a filler too is a question that a network can read
    # Together they take, step by step, what a single one takes who takes as much, in turn.
    shape["images"] *= shards
    alone = Batches(data, position=position, **shape)
    for batch, *parts in zip(islice(alone, steps), *of_shards, strict=True):
        groups = [part.question_index.view(images, questions) for part in parts]
        assert torch.equal(batch.question_index, torch.stack(groups, dim=1).flatten())
    # And none is left with holes only while another has two groups of its own.
    held = [
        [(part.question_index.view(images, -1) != UNKNOWN).any(1).sum() for part in b]
        for b in of_shards
    ]
    for counts_of_step in zip(*held, strict=True):
        assert max(counts_of_step) - min(counts_of_step) <= 1


@settings(max_examples=40, deadline=None)
@given(
    counts=counts,
    images=st.integers(1, 4),
    questions=st.integers(1, 11),
    stop=st.integers(0, 25),
    seed=st.none() | st.integers(0, 5),
)
def test_resumed_anywhere_it_goes_on_as_if_never_stopped(
    counts: list[int], images: int, questions: int, stop: int, seed: int | None
) -> None:
    data = dataset(counts)
    shape: dict[str, Any] = {"images": images, "questions": questions, "seed": seed}
    first = Batches(data, **shape)
    for _ in islice(first, stop):
        pass
    assert first.position == stop
    again = Batches(data, position=first.position, **shape)
    for ours, theirs in islice(zip(first, again, strict=True), 5):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("features", [False, True])
def test_a_batch_holds_what_the_columns_say(features: bool) -> None:
    data = dataset([10, 9, 10, 3], features=features)
    q = data.questions
    for batch in islice(Batches(data, images=3, questions=4, seed=2), 10):
        for b, number in enumerate(batch.question_index.tolist()):
            image = batch.images[b // 4]
            if features:
                assert image.shape == (5, 3, 2)
            if number == UNKNOWN:
                continue
            assert (image == data.image_rows[number] % 200).all()
            assert batch.questions[b].tolist() == q.tokens[number].tolist()
            assert batch.lengths[b] == q.lengths[number]
            assert batch.answers[b] == q.answers[number]
            assert batch.types[b] == q.types[number]
            assert batch.programs[b].tolist() == q.programs[number].tolist()


def test_what_is_drawn_tells_the_batch_whenever_it_is_gathered() -> None:
    data = dataset([10, 9, 10, 3])
    shape: dict[str, Any] = {"images": 3, "questions": 4, "seed": 2}
    batches = Batches(data, **shape)
    source: BatchSource = batches
    drawn = [source.sample() for _ in range(5)]
    assert source.position == 5
    copies = [tuple(tensor.clone() for tensor in few) for few in drawn]
    expected = list(islice(Batches(data, **shape), 5))
    for few, batch in reversed(list(zip(copies, expected, strict=True))):
        (plan,) = few
        assert plan.shape == (3 + 2 * 12,)
        assert plan.dtype == torch.int64
        assert all(map(torch.equal, source.gather(few), batch))
    assert source.position == 5
    assert torch.equal(
        next(batches).question_index, next(Batches(data, position=5, **shape)).question_index
    )


def test_the_questions_of_a_group_are_about_one_image() -> None:
    images = np.repeat(np.arange(20), 10)
    order = Order(images, group=4, groups_per_step=3, seed=1)
    assert order.steps == 20  # 3 groups each, 60 in all
    for group in order.epoch(0).reshape(-1, 4):
        held = group[group != EMPTY_SLOT]
        assert len(set(images[held])) == 1


def test_epochs_and_seeds_differ_in_order_and_in_groups() -> None:
    images = np.repeat(np.arange(50), 10)
    drawn = {
        (seed, epoch): Order(images, group=5, groups_per_step=10, seed=seed).epoch(epoch)
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    groups = [{frozenset(g) for g in order.reshape(-1, 5).tolist()} for order in drawn.values()]
    assert all(len(a & b) < 20 for a in groups for b in groups if a is not b)
    assert np.array_equal(drawn[1, 0], Order(images, group=5, groups_per_step=10, seed=1).epoch(0))


def test_the_order_never_changes() -> None:
    """A resumed run depends on it: raw bits of PCG64, sorted."""
    assert random_order(8, "1/questions/2").tolist() == [6, 7, 1, 2, 5, 3, 4, 0]


def test_batches_that_are_forgotten_hold_nothing() -> None:
    """Not even until garbage is collected: their images may fill a GPU."""
    data = dataset([2, 2, 2])
    batches = Batches(data, images=3, questions=2, seed=1)
    next(batches)
    held = weakref.ref(data)
    gc.disable()
    del data, batches
    gc.enable()
    assert held() is None


@pytest.mark.parametrize(
    "wrong", [{"images": 0}, {"questions": 0}, {"shard": (1, 1)}, {"position": -1}]
)
def test_batches_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"images": 3, "questions": 2, "seed": 1, **wrong}
    with pytest.raises(ValueError, match="there is no batch"):
        Batches(dataset([2, 2, 2]), **settings)


def test_without_a_seed_questions_come_in_order_of_images() -> None:
    data = dataset([2, 2, 2])
    batch = next(Batches(data, images=3, questions=2, seed=None))
    assert data.image_rows[batch.question_index].tolist() == [0, 0, 1, 1, 2, 2]


@settings(max_examples=40, deadline=None)
@given(
    counts=counts,
    small=st.floats(0.01, 1),
    large=st.floats(0.01, 1),
    by=st.sampled_from(["question", "image"]),
    seed=st.integers(0, 9),
)
def test_subsets_nest_and_are_as_large_as_asked(
    counts: list[int], small: float, large: float, by: str, seed: int
) -> None:
    small, large = sorted([small, large])
    data = dataset(counts)
    few = data.subset(Subset(by, small, seed))  # type: ignore[arg-type]
    many = data.subset(Subset(by, large, seed))  # type: ignore[arg-type]
    assert set(few.selected) <= set(many.selected)
    assert few.metadata["subsets"] == [{"by": by, "share": small, "seed": seed}]
    assert len(few.subset(Subset("image", 1.0)).metadata["subsets"]) == 2
    if by == "question":
        assert len(few) == max(1, round(small * len(data)))
    else:
        images = set(few.image_rows[few.selected].tolist())
        assert len(images) == max(1, round(small * len(set(data.image_rows.tolist()))))
        assert len(few) == sum(counts[image] for image in images)


@pytest.mark.parametrize("by", ["question", "image"])
def test_a_subset_by_number_is_one_of_those_by_share(by: Any) -> None:
    data = dataset([1, 4, 2, 3])
    many = data.subset(Subset(by, 0.5, seed=3))
    images = len(set(many.image_rows[many.selected].tolist()))
    few = data.subset(Subset(by, count=5 if by == "question" else images, seed=3))
    assert few.selected.tolist() == many.selected.tolist()
    assert len(data.subset(Subset(by, count=10 if by == "question" else 4))) == 10, "all"
    count = few.metadata["subsets"][0]["count"]
    assert few.metadata["subsets"] == [{"by": by, "share": 1, "seed": 3, "count": count}]
    (again,) = (Subset(**rule) for rule in few.metadata["subsets"])
    assert data.subset(again).selected.tolist() == few.selected.tolist()
    message = f"a subset of 1,011 {by}s is asked for, but there are {10 if by == 'question' else 4}"
    with pytest.raises(InputError, match=message):
        data.subset(Subset(by, count=1011))
    with pytest.raises(InputError, match="a subset's count is 0; it must be at least 1"):
        Subset(by, count=0)


@pytest.mark.parametrize(("by", "share"), [("question", 0.0), ("image", 1.5), ("color", 0.5)])
def test_a_subset_that_makes_no_sense_is_refused(by: str, share: float) -> None:
    with pytest.raises(InputError, match="subset"):
        Subset(by, share)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), unique=True, min_size=1), st.lists(st.integers(-3, 40)))
def test_rows_of_finds_images_and_says_which_are_not_there(
    index: list[int], asked: list[int]
) -> None:
    found = rows_of(np.array(asked, np.int32), np.array(index, np.int32))
    assert found.tolist() == [index.index(a) if a in index else -1 for a in asked]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("features", [False, True])
def test_resident_and_streamed_batches_are_those_of_the_cpu(features: bool) -> None:
    data = dataset([10, 9, 10, 3] * 20, features=features)
    shape: dict[str, Any] = {"images": 7, "questions": 4, "seed": 3}
    host = Batches(data, **shape)
    here = Batches(data, device="cuda", resident=True, **shape)
    with Batches(data, device="cuda", resident=False, **shape) as streamed:
        for a, b, c in islice(zip(host, here, streamed, strict=True), 40):
            for of_host, of_device, of_stream in zip(a, b, c, strict=True):
                assert torch.equal(of_host, of_device.cpu())
                assert torch.equal(of_host, of_stream.cpu())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("features", [False, True])
def test_a_graph_holds_the_gathering(features: bool, resident: bool) -> None:
    """One captured graph makes every batch, over the ends of epochs too."""
    data = dataset([10, 9, 10, 3] * 5, features=features)
    shape: dict[str, Any] = {"images": 7, "questions": 4, "seed": 3}
    host = Batches(data, **shape)
    with Batches(data, device="cuda", resident=resident, **shape) as batches:
        assert batches.steps < 15
        first = batches.sample()
        inputs = tuple(torch.empty_like(tensor) for tensor in first)
        for room, tensor in zip(inputs, first, strict=True):
            room.copy_(tensor)
        batches.gather(inputs)  # once outside, as a capture wants it
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            # Streamed images are there already: without a use of them the graph would be empty.
            batch = [column.clone() for column in batches.gather(inputs)]
        for number, expected in enumerate(islice(host, 30)):
            drawn = batches.sample() if number else first
            for room, tensor in zip(inputs, drawn, strict=True):
                room.copy_(tensor)
            graph.replay()
            for here, there in zip(expected, batch, strict=True):
                assert torch.equal(here, there.cpu())
