"""What programs refer to, where pictures show it, and where networks look."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import pytest
import torch

from macnet.clevr.program import SceneIndex, from_prefix
from macnet.clevr.questions import QuestionGenerator
from macnet.clevr.references import referenced_objects
from macnet.clevr.scene import MAX_OBJECTS, Object, Scene, sample_scenes
from macnet.clevr.stream import Block, Stream
from macnet.clevr.world import World
from macnet.data.block_encoder import world_texts
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError
from macnet.explain import pointing, reply
from macnet.explain.agreement import NETWORK, OTHER_QUESTION, UNTRAINED
from macnet.explain.comparison import measure
from macnet.explain.pointing import (
    GroundTruth,
    TracedBatch,
    collect_attention,
)
from macnet.explain.reply import IDLE, beyond_resting
from macnet.explain.resting import other_questions
from macnet.explain.tracing import (
    Readings,
    pairwise_divergence,
    trace_attention,
)
from macnet.models.cells import object_cells
from macnet.models.mac import MACNetwork
from macnet.models.presets import ablation

WORDS = Vocabulary.build(world_texts())
SMALL: dict[str, Any] = {"d": 8, "p": 3, "embedding": 6, "image": "pixels"}


def network(row: str = "w/ self-attention and memory gate") -> MACNetwork:
    torch.manual_seed(0)
    return MACNetwork(ablation(row, **SMALL), vocabulary=len(WORDS), answers=28).eval()


# --- what programs refer to ---------------------------------------------------------------------

# From left to right: a red cube, a blue ball, a green cube, a blue cylinder.
ROW = Scene(
    tuple(
        Object("large", color, "metal", shape, x, x, 0.0)
        for x, (color, shape) in enumerate(
            [("red", "cube"), ("blue", "sphere"), ("green", "cube"), ("blue", "cylinder")]
        )
    ),
    (7.21, -6.83, 5.12),
)


@pytest.mark.parametrize(
    ("program", "unique", "counted", "hops"),
    [
        ("count filter_shape[cube] scene", (), (0, 2), ()),
        ("exist filter_color[purple] scene", (), (), ()),
        ("query_color unique filter_shape[sphere] scene", (1,), (), ()),
        ("count relate[left] unique filter_color[green] scene", (2,), (0, 1), ()),
        (
            "query_shape unique filter_color[blue] relate[right] unique filter_color[green] scene",
            (2, 3),
            (),
            ((2, 3),),
        ),
        (
            "query_shape unique filter_color[red] relate[left] unique filter_color[green] "
            "relate[left] unique filter_shape[cylinder] scene",
            (3, 2, 0),
            (),
            ((3, 2), (2, 0)),  # the cylinder leads to the red cube, but not by itself
        ),
        (
            "query_shape unique same_color unique filter_shape[sphere] relate[left] unique "
            "same_color unique filter_shape[sphere] scene",
            (1, 3, 1, 3),
            (),
            ((1, 3), (3, 1), (1, 3)),
        ),
        (
            "exist intersect relate[right] unique filter_color[red] scene "
            "relate[left] unique filter_shape[cylinder] scene",
            (0, 3),
            (1, 2),
            (),  # neither leads to the other
        ),
        (
            "less_than count filter_color[blue] scene count relate[right] unique "
            "filter_shape[sphere] scene",
            (1,),
            (1, 2, 3),
            (),
        ),
        (
            "equal_shape query_shape unique filter_color[red] scene query_shape unique "
            "filter_color[green] scene",
            (0, 2),
            (),
            (),
        ),
    ],
)
def test_what_a_program_visits(
    program: str,
    unique: tuple[int, ...],
    counted: tuple[int, ...],
    hops: tuple[tuple[int, int], ...],
) -> None:
    found = referenced_objects(from_prefix(program.split()), SceneIndex(ROW))
    assert found == (unique, counted, hops)


def test_what_is_visited_has_what_is_answered() -> None:
    """Every answer can be had from the referenced objects alone."""
    rngs = [random.Random(i) for i in range(40)]
    asker, linked = QuestionGenerator(random.Random(3)), 0
    for scene in sample_scenes(rngs, lambda scenes: [True] * len(scenes)):
        for question in asker.generate(scene):
            found = referenced_objects(question.program, SceneIndex(scene))
            last = question.program[-1]["function"]
            if last == "count":
                assert question.answer == str(len(found.counted_objects))
            elif last == "exist":
                assert question.answer == ("yes" if found.counted_objects else "no")
            elif last.startswith("query"):
                of_last = scene.objects[found.unique_objects[-1]]
                assert question.answer == getattr(of_last, last.removeprefix("query_"))
            functions = [node["function"] for node in question.program]
            assert len(found.unique_objects) == functions.count("unique")
            assert len(found.hops) < max(1, len(found.unique_objects))
            assert {i for hop in found.hops for i in hop} <= set(found.unique_objects)
            linked += len(found.hops)
    assert linked > 100


# --- networks --------------------------------------------------------------------------------


def test_what_is_watched_is_what_the_network_does() -> None:
    mac, rng = network(), np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (3, 24, 40, 3), np.uint8))
    tokens = torch.from_numpy(rng.integers(4, len(WORDS), (6, 9)))
    tokens[1, 5:] = tokens[4, 2:] = 0
    masks = torch.from_numpy(rng.integers(-1, 4, (3, 24, 40)).astype(np.int8))
    masks[2] = 3
    masks[:, :20, 10:] = -1
    shows = object_cells(masks)
    found, weighted = trace_attention(mac.trace, images, tokens, shows)
    assert weighted is not None  # by the gate alone
    assert np.array_equal(weighted.peaks, found.weighted().peaks)
    for b in range(6):
        words = tokens[b][tokens[b] != 0]
        with torch.no_grad():
            logits, steps = mac.trace(images[b // 2, None], words[None])
        assert found.answers[b] == logits.argmax()
        for i, step in enumerate(steps):
            rv = step.knowledge[0]
            assert step.change is not None
            assert math.isclose(found.changes[b, i], step.change.item(), abs_tol=1e-5)
            assert found.peaks[b, i] == rv.argmax()
            for thing in range(MAX_OBJECTS):
                on = rv[shows[b // 2, thing]].sum().item()
                assert math.isclose(found.attention[b, i, thing], on, abs_tol=1e-5)
            assert step.words is not None
            mean = sum(cv * s for s, cv in enumerate(step.words[0].tolist())) / (len(words) - 1)
            assert math.isclose(found.positions[b, i], mean, abs_tol=1e-5)
            for j, other in enumerate(steps):
                assert other.words is not None
                image = jensen_shannon(rv.tolist(), other.knowledge[0].tolist())
                assert math.isclose(found.image_divergence[b, i, j], image, abs_tol=1e-5)
                reading = jensen_shannon(step.words[0].tolist(), other.words[0].tolist())
                assert math.isclose(found.word_divergence[b, i, j], reading, abs_tol=1e-5)


def test_attention_beyond_resting_maps_is_read_as_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By one question at a time; and a step that changes little points at nothing."""
    monkeypatch.setattr(reply, "RESTING", 1e-6)  # for nothing has been learned
    mac, rng = network(), np.random.default_rng(1)
    images = torch.from_numpy(rng.integers(0, 256, (2, 24, 40, 3), np.uint8))
    tokens = torch.from_numpy(rng.integers(4, len(WORDS), (4, 7)))
    masks = torch.from_numpy(rng.integers(-1, 4, (2, 24, 40)).astype(np.int8))
    shows, others = object_cells(masks), other_questions(WORDS)
    assert others is not None
    plain, found = trace_attention(mac.trace, images, tokens, shows, others=others)
    assert np.array_equal(plain.peaks, trace_attention(mac.trace, images, tokens, shows)[0].peaks)
    assert found is not None
    assert np.array_equal(found.answers, plain.answers)
    for b in range(4):
        with torch.no_grad():
            _, steps = mac.trace(images[b // 2, None], tokens[b, None])
            rest = [mac.trace(images[b // 2, None], row[row != 0][None])[1] for row in others]
        beyond = []
        for i, step in enumerate(steps):
            mean = np.mean([other[i].knowledge[0].numpy() for other in rest], 0)
            beyond.append(beyond_resting(step.knowledge[0].numpy(), mean)[0])
            change = plain.changes[b, i]
            assert found.peaks[b, i] == (beyond[i].argmax() if change >= IDLE else -1)
            on = [change * beyond[i][shows[b // 2, thing]].sum() for thing in range(MAX_OBJECTS)]
            np.testing.assert_allclose(found.attention[b, i], on, atol=1e-3)
            far = jensen_shannon(beyond[i].tolist(), beyond[0].tolist())
            assert math.isclose(found.image_divergence[b, i, 0], far, abs_tol=2e-3)


def test_a_step_that_only_rests_points_at_nothing() -> None:
    mac = network()
    images = torch.zeros(1, 24, 40, 3, dtype=torch.uint8)
    asked = torch.randint(4, len(WORDS), (1, 6), generator=torch.Generator().manual_seed(0))
    shows = torch.zeros(1, MAX_OBJECTS, 15, dtype=torch.bool)
    _, found = trace_attention(mac.trace, images, asked, shows, others=asked.expand(64, -1))
    assert found is not None
    assert (found.peaks == -1).all()
    assert not found.active.any()


def jensen_shannon(one: list[float], other: list[float]) -> float:
    parts = [
        a * math.log2(2 * a / (a + b))
        for p in ((one, other), (other, one))
        for a, b in zip(*p, strict=True)
        if a
    ]
    return sum(parts) / 2


def test_distributions_that_share_nothing_are_one_bit_apart() -> None:
    attention = torch.tensor([[[0.5, 0.5, 0, 0], [0, 0, 0.1, 0.9], [0, 0, 0.1, 0.9]]])
    far = pairwise_divergence(attention)[0]
    assert torch.allclose(far, torch.tensor([[0.0, 1, 1], [1, 0, 0], [1, 0, 0]]), atol=1e-6)


class Few:
    """A stream that is one short block."""

    device = torch.device("cpu")

    def __init__(self, block: Block) -> None:
        self.block = block

    def __iter__(self) -> Iterator[Block]:
        return iter([self.block])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def stream() -> Few:
    """Nine images; one has fewer questions than the others, one a single question."""
    with Stream(World(3, width=32, height=24), split="val") as real:
        number, scenes, images, objects, questions = next(real)
    few = [asked[: {2: 4, 5: 1}.get(i, 10)] for i, asked in enumerate(questions[:9])]
    return Few(Block(number, scenes[:9], images[:9], objects[:9], few))


def observed(
    stream: Few, monkeypatch: pytest.MonkeyPatch, few: int, *networks: MACNetwork, **options: Any
) -> tuple[GroundTruth, list[Readings]]:
    monkeypatch.setattr(pointing, "Stream", lambda *_, **__: stream)
    monkeypatch.setattr(pointing, "BATCH_IMAGES_CPU", few)
    return collect_attention(
        [n.trace for n in networks], WORDS, World(3, width=32, height=24), images=9, **options
    )


def test_a_world_is_watched(stream: Few, monkeypatch: pytest.MonkeyPatch) -> None:
    mac, plain = network(), network("w/o word-attention")
    truth, readings = observed(stream, monkeypatch, 4, mac, plain)
    own, wordless = (reading.plain for reading in readings)
    block = stream.block
    assert truth.images.tolist() == [i for i, asked in enumerate(block.questions) for _ in asked]
    questions = [question for asked in block.questions for question in asked]
    assert [WORDS.answers[i] for i in truth.answers] == [q.answer for q in questions]
    assert len(questions) == 75 == len(own.peaks)
    assert truth.exists.sum(1).tolist() == block.scenes["num_objects"].tolist()
    # Whatever there is can be seen, and nothing else.
    assert (truth.cells.any(2) == truth.exists).all()
    assert ((truth.unique_objects | truth.counted_objects) <= truth.exists[truth.images]).all()
    for q, question in enumerate(questions):
        tokens = torch.tensor([WORDS.encode(question.text)])
        with torch.no_grad():
            logits, steps = mac.trace(block.images[truth.images[q], None], tokens)
        assert own.peaks[q].tolist() == [step.knowledge.argmax().item() for step in steps]
        assert own.answers[q] == logits.argmax()
    found = measure(truth, own, wordless)
    assert found.images == 9
    assert (found.answers.total, found.reads_backwards[NETWORK].total) == (75, 75)
    assert found.reads_backwards[UNTRAINED].total == 0
    assert (own.has_gate, wordless.has_gate) == (True, False)
    assert (wordless.changes == 1).all()
    assert found.positions[UNTRAINED] == []
    assert found.objects["referenced"].hits[OTHER_QUESTION].total == (
        found.objects["referenced"].hits[NETWORK].total
        - (truth.unique_objects | truth.counted_objects)[truth.images == 5].sum()
    )


def test_how_many_at_once_does_not_matter(stream: Few, monkeypatch: pytest.MonkeyPatch) -> None:
    truth, (own,) = observed(stream, monkeypatch, 2, network())
    again, (same,) = observed(stream, monkeypatch, 100, network())
    for name, column in vars(truth).items():
        assert np.array_equal(column, getattr(again, name)), name
    for name, column in vars(own.plain).items():
        assert np.allclose(column, getattr(same.plain, name), atol=1e-5), name
    assert own.as_shown is not None
    assert same.as_shown is not None
    assert np.allclose(own.as_shown.attention, same.as_shown.attention, atol=1e-4)


def test_images_that_nothing_is_asked_about(stream: Few, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an easier world; here those of the first two batches."""
    truth, (own,) = observed(stream, monkeypatch, 2, network())
    block = stream.block
    few = Few(block._replace(questions=[[] if i < 4 else q for i, q in enumerate(block.questions)]))
    seen: list[TracedBatch] = []
    fewer, (rest,) = observed(few, monkeypatch, 2, network(), on_batch=seen.append)
    left = truth.images >= 4
    assert np.array_equal(fewer.images, truth.images[left])
    assert np.array_equal(fewer.cells, truth.cells)
    assert np.array_equal(rest.plain.peaks, own.plain.peaks[left])
    assert [batch.first_image for batch in seen] == [4, 6, 8]
    images = np.concatenate([batch.first_image + batch.images for batch in seen])
    assert np.array_equal(images, fewer.images)
    assert np.array_equal(np.concatenate([batch.answers for batch in seen]), fewer.answers)
    questions = [question for asked in block.questions[4:] for question in asked]
    for question, tokens in zip(questions, (t for b in seen for t in b.questions), strict=True):
        assert tokens[tokens != 0].tolist() == WORDS.encode(question.text)
    none = Few(block._replace(questions=[[] for _ in block.questions]))
    with pytest.raises(InputError, match="no question of the chosen families fits any of the 9 "):
        observed(none, monkeypatch, 2, network())


def test_nothing_to_watch() -> None:
    with pytest.raises(InputError, match="`world_images` is 0; it must be at least 1"):
        collect_attention([network().trace], WORDS, World(3, width=32, height=24), images=0)
