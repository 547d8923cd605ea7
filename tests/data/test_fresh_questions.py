"""New questions in every epoch: each image once, right answers, and the same however it is made."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from known_scenes import VOCABULARY, scenes_dataset
from macnet.clevr.families import GROUPS, QUESTION_FAMILIES
from macnet.clevr.program import SceneIndex, execute, from_prefix, to_prefix
from macnet.clevr.scene_array import array_to_scenes
from macnet.clevr.world import World, instantiate_questions
from macnet.data.batches import Batch
from macnet.data.block_encoder import BlockEncoder
from macnet.data.dataset import Dataset, Subset, random_order
from macnet.data.fresh_questions import FreshQuestionBatches, question_groups
from macnet.data.question_arrays import TYPES, UNKNOWN
from macnet.data.vocab import ANSWERS, PROGRAM_TOKENS
from macnet.errors import InputError

IMAGES, UNASKED = 131, 2  # 129 to ask about: two blocks of 50, and a part of one
N, G = 8, 3  # of a batch
STEPS = 17  # in an epoch; in the last of them, seven images are missing
pytestmark = pytest.mark.usefixtures("small_blocks")

Asked = dict[int, list[tuple[int, ...]]]
"""Row of an image → the questions about it, in their order, by tokens, program and labels."""


def opened(data: Dataset, **options: Any) -> FreshQuestionBatches:
    return FreshQuestionBatches(data, **{"images": N, "questions": G, "seed": 1, **options})


def take(data: Dataset, steps: int, **options: Any) -> list[Batch]:
    with opened(data, **options) as batches:
        return list(islice(batches, steps))


def assert_same(some: list[Batch], others: list[Batch]) -> None:
    assert len(some) == len(others)
    for a, b in zip(some, others, strict=True):
        assert all(map(torch.equal, a, b))


def questions_of(batches: list[Batch]) -> Asked:
    """All questions but fillers; none of them twice."""
    found: Asked = {}
    for batch in batches:
        columns = batch.questions, batch.programs, batch.lengths, batch.answers, batch.types
        table = torch.cat([c if c.dim() > 1 else c[:, None] for c in columns], 1)
        asked = batch.question_index != UNKNOWN
        for index, row in zip(
            batch.question_index[asked].tolist(), table[asked].tolist(), strict=True
        ):
            of_image = found.setdefault(index // G, [])
            assert index % G == len(of_image)
            of_image.append(tuple(row))
    return found


@pytest.fixture(scope="module")
def data() -> Dataset:
    return scenes_dataset(IMAGES, UNASKED)


@pytest.fixture(scope="module")
def unbroken(data: Dataset, small_blocks: int) -> list[Batch]:
    """Two epochs and some."""
    return take(data, 2 * STEPS + 3)


# --- what an epoch is ------------------------------------------------------------------------


def test_every_image_comes_once_an_epoch(data: Dataset, unbroken: list[Batch]) -> None:
    with opened(data) as batches:
        assert batches.steps == STEPS
    for epoch in (unbroken[:STEPS], unbroken[STEPS : 2 * STEPS]):
        asked = questions_of(epoch)
        assert sorted(asked) == list(range(IMAGES - UNASKED)), "not those that nobody asks about"
        assert {len(few) for few in asked.values()} == {G}
    b = N * G
    shapes = {tuple(column.shape for column in batch) for batch in unbroken}
    assert shapes == {((N, 16, 24, 3), (b, 48), (b,), (b,), (b,), (b, 25), (b,))}
    assert {column.dtype for batch in unbroken for column in batch[1:]} == {torch.int64}
    assert all(column.is_contiguous() for batch in unbroken for column in batch)


def test_what_is_missing_in_the_last_batch_is_filled_up(unbroken: list[Batch]) -> None:
    fillers = [int((batch.question_index == UNKNOWN).sum()) for batch in unbroken[:STEPS]]
    assert fillers == [0] * (STEPS - 1) + [7 * G]
    last = unbroken[STEPS - 1]
    filler = last.question_index == UNKNOWN
    assert (last.answers[filler] == UNKNOWN).all()
    assert (last.types[filler] == UNKNOWN).all()
    assert not last.programs[filler].any()
    assert (last.lengths > 0).all(), "a filler too is a question that a network can read"


def test_questions_are_about_their_images_and_rightly_answered(
    data: Dataset, unbroken: list[Batch]
) -> None:
    assert data.scenes is not None
    scenes = [SceneIndex(scene) for scene in array_to_scenes(data.scenes)]
    for batch in unbroken:
        for i, index in enumerate(batch.question_index.tolist()):
            if index == UNKNOWN:
                continue
            row = index // G
            assert (batch.images[i // G] == row).all()
            prefix = [PROGRAM_TOKENS[token] for token in batch.programs[i].tolist() if token]
            program = from_prefix(prefix)
            assert execute(program, scenes[row]) == ANSWERS[batch.answers[i]]
            assert TYPES[batch.types[i]] == program[-1]["function"]


def test_questions_are_those_of_the_generator(data: Dataset, unbroken: list[Batch]) -> None:
    """Of its blocks of shuffled images, word for word: so answers are as balanced as any."""
    assert data.scenes is not None
    world = World(1, questions_per_image=G)
    for epoch in range(2):
        found = questions_of(unbroken[epoch * STEPS : (epoch + 1) * STEPS])
        order = np.arange(IMAGES - UNASKED)[random_order(IMAGES - UNASKED, f"1/images/{epoch}")]
        for block in range(3):
            rows = order[50 * block : 50 * block + 50]
            expected = instantiate_questions(world, f"epoch {epoch}", block, data.scenes[rows])
            for row, few in zip(rows.tolist(), expected, strict=True):
                for question, own in zip(few, found[row], strict=True):
                    words = VOCABULARY.encode(question.text)
                    assert own[: len(words)] == tuple(words)
                    program = [PROGRAM_TOKENS[token] for token in own[48:-3] if token]
                    assert program == to_prefix(question.program)
                    assert ANSWERS[own[-2]] == question.answer


def test_epochs_and_seeds_differ(data: Dataset, unbroken: list[Batch]) -> None:
    epochs = [unbroken[:STEPS], unbroken[STEPS : 2 * STEPS], take(data, STEPS, seed=2)]
    pairs = [{(row, q) for row, few in questions_of(e).items() for q in few} for e in epochs]
    assert all(len(a & b) < 0.05 * len(a) for a in pairs for b in pairs if a is not b)
    orders = [torch.cat([batch.question_index for batch in epoch]).tolist() for epoch in epochs]
    assert orders[0] != orders[1] != orders[2] != orders[0]


# --- however it is made ----------------------------------------------------------------------


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(workers: int, data: Dataset, unbroken: list[Batch]) -> None:
    assert_same(take(data, STEPS + 2, workers=workers, position=3), unbroken[3 : STEPS + 5])


@pytest.mark.parametrize("stop", [1, 6, 7, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS])
def test_resumed_anywhere_it_goes_on_as_if_never_stopped(
    stop: int, data: Dataset, unbroken: list[Batch]
) -> None:
    assert_same(take(data, 3, position=stop), unbroken[stop : stop + 3])


def test_the_position_is_how_many_were_sampled(data: Dataset, unbroken: list[Batch]) -> None:
    with opened(data) as batches:
        samples = [batches.sample() for _ in range(3)]
        assert batches.position == 3
        copies = [tuple(tensor.clone() for tensor in sample) for sample in samples]
        rows, table = copies[0]
        assert (rows.shape, table.shape) == ((N,), (N * G, 48 + 25 + 3))
        assert (rows.dtype, table.dtype) == (torch.int64, torch.int16)
        assert_same([batches.gather(sample) for sample in copies], unbroken[:3])
        assert batches.position == 3


@pytest.mark.parametrize(("images", "n"), [(129, 2), (150, 3), (2, 3)])
def test_shards_together_are_the_whole(images: int, n: int) -> None:
    """Of two whole blocks and a part of one; of a whole one for each; of hardly any image."""
    few, epoch = scenes_dataset(images), 1
    whole, of_shard = -(-images // N), -(-images // (n * N))
    found: Asked = {}
    for k in range(n):
        with opened(few, shard=(k, n), position=epoch * of_shard) as batches:
            assert batches.steps == of_shard, "as many for each"
            own = questions_of(list(islice(batches, of_shard)))
        assert abs(len(own) - images / n) < 1
        assert not own.keys() & found.keys()
        found |= own
    assert found == questions_of(take(few, whole, position=epoch * whole))


def test_a_shard_is_resumed(data: Dataset) -> None:
    whole = take(data, 15, shard=(1, 2))
    assert_same(take(data, 4, shard=(1, 2), position=7), whole[7:11])


def test_batches_may_be_larger_than_a_block(data: Dataset, unbroken: list[Batch]) -> None:
    (batch,) = take(data, 1, images=2 * N * 5)
    alone = Batch(*map(torch.cat, zip(*unbroken[:10], strict=True)))
    assert_same([batch], [alone])


# --- whose questions -------------------------------------------------------------------------


def test_a_subset_of_the_images() -> None:
    few = scenes_dataset(20).subset(Subset("image", 0.25))
    (batch,) = take(few, 1)
    assert sorted(questions_of([batch])) == np.unique(few.image_rows[few.selected]).tolist()


def test_features_are_given_as_other_batches_give_them() -> None:
    (batch,) = take(scenes_dataset(20, features=True), 1)
    rows = batch.question_index.view(N, G)[:, 0] // G
    assert batch.images.shape == (N, 5, 3, 2)
    assert torch.equal(batch.images[:, 0, 0, 0].long(), rows)


def test_they_are_of_the_groups_of_families_that_the_own_ones_are_of() -> None:
    families = [f.number for f in QUESTION_FAMILIES if f.group in ("zero_hop", "one_hop")]
    easy = scenes_dataset(20, families=tuple(families))
    assert question_groups(easy) == ("one_hop", "zero_hop")
    (batch,) = take(easy, 1)
    relations = [PROGRAM_TOKENS.index(t) for t in PROGRAM_TOKENS if t.startswith("relate")]
    counts = torch.isin(batch.programs, torch.tensor(relations)).sum(1)
    assert set(counts.tolist()) == {0, 1}
    assert question_groups(scenes_dataset(2)) == (), "not known, and so all"
    assert question_groups(scenes_dataset(90, families=tuple(range(90)))) == GROUPS


def test_an_image_with_too_few_questions_is_filled_up() -> None:
    one_hop = tuple(f.number for f in QUESTION_FAMILIES if f.group == "one_hop")
    lonely = scenes_dataset(40, families=one_hop, num_objects=(1, 2))
    assert lonely.scenes is not None
    batches = take(lonely, 5)
    order, world = (
        random_order(40, "1/images/0"),
        World(1, questions_per_image=G, families=("one_hop",)),
    )
    expected = instantiate_questions(world, "epoch 0", 0, lonely.scenes[order])
    counts = {row: len(few) for row, few in zip(order.tolist(), expected, strict=True)}
    assert {0, G} <= set(counts.values()), "about one object alone, hardly any relation holds"
    found = questions_of(batches)
    assert {row: len(found.get(row, [])) for row in range(40)} == counts
    for batch in batches:
        filler = batch.question_index == UNKNOWN
        assert torch.equal(filler, batch.answers == UNKNOWN)
        assert (batch.lengths > 0).all()


# --- trouble ---------------------------------------------------------------------------------


def test_a_failure_ahead_is_a_failure_here(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InputError("nothing can be asked")

    monkeypatch.setattr(BlockEncoder, "__call__", fail)
    with opened(data) as batches, pytest.raises(InputError, match="nothing can be asked"):
        next(batches)


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_that_are_forgotten_hold_nothing(workers: int) -> None:
    few = scenes_dataset(20)
    batches = opened(few, workers=workers)
    next(batches)
    held = weakref.ref(few)
    gc.disable()
    del few, batches
    gc.enable()
    assert held() is None


def test_after_the_end_there_is_nothing(data: Dataset) -> None:
    with opened(data) as batches:
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize(
    "wrong", [{"images": 0}, {"questions": 0}, {"shard": (1, 1)}, {"position": -1}]
)
def test_batches_that_make_no_sense_are_refused(wrong: dict[str, Any], data: Dataset) -> None:
    with pytest.raises(ValueError, match="there is no batch"):
        opened(data, **wrong)


def test_scenes_must_be_known(data: Dataset) -> None:
    with pytest.raises(ValueError, match="known scenes: the scenes of its images are not known"):
        opened(replace(data, scenes=None))


# --- on a GPU --------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("features", [False, True])
def test_a_graph_holds_the_gathering(features: bool, resident: bool) -> None:
    """One captured graph makes every batch of the CPU's, over the ends of epochs too."""
    few = scenes_dataset(60, features=features)
    expected = take(few, 20)
    with opened(few, device="cuda", resident=resident, workers=2) as batches:
        first = batches.sample()
        inputs = tuple(tensor.clone() for tensor in first)
        batches.gather(inputs)  # once outside, as a capture wants it
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            batch = [column.clone() for column in batches.gather(inputs)]
        for number, wanted in enumerate(expected):
            sample = batches.sample() if number else first
            for room, tensor in zip(inputs, sample, strict=True):
                room.copy_(tensor)
            graph.replay()
            for here, there in zip(wanted, batch, strict=True):
                assert torch.equal(here, there.cpu())
