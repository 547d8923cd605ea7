"""SA+MLP equals literal loops, in value and gradient, and learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.systems.stacked_attention import (
    StackedAttentionConfig,
    StackedAttentionNetwork,
)
from system_checks import (
    QUESTIONS,
    assert_answers_stand_alone,
    assert_learns_64_questions,
    assert_refuses_bad_inputs,
    assert_same_with_gradients,
    count_parameters,
    data_spec,
    images_of,
    padded,
    running_statistics,
    with_random_state,
)
from system_loops import Glimpse, Layer, Recurrent, stacked_attention
from transcription import assert_close

pytestmark = pytest.mark.usefixtures("narrow_backbone")
SMALL = StackedAttentionConfig(
    embedding=5, units=6, layers=2, hidden=7, attention_units=8, glimpses=2
)
INPUTS = pytest.mark.parametrize(
    "sizes", [data_spec(False, 2, 3), data_spec(True, 10, 17)], ids=["features", "pixels"]
)
MODES = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def network_for(sizes: DataSpec, *, training: bool = False) -> StackedAttentionNetwork:
    torch.manual_seed(0)
    return with_random_state(StackedAttentionNetwork(SMALL, sizes), training=training)


def loops(network: StackedAttentionNetwork, images: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
    # MAC's backbone has tests of its own.
    maps = images if network.image.cnn is None else network.image.cnn(images)
    return stacked_attention(
        list(maps),
        QUESTIONS,
        embedding=network.question.embedding.weight,
        lstms=Recurrent.of(network.question.lstm),
        reduce=Layer.of(network.reduce),
        glimpses=[
            Glimpse(Layer.of(part.image), Layer.of(part.query), Layer.of(part.score))
            for part in network.attention
        ],
        output=[Layer.of(network.output[0]), Layer.of(network.output[2])],  # type: ignore[arg-type]
    )


# --- As specified ----------------------------------------------------------------------------


@INPUTS
@MODES
def test_network_equals_loops(sizes: DataSpec, training: bool) -> None:
    network, images = network_for(sizes, training=training), images_of(sizes)
    wanted, _ = loops(network, images)
    assert_same_with_gradients(network(images, padded(QUESTIONS)), wanted, network)


@INPUTS
@MODES
def test_literal_equals_forward(sizes: DataSpec, training: bool) -> None:
    network, other = (network_for(sizes, training=training) for _ in range(2))
    images, questions = images_of(sizes), padded(QUESTIONS, extra=2)
    literal = network.literal(images, questions)
    assert_same_with_gradients(literal, network(images, questions), network)
    other(images, questions)
    other(images, questions)
    for name, wanted in running_statistics(other).items():
        assert_close(running_statistics(network)[name], wanted, name)


@INPUTS
def test_trace_has_the_attention_of_each_glimpse(sizes: DataSpec) -> None:
    network, images = network_for(sizes), images_of(sizes)
    logits, steps = network.trace(images, padded(QUESTIONS))
    _, wanted = loops(network, images)
    assert logits.equal(network(images, padded(QUESTIONS)))
    assert len(steps) == SMALL.glimpses
    for k, step in enumerate(steps):
        assert step.knowledge.shape == (6, 6)  # 2×3 cells, of features as of pixels
        assert_close(step.knowledge.sum(1), torch.ones(6).double(), f"glimpse {k}")
        assert_close(step.knowledge, torch.stack([looked[k] for looked in wanted]), f"glimpse {k}")
        assert step.words is None


@INPUTS
def test_answers_depend_on_neither_padding_nor_neighbors(sizes: DataSpec) -> None:
    assert_answers_stand_alone(network_for(sizes), images_of(sizes))


def test_number_of_parameters_is_as_published() -> None:
    sizes = DataSpec(93, 32, 13, pixels=False, channels=1024, height=14, width=14)
    with torch.device("meta"):
        network = StackedAttentionNetwork(StackedAttentionConfig(), sizes)
        fewer = StackedAttentionNetwork(StackedAttentionConfig(), sizes._replace(answers=28))
    assert count_parameters(network) == 2_211_358
    assert count_parameters(fewer) == 2_211_358 - 4_100


# --- In training -----------------------------------------------------------------------------


def test_64_questions_are_learned() -> None:
    torch.manual_seed(0)
    sizes = data_spec(False, 2, 3)
    config = StackedAttentionConfig(embedding=12, units=16, layers=1, hidden=32, attention_units=16)
    assert_learns_64_questions(StackedAttentionNetwork(config, sizes), images_of(sizes, 16))


# --- What is refused -------------------------------------------------------------------------


@INPUTS
def test_bad_inputs_are_refused(sizes: DataSpec) -> None:
    assert_refuses_bad_inputs(network_for(sizes), sizes)


@pytest.mark.parametrize("field", vars(SMALL))
@pytest.mark.parametrize("value", [0, 2.0, True, "3"])
def test_a_bad_size_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} is {value!r}; it must be a whole number from 1"):
        StackedAttentionConfig(**{field: value})
