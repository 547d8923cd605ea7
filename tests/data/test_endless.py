"""The endless stream delivers the world: every question once, in order, as numbers."""

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from macnet.clevr.families import GROUPS, families_of
from macnet.clevr.program import SceneIndex, to_prefix
from macnet.clevr.questions import TemplateInstance
from macnet.clevr.references import referenced_objects
from macnet.clevr.scene_array import array_to_scenes
from macnet.clevr.stream import Block, Stream
from macnet.clevr.world import World, generate_questions, instantiate_questions
from macnet.data.batches import Batch, BatchSource, GuidedBatch
from macnet.data.block_encoder import BlockEncoder, world_texts
from macnet.data.endless import EndlessBatches, to_batch
from macnet.data.question_arrays import TYPES, UNKNOWN
from macnet.data.vocab import ANSWERS, PROGRAM_TOKENS, SPECIALS, TOKENIZERS, Vocabulary
from macnet.errors import InputError
from real_clevr import real_clevr

WORLD = World(seed=5, width=24, height=16, questions_per_image=2)
VOCABULARY = Vocabulary.build(world_texts())
IMAGES_PER_BLOCK = 50  # images
IMAGES = 14  # to a batch: a block ends within the fourth
pytestmark = pytest.mark.usefixtures("small_blocks")


def take(count: int, **options: Any) -> list[Batch]:
    settings: dict[str, Any] = {"images": IMAGES, **options}
    with EndlessBatches(WORLD, VOCABULARY, **settings) as batches:
        return [next(batches) for _ in range(count)]


def assert_same(some: list[Batch], others: list[Batch]) -> None:
    assert len(some) == len(others)
    for a, b in zip(some, others, strict=True):
        assert all(map(torch.equal, a, b))


@pytest.fixture(scope="module")
def blocks(small_blocks: int) -> list[Block]:
    """The world itself, made without workers and threads."""
    with Stream(WORLD) as stream:
        return [next(stream) for _ in range(2)]


@pytest.fixture(scope="module")
def unbroken(small_blocks: int) -> list[Batch]:
    return take(7)  # 98 images of 100


def columns(batches: list[Batch]) -> Batch:
    return Batch(*map(torch.cat, zip(*batches, strict=True)))


def test_the_batches_are_the_world(unbroken: list[Batch], blocks: list[Block]) -> None:
    batch = columns(unbroken)
    pictures = torch.cat([block.images for block in blocks])
    assert torch.equal(batch.images, pictures[: 7 * IMAGES])
    asked = [
        question
        for block in blocks
        for questions in generate_questions(
            WORLD, "train", block.number, array_to_scenes(block.scenes)
        )
        for question in questions
    ][: len(batch.question_index)]
    assert batch.question_index.tolist() == list(range(2 * 7 * IMAGES))
    for i, question in enumerate(asked):
        words = VOCABULARY.encode(question.text)
        assert batch.lengths[i] == len(words)
        assert batch.questions[i].tolist() == words + [0] * (48 - len(words))
        assert ANSWERS[batch.answers[i]] == question.answer
        assert TYPES[batch.types[i]] == question.program[-1]["function"]
        program = [PROGRAM_TOKENS[step] for step in batch.programs[i] if step]
        assert program == to_prefix(question.program)


def test_a_batch_has_the_shape_of_every_other(unbroken: list[Batch]) -> None:
    shapes = {tuple(column.shape for column in batch) for batch in unbroken}
    b = 2 * IMAGES
    assert shapes == {((IMAGES, 16, 24, 3), (b, 48), (b,), (b,), (b,), (b, 25), (b,))}
    assert {column.dtype for batch in unbroken for column in batch[1:]} == {torch.int64}
    assert all(column.is_contiguous() for batch in unbroken for column in batch)


def test_what_is_drawn_is_the_batch(unbroken: list[Batch]) -> None:
    with EndlessBatches(WORLD, VOCABULARY, images=IMAGES) as batches:
        source: BatchSource = batches
        drawn = [source.sample(), source.sample()]
        assert source.position == 2
        assert source.steps is None
        assert_same([source.gather(tuple(few)) for few in drawn], unbroken[:2])


@pytest.mark.parametrize("stop", [2, 4])  # within the first block and the second
def test_going_on_is_as_if_never_stopped(unbroken: list[Batch], stop: int) -> None:
    with EndlessBatches(WORLD, VOCABULARY, images=IMAGES) as batches:
        for _ in range(stop):
            next(batches)
    assert batches.position == stop
    assert_same(take(1, position=batches.position), unbroken[stop : stop + 1])


