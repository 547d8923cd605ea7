"""Objects that a network points at are painted out: does it still know the answer?"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from macnet.clevr.scene import MAX_OBJECTS
from macnet.clevr.stream import Block
from macnet.explain.masking import NOTHING, OTHERS, POINTED_AT, MaskingTest, paint_out
from macnet.explain.pointing import TracedBatch
from macnet.explain.tracing import AttentionRecord, Readings

HEIGHT, WIDTH, STEPS = 6, 50, 4


@given(st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_the_box_around_an_object_becomes_ground(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = 3, rng.integers(1, 9), rng.integers(1, 9)
    masks, images = rng.integers(-1, 3, shape), rng.integers(0, 256, (*shape, 3), np.uint8)
    masks[rng.random(shape) < 0.5] = -1
    masks[:, 0, 0] = -1
    chosen = rng.random((3, MAX_OBJECTS)) < 0.5
    painted, where = paint_out(*map(torch.from_numpy, (images, masks.astype(np.int8), chosen)))
    for image, mask, some, new, on in zip(images, masks, chosen, painted, where, strict=True):
        mean = np.round(image[mask == -1].mean(0))
        over = np.zeros(mask.shape, bool)
        for thing in np.flatnonzero(some):
            ys, xs = np.nonzero(mask == thing)
            for y, x in np.ndindex(mask.shape) if len(ys) else ():
                if min(ys) - 1 <= y <= max(ys) + 1 and min(xs) - 1 <= x <= max(xs) + 1:
                    over[y, x] |= mask[y, x] in (-1, thing)
        assert (on.numpy() == over).all()
        assert np.abs(new.numpy()[over] - mean).max(initial=0) <= 1  # float32 may round a half
        assert (new.numpy()[~over] == image[~over]).all()


# --- one whose steps and answers are known ---------------------------------------------------

CELLS = 11  # one for each object, and one for the ground


def batch(counts: list[int], peaks: dict[tuple[int, int], list[int]], first: int) -> TracedBatch:
    """Images with so many objects, object i of color i + 1; and by (image, question) the peaks.

    A peak is at the object of this number, or at the ground. The answer is the color of object 0.
    The last step is idle.
    """
    masks = np.full((len(counts), HEIGHT, WIDTH), -1, np.int8)
    for mask, count in zip(masks, counts, strict=True):
        for thing in range(count):
            mask[2:4, 5 * thing + 1 : 5 * thing + 3] = thing
    pixels = torch.from_numpy(masks + 1)[..., None].expand(-1, -1, -1, 3).to(torch.uint8)
    rows = np.array(list(peaks.values()))
    questions = len(rows)
    changes = np.ones((questions, STEPS))
    changes[:, -1] = 0.05
    there = np.arange(CELLS) < np.array(counts)[:, None]  # (N, L)
    cells = there[:, None] & np.eye(MAX_OBJECTS, CELLS, dtype=bool)
    nothing: Any = None
    plain = AttentionRecord(
        peaks=rows,
        attention=np.zeros((questions, STEPS, MAX_OBJECTS)),
        positions=np.zeros((questions, STEPS)),
        image_divergence=np.zeros((questions, STEPS, STEPS)),
        word_divergence=np.zeros((questions, STEPS, STEPS)),
        idle=np.zeros(rows.shape, bool),
        shares=np.ones((questions, STEPS)),
        changes=changes,
        answers=np.ones(questions, int),
        has_gate=True,
    )
    return TracedBatch(
        first_image=first,
        block=Block(0, nothing, pixels, torch.from_numpy(masks), nothing),
        cells=torch.from_numpy(cells),
        images=np.array([image for image, _ in peaks]),
        questions=torch.arange(questions)[:, None],
        answers=np.ones(questions, int),
        readings=Readings(plain, plain.weighted()),
    )


class Watcher:
    """Answers 1 if object 0 is in the image, else 0; and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int]]] = []

    def __call__(self, images: Tensor, questions: Tensor) -> tuple[Tensor, list[Any]]:
        seen = [sorted({*image.unique().tolist()} - {0}) for image in images]
        self.asked += zip(questions[:, 0].tolist(), seen, strict=True)
        answers = torch.tensor([1 in colors for colors in seen]).long()
        return torch.nn.functional.one_hot(answers, 2).float(), []


GROUND = 10
PEAKS = {
    (0, 0): [GROUND, GROUND, GROUND, 0],  # only its idle step points at an object
    (0, 1): [0, GROUND, 0, 1],
    (0, 2): [1, 1, 1, 1],  # not the first that fits
    (1, 0): [0, 1, GROUND, GROUND],  # of three objects, one is left
    (2, 0): [1, GROUND, GROUND, 0],
    (3, 0): [0, 2, GROUND, GROUND],
}
COUNTS = [3, 3, 2, 10, 1]


def test_who_needs_the_object_does_not_know_the_answer_without_it() -> None:
    watcher = Watcher()
    test = MaskingTest(watcher)
    test.add(batch(COUNTS, PEAKS, 0))
    found = test.result()
    assert all(share.total == 3 for share in found.accuracy.values())
    assert (watcher.asked[:3], len(watcher.asked)) == (
        [(1, [2, 3]), (4, [1]), (5, [2, 4, 5, 6, 7, 8, 9, 10])],
        6,
    )
    assert [question for question, _ in watcher.asked[3:]] == [1, 4, 5]
    left = [{*colors} for _, colors in watcher.asked[3:]]
    assert [len(colors) for colors in left] == [2, 1, 8]  # as many are missing
    assert 1 in left[0]
    assert left[1] == {2}
    assert {1, 3} < left[2]
    correct = {name: share.correct for name, share in found.accuracy.items()}
    assert correct == {NOTHING: 3, POINTED_AT: 1, OTHERS: 2}
    pixels = 16 / (HEIGHT * WIDTH)  # two by two, and one around
    for name in (POINTED_AT, OTHERS):
        assert found.area[name] == pytest.approx((1 + 1 + 2) * pixels / 3)
    assert found.area[NOTHING] == 0


def test_the_batch_of_an_image_does_not_matter() -> None:
    whole, parts = Watcher(), Watcher()
    test = MaskingTest(whole)
    test.add(batch(COUNTS, PEAKS, 7))
    in_parts = MaskingTest(parts)
    for image, count in enumerate(COUNTS[:4]):
        own = {(0, q): peaks for (of, q), peaks in PEAKS.items() if of == image}
        in_parts.add(batch([count], own, 7 + image))
    assert test.result().accuracy == in_parts.result().accuracy
    order = [*itertools.chain.from_iterable(zip(whole.asked[:3], whole.asked[3:], strict=True))]
    assert [colors for _, colors in order] == [colors for _, colors in parts.asked]


def test_without_questions_there_is_nothing_to_know() -> None:
    test = MaskingTest(Watcher())
    test.add(batch([2], {(0, 0): [GROUND] * STEPS}, 0))
    record = test.result().to_record()
    assert [share["total"] for share in record["accuracy"].values()] == [0, 0, 0]
    assert [*record["area"].values()] == [None, None, None]
