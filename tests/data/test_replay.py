"""Two sources as one: each in its own order, in equal shapes, from wherever one stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from macnet.data.batches import Batch, Batches, BatchSource
from macnet.data.dataset import Dataset
from macnet.data.question_arrays import TokenizedQuestion, collect, program_ids
from macnet.data.replay import ReplayMixture, source_positions
from macnet.data.vocab import SPECIALS, Vocabulary
from macnet.errors import InputError

WORDS = Vocabulary((*SPECIALS, *"abc"))


def dataset(images: int, words: int, program: list[str], shade: int) -> Dataset:
    """Two questions about each image; the shade of a picture tells whose it is."""
    rows = [
        TokenizedQuestion([4 + q % 3] * words, q % 28, program_ids(program), image, type=q % 13)
        for image in range(images)
        for q in (2 * image, 2 * image + 1)
    ]
    pictures = np.full((images, 4, 6, 3), shade, np.uint8)
    of = np.repeat(np.arange(images, dtype=np.int32), 2)
    return Dataset(pictures, collect(rows), of, np.arange(len(of), dtype=np.int32), WORDS, {})


HUMANS = dataset(7, 5, [], shade=1)
CLEVR = dataset(30, 3, ["exist", "scene"], shade=2)


def opened(data: Dataset, position: int = 0, **changes: Any) -> Batches:
    return Batches(
        data, **{"images": 3, "questions": 2, "seed": 4, "position": position, **changes}
    )


def mixture(share: float, position: int = 0) -> ReplayMixture:
    main, other = source_positions(position, share)
    return ReplayMixture(opened(HUMANS, main), opened(CLEVR, other), share)


def take(source: BatchSource, count: int) -> list[Batch]:
    return [source.gather(source.sample()) for _ in range(count)]


def assert_same(some: list[Batch], others: list[Batch]) -> None:
    for a, b in zip(some, others, strict=True):
        assert all(map(torch.equal, a, b))


def is_other(batch: Batch) -> bool:
    (shade,) = batch.images.unique().tolist()
    return bool(shade == 2)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 99), st.integers(2, 100))
def test_each_source_comes_in_its_own_order_and_at_its_turn(few: int, many: int) -> None:
    few = min(few, many - 1)
    batches = take(mixture(few / many), 60)
    for n, batch in enumerate(batches):
        assert is_other(batch) == ((n + 1) * few // many > n * few // many)
    for data, kept in ((HUMANS, False), (CLEVR, True)):
        ours = [batch for batch in batches if is_other(batch) == kept]
        for mixed, own in zip(ours, take(opened(data), len(ours)), strict=True):
            for name in ("images", "lengths", "answers", "types", "question_index"):
                assert torch.equal(getattr(mixed, name), getattr(own, name))
            for name, width in (("questions", 5), ("programs", 2)):
                ids, narrow = getattr(mixed, name), getattr(own, name)
                assert ids.shape == (6, width)
                assert torch.equal(ids[:, : narrow.shape[1]], narrow)
                assert not ids[:, narrow.shape[1] :].any()


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0.01, 0.99), stop=st.integers(0, 40))
def test_going_on_is_as_if_never_stopped(share: float, stop: int) -> None:
    unbroken = mixture(share)
    before = take(unbroken, stop)
    assert unbroken.position == stop
    others = sum(map(is_other, before))
    assert source_positions(stop, share) == (stop - others, others)
    again = mixture(share, stop)
    assert again.position == stop
    assert_same(take(again, 7), take(unbroken, 7))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.29, 1 / 3])
def test_an_epoch_goes_once_through_the_main_set(share: float) -> None:
    source = mixture(share)
    alone = opened(HUMANS).steps
    assert source.steps is not None
    for epochs in (1, 2, 10):  # and does not lag behind, nor run ahead
        main, _ = source_positions(epochs * source.steps, share)
        assert epochs * alone <= main <= epochs * (alone + 1)
    main, _ = source_positions(source.steps - 2, share)
    assert main <= alone


def test_a_main_source_without_epochs_has_none_when_mixed() -> None:
    class Endless(BatchSource):
        steps = None
        position = 0

        def sample(self) -> tuple[torch.Tensor, ...]:
            return next(opened(HUMANS))

        def close(self) -> None:
            self.position = -1

    main, other = Endless(), Endless()
    source = ReplayMixture(main, other, 0.5)
    assert source.steps is None
    source.close()
    assert main.position == other.position == -1


OTHERS: dict[str, tuple[Callable[[], Batches], str]] = {
    "fewer images": (lambda: opened(CLEVR, images=2), r"6 questions .* of 4 questions about"),
    "questions": (lambda: opened(CLEVR, questions=1), r"6 questions .* of 3 questions about"),
    "another size": (
        lambda: opened(replace(CLEVR, images=CLEVR.images[:, :2])),
        r"images \(3, 4, 6, 3\) of torch.uint8 .* images \(3, 2, 6, 3\) of torch.uint8",
    ),
    "features": (
        lambda: opened(replace(CLEVR, images=np.zeros((30, 6, 3, 4), np.float16))),
        r"images \(3, 4, 6, 3\) of torch.uint8 .* images \(3, 4, 6, 3\) of torch.float16",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_batches_of_different_shapes_are_refused(case: str) -> None:
    other, said = OTHERS[case]
    with pytest.raises(InputError, match=said):
        ReplayMixture(opened(HUMANS), other(), 0.5)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan"), 1 - 1e-9])
def test_a_share_that_mixes_nothing_is_refused(share: float) -> None:
    with pytest.raises(InputError, match=rf"replayed batches is {share}; it must lie in \(0, 1\)"):
        mixture(share)


def test_sources_that_no_mixture_left_are_refused() -> None:
    with pytest.raises(ValueError, match="is at 1 and 3"):
        ReplayMixture(opened(HUMANS, 1), opened(CLEVR, 3), 0.5)