def test_workers_change_nothing_and_leave_nothing(unbroken: list[Batch]) -> None:
    before = _children()
    with EndlessBatches(WORLD, VOCABULARY, images=IMAGES, workers=2, position=3) as batches:
        assert_same([next(batches) for _ in range(4)], unbroken[3:])
        assert len(_children() - before) >= 2
    assert not _children() - before
    with pytest.raises(StopIteration):
        next(batches)


def _children() -> set[str]:
    """Processes spawned by this one; the keeper of their resources stays, for the next ones."""
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {pid for pid in pids if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()}


def test_batches_may_be_larger_than_a_block(unbroken: list[Batch]) -> None:
    (batch,) = take(1, images=4 * IMAGES)
    assert_same([batch], [columns(unbroken[:4])])


def test_workers_share_out_the_world(unbroken: list[Batch]) -> None:
    (first,) = take(1, images=IMAGES_PER_BLOCK, shard=(0, 2))
    (second,) = take(1, images=IMAGES_PER_BLOCK, shard=(1, 2))
    whole = columns([first, second])
    some = columns(unbroken)
    assert torch.equal(whole.images[: len(some.images)], some.images)
    assert torch.equal(whole.question_index, torch.arange(2 * 2 * IMAGES_PER_BLOCK))


# --- what questions refer to -----------------------------------------------------------------


@pytest.fixture(scope="module")
def guided(small_blocks: int) -> list[GuidedBatch]:
    found = take(5, guided=True)
    return [batch for batch in found if isinstance(batch, GuidedBatch)]


def test_a_guided_batch_is_the_same_and_has_masks(
    guided: list[GuidedBatch], unbroken: list[Batch], blocks: list[Block]
) -> None:
    assert_same(list(guided), unbroken[:5])
    assert not any(isinstance(batch, GuidedBatch) for batch in unbroken)
    masks = torch.cat([block.objects for block in blocks])
    assert torch.equal(torch.cat([batch.objects for batch in guided]), masks[: 5 * IMAGES])
    assert {batch.objects.dtype for batch in guided} == {torch.int8}


def test_references_are_those_of_the_programs(
    guided: list[GuidedBatch], blocks: list[Block]
) -> None:
    wanted = [
        {*found.unique_objects, *found.counted_objects}
        for block in blocks
        for scene, asked in zip(array_to_scenes(block.scenes), block.questions, strict=True)
        for question in asked
        for found in [referenced_objects(question.program, SceneIndex(scene))]
    ]
    found = torch.cat([batch.references for batch in guided])
    assert found.dtype == torch.int64
    assert len(found) == 2 * 5 * IMAGES
    for references, objects in zip(found.tolist(), wanted, strict=False):
        assert references == sum(1 << i for i in objects)
    assert len({len(objects) for objects in wanted}) > 4, "some refer to many, some to none"


def test_a_filler_refers_to_nothing(blocks: list[Block]) -> None:
    few = instantiate_questions(WORLD, "train", 0, blocks[0].scenes)
    few[0].pop()
    few[2].clear()
    encoder = BlockEncoder.for_world(WORLD, VOCABULARY)
    table, references = encoder.with_references(few)
    assert np.array_equal(table, encoder(few))
    is_filler = table[:, -2] == UNKNOWN
    assert np.flatnonzero(is_filler).tolist() == [1, 4, 5]
    assert not references[is_filler].any()
    assert references[~is_filler].any()


def test_guided_batches_go_on_and_come_from_workers(guided: list[GuidedBatch]) -> None:
    (batch,) = take(1, guided=True, workers=1, position=3)  # across the end of a block
    assert isinstance(batch, GuidedBatch)
    assert_same([batch], [guided[3]])
    assert torch.equal(batch.objects, guided[3].objects)
    assert torch.equal(batch.references, guided[3].references)


# --- words -----------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_no_question_says_more_than_the_language_does(tokenizer: str, blocks: list[Block]) -> None:
    tokenize = TOKENIZERS[tokenizer]
    known = [tokenize(text) for text in world_texts()]
    asked = [tokenize(q.text) for block in blocks for of_image in block.questions for q in of_image]
    assert set(chain.from_iterable(asked)) <= set(chain.from_iterable(known))
    assert max(map(len, asked)) <= max(map(len, known))


def test_the_world_says_nothing_that_clevr_does_not() -> None:
    published = Vocabulary.load(real_clevr("clevr_vocab.json"))
    assert BlockEncoder.for_world(WORLD, published).words == 50
    own = Vocabulary.build(world_texts(), published.tokenizer)
    # What is left is the empty word, which stands where a template has two spaces.
    assert set(published.words) - set(own.words) == {""}


