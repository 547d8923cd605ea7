"""Every question is asked once, and its answer stands in its place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from asked_data import asked, dataset_of
from macnet.data.batches import Batch
from macnet.data.dataset import Dataset
from macnet.data.question_arrays import UNKNOWN
from macnet.data.vocab import ANSWERS
from macnet.errors import InputError
from macnet.evaluation import predict as answering
from macnet.evaluation.predict import Predictor
from macnet.models.system import ProgramWriting, System
from processes import in_processes

PLACES = len(ANSWERS)


class Looks(nn.Module):
    """Answers by the number that its image is a picture of, and by its question's answer.

    It takes note of what it was asked, and how.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.shapes: list[tuple[int, int]] = []
        self.asked: list[int] = []
        self.modes: list[tuple[bool, bool]] = []
        self.dtypes: list[torch.dtype] = []

    def forward(self, batch: Batch) -> Tensor:
        images = len(batch.images)
        self.shapes.append((images, len(batch.question_index) // images))
        self.asked += batch.question_index.tolist()
        self.modes.append((self.layer.training, torch.is_inference_mode_enabled()))
        self.dtypes.append(self.layer(torch.ones(1, 1, device=batch.images.device)).dtype)
        of_image = (
            batch.images[:, 0, 0, 0].long().repeat_interleave(len(batch.question_index) // images)
        )
        return nn.functional.one_hot((of_image + batch.answers) % PLACES, PLACES).float()


def look(network: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = network(batch)
    return logits


LOOKING = System(
    name="looks",
    table1_row="LSTM",
    description="",
    build=lambda config, data_spec: Looks(),
    presets={},
    forward=look,
)


def seen(counts: list[int], seed: int = 0) -> Dataset:
    """Images with so many questions each, in any order."""
    images = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    rows = [asked(ANSWERS[q % 5], "exist") for q in range(len(images))]
    return dataset_of(rows, images.tolist())


def expected(dataset: Dataset) -> list[int]:
    answers = np.full(len(dataset.questions), UNKNOWN)
    right = (dataset.image_rows + dataset.questions.answers) % PLACES
    answers[dataset.selected] = right[dataset.selected]
    return answers.tolist()


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 13), min_size=1, max_size=15).filter(any),
    images=st.integers(1, 6),
    left=st.integers(0, 30),
    passes=st.integers(1, 3),
)
def test_each_question_that_counts_is_asked_once(
    counts: list[int], images: int, left: int, passes: int
) -> None:
    dataset = seen(counts)
    dataset = replace(dataset, selected=dataset.selected[left % len(dataset) :])
    ask = Predictor(dataset, images=images)
    for _ in range(passes):
        network = Looks()
        found, programs = ask(LOOKING, network, show=False)
        assert programs is None
        assert found.dtype == np.int16
        assert found.tolist() == expected(dataset)
        assert sorted(q for q in network.asked if q != UNKNOWN) == dataset.selected.tolist()
        assert all(n <= images and g <= 10 for n, g in network.shapes)


def test_programs_are_compared_where_they_are_of_clevr() -> None:
    """Ids of another format's tokens would be those of other functions, or of none."""
    dataset = seen([3, 4])
    writing = ProgramWriting(
        forward=lambda network, batch: (look(network, batch), batch.answers == 1),
        trace=lambda network, images, questions: (images, []),
        modules=list,
        map_title="attention",
    )
    answers, programs = Predictor(dataset)(replace(LOOKING, programs=writing), Looks(), show=False)
    assert answers.tolist() == expected(dataset)
    assert programs is not None
    assert programs.tolist() == (dataset.questions.answers == 1).tolist()
    other = replace(dataset, format=replace(dataset.format, program_tokens=("a", "b")))
    answers, programs = Predictor(other)(replace(LOOKING, programs=writing), Looks(), show=False)
    assert answers.tolist() == expected(dataset)
    assert programs is None


@pytest.mark.parametrize(
    ("counts", "images", "shapes"),
    [
        ([10, 10, 9, 10], 64, [(4, 10)]),  # no more images than there are
        ([10] * 9, 4, [(3, 10)] * 3),  # nor holes in a last batch that could be shared
        ([1, 1, 3, 1], 2, [(2, 1)] * 3),  # as people ask: an image more than once, now and then
        ([12, 12], 64, [(4, 10)]),  # ten at most; the rest is another group
    ],
)
def test_batches_are_as_full_as_can_be(
    counts: list[int], images: int, shapes: list[tuple[int, int]]
) -> None:
    network = Looks()
    Predictor(seen(counts), images=images)(LOOKING, network, show=False)
    assert network.shapes == shapes


def test_a_pass_that_was_interrupted_does_no_harm_to_the_next() -> None:
    dataset = seen([3, 10, 4, 7, 10, 10])
    ask, network = Predictor(dataset, images=2), Looks()

    def interrupted(_: nn.Module, batch: Batch) -> Tensor:
        if len(network.shapes) == 1:
            raise KeyboardInterrupt
        return look(network, batch)

    with pytest.raises(KeyboardInterrupt):
        ask(replace(LOOKING, forward=interrupted), network, show=False)
    assert network.training
    assert ask(LOOKING, Looks(), show=False).answers.tolist() == expected(dataset)


def test_networks_are_asked_in_evaluation_mode_and_given_back_as_they_were() -> None:
    looks = Looks()
    network = nn.Sequential(looks, nn.BatchNorm1d(2), nn.Dropout())
    network[1].eval()  # kept as it is while the others learn
    system = replace(LOOKING, forward=lambda network, batch: looks(batch))
    Predictor(seen([2, 2]))(system, network, show=False)
    assert looks.modes == [(False, True)]
    assert [module.training for module in network.modules()] == [True, True, True, False, True]
    # What it computed under inference mode has not spoilt it for learning.
    looks.layer(torch.ones(1, 1)).sum().backward()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_precision(precision: str) -> None:
    network = Looks()
    Predictor(seen([2, 2]), precision=precision)(LOOKING, network, show=False)  # type: ignore[arg-type]
    assert network.dtypes == [getattr(torch, precision)]


def test_it_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = seen([3, 10, 4, 7, 10, 10])
    Predictor(dataset, images=2)(LOOKING, Looks())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("answering 44/44, ")
    Predictor(dataset, images=2)(LOOKING, Looks(), show=False)
    assert capsys.readouterr().err == ""


def test_a_set_without_questions_is_refused() -> None:
    dataset = replace(seen([2, 2]), metadata={"questions": "val.json"})
    with pytest.raises(InputError, match=r"val\.json: it holds no questions"):
        Predictor(replace(dataset, selected=dataset.selected[:0]))


def answers_and_asked() -> tuple[list[int], list[int]]:
    """What this process knows, asked twice, and which questions it has asked the network."""
    dataset, network = seen([3, 10, 4, 0, 7, 10, 10]), Looks()
    dataset = replace(dataset, selected=dataset.selected[5:])
    ask = Predictor(dataset, images=2)
    for _ in range(2):
        found, _ = ask(LOOKING, network, show=False)
    return found.tolist(), network.asked


def test_two_processes_share_the_questions_and_both_know_all_answers() -> None:
    dataset = seen([3, 10, 4, 0, 7, 10, 10])
    dataset = replace(dataset, selected=dataset.selected[5:])
    both = in_processes(answers_and_asked)
    for found, _ in both:
        assert found == expected(dataset)
    asked = np.concatenate([of_one for _, of_one in both])
    assert sorted(asked[asked != UNKNOWN]) == sorted([*dataset.selected] * 2)
    assert all(len(set(of_one)) < len(dataset) for _, of_one in both)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_gives_the_same_answers(resident: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "STEPS_AHEAD", 3)
    dataset = seen([10, 9, 10, 3, 12] * 20)
    with Predictor(dataset, device="cuda", images=4, resident=resident) as ask:
        for _ in range(2):
            found, _ = ask(LOOKING, Looks().cuda(), show=False)
            assert found.tolist() == expected(dataset)