def test_a_vocabulary_that_lacks_words_is_refused() -> None:
    few = Vocabulary.build(["What is it?"])
    with pytest.raises(InputError, match="lacks 78 words of the generated world, first ';'"):
        EndlessBatches(WORLD, few, images=1)


@pytest.mark.parametrize("group", GROUPS)
def test_an_easier_world_needs_the_words_of_its_questions_alone(
    group: str, blocks: list[Block]
) -> None:
    families = families_of([group])
    easier = replace(WORLD, families=(group,), questions_per_image=len(families))
    known = Vocabulary.build(world_texts(families))
    encoder = BlockEncoder.for_world(easier, known)
    scenes = array_to_scenes(blocks[0].scenes)
    asked = generate_questions(easier, "train", 0, scenes)
    tokens = {token for few in asked for q in few for token in known.encode(q.text)}
    assert tokens == {*range(len(SPECIALS), len(known))}  # no unknown word, and none in vain
    # Tables have the shape of those of the whole world.
    whole = BlockEncoder.for_world(WORLD, VOCABULARY)
    assert (encoder.words, encoder.steps) == (whole.words, whole.steps)
    one_less = replace(known, words=known.words[:-1])
    for world, vocabulary in ((WORLD, known), (easier, one_less)):
        with pytest.raises(InputError, match="the vocabulary lacks"):
            BlockEncoder.for_world(world, vocabulary)


def test_an_image_with_too_few_questions_is_filled_up(blocks: list[Block]) -> None:
    few = instantiate_questions(WORLD, "train", 0, blocks[0].scenes)
    every = [of_image[:] for of_image in few]
    few[3].pop()
    encoder = BlockEncoder.for_world(WORLD, VOCABULARY)
    batch, whole = (
        to_batch(blocks[0]._replace(questions=encoder(questions)), encoder.words)
        for questions in (few, every)
    )
    filler = 2 * 3 + 1
    assert batch.question_index[filler] == batch.answers[filler] == UNKNOWN
    assert torch.equal(batch.questions[filler], whole.questions[filler - 1])
    others = torch.arange(len(batch.question_index)) != filler
    assert all(torch.equal(a[others], b[others]) for a, b in zip(batch[1:], whole[1:], strict=True))


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("questions_per_image", [1, 10, 90])
def test_tables_give_the_tokens_of_texts_and_programs(
    tokenizer: str, questions_per_image: int, blocks: list[Block]
) -> None:
    """Ninety questions fit no image, so that there are fillers, too."""
    world = replace(WORLD, questions_per_image=questions_per_image)
    # Ids are others than in a vocabulary that is built; one of them, 37, is a "%" in bytes.
    words = sorted(Vocabulary.build(world_texts(), tokenizer).words[4:], reverse=True)
    vocabulary = Vocabulary((*SPECIALS, *words), tokenizer, tuple(reversed(ANSWERS)))
    encoder = BlockEncoder.for_world(world, vocabulary)
    instances = instantiate_questions(world, "train", 0, blocks[0].scenes)
    asked = generate_questions(world, "train", 0, array_to_scenes(blocks[0].scenes))
    table, expected = encoder(instances), encoder.encode_texts(asked)
    assert table.dtype == expected.dtype
    assert np.array_equal(table, expected)
    assert (UNKNOWN in table[:, -2]) == (questions_per_image == 90)
    assert table.flags.writeable
    bare = encoder.with_families(instances)[0]
    assert np.array_equal(bare, expected[expected[:, -2] != UNKNOWN])


# --- trouble ---------------------------------------------------------------------------------


def test_a_failure_ahead_is_a_failure_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr("macnet.clevr.stream.render", fail)
    with (
        pytest.raises(RuntimeError, match="no memory left"),
        EndlessBatches(WORLD, VOCABULARY, images=IMAGES) as batches,
    ):
        next(batches)


@pytest.mark.usefixtures("warm_workers")
def test_a_failure_in_a_process_is_a_failure_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockEncoder, "__reduce__", _broken)
    with (
        pytest.raises(RuntimeError, match="cannot be rebuilt"),
        EndlessBatches(WORLD, VOCABULARY, images=IMAGES, workers=1) as batches,
    ):
        next(batches)


def _broken(_: BlockEncoder) -> tuple[Any, tuple[()]]:
    return _BrokenEncoder, ()


class _BrokenEncoder:
    def __call__(self, asked: list[list[TemplateInstance]]) -> np.ndarray:
        raise RuntimeError("cannot be rebuilt")


ENDINGS = {
    "forgotten": "",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT); next(batches); time.sleep(60)",
}


def test_an_image_without_any_question_is_filled_up_with_those_of_another() -> None:
    world = World(1, width=24, height=16, num_objects=(1, 2), families=("one_hop",),
                  questions_per_image=2)  # fmt: skip
    with Stream(world) as stream:
        block = next(stream)
    lonely = [i for i, few in enumerate(block.questions) if not few]
    assert lonely, "about one object alone, no relation can be asked for"
    encoder = BlockEncoder.for_world(world, VOCABULARY)
    encoded = block._replace(questions=encoder.encode_texts(block.questions))
    batch = to_batch(encoded, encoder.words)
    asked = (batch.question_index != UNKNOWN).view(-1, 2).sum(1).tolist()
    assert asked == [len(few) for few in block.questions]
    assert (batch.lengths > 0).all()
    with take_from(world) as batches:
        assert all(map(torch.equal, next(batches), batch))


def test_families_of_which_nothing_can_be_asked() -> None:
    world = World(1, width=24, height=16, num_objects=(1, 1), families=("two_hop",),
                  questions_per_image=1)  # fmt: skip
    with (
        pytest.raises(InputError, match="no question of the chosen families fits any scene"),
        take_from(world) as batches,
    ):
        next(batches)


def take_from(world: World) -> EndlessBatches:
    return EndlessBatches(world, VOCABULARY, images=IMAGES_PER_BLOCK)


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_a_program_ends_nothing_stays_behind(ending: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
            import os, pathlib, signal, time
            from macnet.clevr import questions, stream
            from macnet.clevr.world import World
            from macnet.data import endless
            from macnet.data.block_encoder import world_texts
            from macnet.data.endless import EndlessBatches
            from macnet.data.vocab import Vocabulary

            questions.IMAGES_PER_BLOCK = stream.IMAGES_PER_BLOCK = endless.IMAGES_PER_BLOCK = 50
            stream.BLOCKS_AHEAD = 1

            if __name__ == "__main__":
                world = World(seed=1, width=24, height=16, questions_per_image=1)
                vocabulary = Vocabulary.build(world_texts())
                batches = EndlessBatches(world, vocabulary, images=50, workers=1)
                next(batches)
                print(pathlib.Path(f"/proc/self/task/{{os.getpid()}}/children").read_text())
                {ENDINGS[ending]}
        """)
    )
    run = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # the cores are busy with other tests
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ("KeyboardInterrupt" in run.stderr) == (ending == "interrupted")
    assert run.returncode == (0 if ending != "interrupted" else -2)
    children = run.stdout.split()
    assert children
    for _ in range(50):
        if not any(Path(f"/proc/{pid}").exists() for pid in children):
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"still there: {children}")


@pytest.mark.parametrize("wrong", [{"images": 0}, {"position": -1}, {"shard": (2, 2)}])
def test_batches_that_there_are_not(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="there is no"):
        take(1, **wrong)


# --- on a GPU --------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_graph_is_captured_while_the_thread_draws() -> None:
    world = World(seed=1, width=64, height=64)
    with EndlessBatches(world, VOCABULARY, images=50, device="cuda", workers=2) as batches:
        still = next(batches).images.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        total = torch.zeros((), dtype=torch.int64, device="cuda")
        with torch.cuda.stream(side):
            total.copy_(still.sum())
        torch.cuda.current_stream().wait_stream(side)
        for _ in range(5):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(50):
                    total.copy_(still.sum())
            for _ in range(20):
                images = next(batches).images
                still.copy_(images)
                graph.replay()
                assert total.item() == images.sum().item()
        stopped, batch = batches.position, next(batches)
    with EndlessBatches(world, VOCABULARY, images=50, device="cuda", position=stopped) as batches:
        assert_same([next(batches)], [batch])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_never_waits_for_images_to_be_rendered() -> None:
    """Or the next block would begin only then, and rendering has what time training leaves."""
    with Stream(WORLD, device="cuda", encode=BlockEncoder.for_world(WORLD, VOCABULARY)) as stream:
        to_batch(next(stream), 48)  # kernels are compiled
        try:
            torch.cuda.set_sync_debug_mode("error")
            batches = [to_batch(next(stream), 48) for _ in range(3)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert all(batch.images.is_cuda and batch.questions.is_cuda for batch in batches)
