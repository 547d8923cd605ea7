"""FiLM equals literal loops, in value, gradient and running statistics, and learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.registry import find_preset
from macnet.models.systems.film import FiLMConfig, FiLMNetwork
from macnet.models.systems.inputs import StridedCNN
from system_checks import (
    QUESTIONS,
    assert_answers_stand_alone,
    assert_learns_64_questions,
    assert_refuses_bad_inputs,
    assert_same_statistics,
    assert_same_with_gradients,
    count_parameters,
    data_spec,
    images_of,
    norms_of,
    padded,
    strided_convolutions,
    with_random_state,
)
from system_loops import Convolution, FiLMBlock, Layer, Norm, Recurrent, film, scaled

pytestmark = pytest.mark.usefixtures("narrow_backbone")
SMALL = FiLMConfig(embedding=5, units=6, channels=4, blocks=3, pooled=7, hidden=8)
OWN = replace(SMALL, backbone="strided")
FEATURES, PIXELS = data_spec(False, 2, 3), data_spec(True, 10, 17)
OWN_PIXELS = data_spec(True, 32, 48)
INPUTS = pytest.mark.parametrize(
    ("config", "sizes"),
    [(SMALL, FEATURES), (SMALL, PIXELS), (OWN, OWN_PIXELS)],
    ids=["features", "pixels", "own-cnn"],
)
MODES = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def network_for(config: FiLMConfig, sizes: DataSpec, *, training: bool = False) -> FiLMNetwork:
    torch.manual_seed(0)
    return with_random_state(FiLMNetwork(config, sizes), training=training)


def loops(network: FiLMNetwork, images: Tensor, norms: dict[str, Norm], *, repeat: bool) -> Tensor:
    seen, generator, classifier = network.image, network.generator, network.classifier
    if isinstance(seen.cnn, StridedCNN):
        maps = scaled(images)
        stem = strided_convolutions(seen.cnn, norms, "image.cnn")
    else:  # MAC's backbone has tests of its own
        maps = list(images if seen.cnn is None else seen.cnn(images))
        assert network.stem is not None
        layer = Layer.of(network.stem.convolution)
        stem = [Convolution(layer, norms["stem.norm"], stride=1, padding=1)]
    blocks = [
        FiLMBlock(Layer.of(part.project), Layer.of(part.convolution), norms[f"blocks.{i}.norm"])
        for i, part in enumerate(network.blocks)
    ]
    project = Layer.of(classifier.project)
    return film(
        maps,
        QUESTIONS,
        embedding=generator.embedding.weight,
        recurrent=Recurrent.of(generator.gru)[0],
        generator=Layer.of(generator.project),
        stem=stem,
        stem_coordinates=network.stem is not None,
        blocks=blocks,
        pool=Convolution(project, norms["classifier.norm"], stride=1, padding=0),
        hidden=Layer.of(classifier.hidden),
        hidden_norm=norms["classifier.hidden_norm"],
        answers=Layer.of(classifier.answers),
        training=network.training,
        repeat=repeat,
    )


# --- As specified ----------------------------------------------------------------------------


@INPUTS
@MODES
@pytest.mark.parametrize("literal", [False, True], ids=["forward", "literal"])
def test_network_equals_loops(
    config: FiLMConfig, sizes: DataSpec, training: bool, literal: bool
) -> None:
    """Statistics are over a copy of the maps for each question, or over one for each image.

    That changes no mean and no variance of a batch, but the running variance is that of a sample,
    larger by n/(n − 1).
    """
    network, images = network_for(config, sizes, training=training), images_of(sizes)
    norms = norms_of(network)
    found = (network.literal if literal else network)(images, padded(QUESTIONS, extra=literal))
    assert_same_with_gradients(found, loops(network, images, norms, repeat=literal), network)
    assert_same_statistics(network, norms)


@INPUTS
def test_answers_depend_on_neither_padding_nor_neighbors(
    config: FiLMConfig, sizes: DataSpec
) -> None:
    assert_answers_stand_alone(network_for(config, sizes), images_of(sizes))


def test_number_of_parameters_is_as_published() -> None:
    sizes = DataSpec(93, 32, 13, pixels=False, channels=1024, height=14, width=14)
    with torch.device("meta"):
        network = FiLMNetwork(FiLMConfig(), sizes)
        fewer = FiLMNetwork(FiLMConfig(), sizes._replace(answers=28))
    assert count_parameters(network) == 59_495_752
    assert count_parameters(fewer) == 59_495_752 - 4_100


def test_published_cnn_makes_14_by_14_cells() -> None:
    config = find_preset("film-pixels").config
    network = FiLMNetwork(replace(config, units=8), DataSpec(93, 28, 13, True, 3, 224, 224))
    network.image.requires_grad_(False)
    assert network.image(torch.zeros(1, 224, 224, 3, dtype=torch.uint8)).shape == (1, 128, 14, 14)


def test_a_question_that_says_nothing_leaves_maps_as_normalized() -> None:
    """γ is 1 plus what is generated."""
    network = network_for(SMALL, FEATURES)
    torch.nn.init.zeros_(network.generator.project.weight)
    torch.nn.init.zeros_(network.generator.project.bias)
    for gamma, beta in network.generator(padded(QUESTIONS)):
        assert gamma.eq(1).all()
        assert beta.eq(0).all()


# --- In training -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backbone", "sizes"),
    [("residual", FEATURES), ("strided", OWN_PIXELS)],
    ids=["features", "own-cnn"],
)
def test_64_questions_are_learned(backbone: Any, sizes: DataSpec) -> None:
    torch.manual_seed(0)
    config = FiLMConfig(
        backbone=backbone, embedding=12, units=16, channels=8, blocks=2, pooled=16, hidden=32
    )
    assert_learns_64_questions(FiLMNetwork(config, sizes), images_of(sizes, 16))


def test_layers_start_as_published() -> None:
    """Kaiming-uniform weights: up to √(6 / inputs), whose variance is 2 / inputs."""
    torch.manual_seed(0)
    config = replace(FiLMConfig(), units=64)
    network = FiLMNetwork(config, FEATURES)
    for layer in (
        network.generator.project,
        network.blocks[3].convolution,
        network.classifier.hidden,
    ):
        weight = layer.weight.detach()
        inputs = weight[0].numel()
        assert weight.abs().max() <= (6 / inputs) ** 0.5
        assert weight.var() == pytest.approx(2 / inputs, rel=0.05)


# --- What is refused -------------------------------------------------------------------------


@INPUTS
def test_bad_inputs_are_refused(config: FiLMConfig, sizes: DataSpec) -> None:
    assert_refuses_bad_inputs(network_for(config, sizes), sizes)


def test_features_are_refused_by_the_preset_for_pixels() -> None:
    with pytest.raises(InputError, match=r"the data are features, but this preset has a CNN"):
        FiLMNetwork(OWN, FEATURES)


def test_images_of_which_nothing_would_be_left_are_refused() -> None:
    """Four convolutions of 4×4 with stride 2 need 16×16 pixels."""
    with pytest.raises(InputError, match=r"images are 15×16; .* needs at least 16×16"):
        FiLMNetwork(OWN, data_spec(True, 15, 16))
    network = network_for(OWN, data_spec(True, 16, 16))
    assert network(images_of(data_spec(True, 16, 16)), padded(QUESTIONS)).shape == (6, 4)


@pytest.mark.parametrize("field", sorted({*vars(SMALL)} - {"backbone"}))
@pytest.mark.parametrize("value", [0, 2.0, True, "3"])
def test_a_bad_size_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} is {value!r}; it must be a whole number from 1"):
        FiLMConfig(**{field: value})


@pytest.mark.parametrize("value", [0, "resnet", None])
def test_an_unknown_backbone_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"backbone is .*residual, strided"):
        FiLMConfig(backbone=value)
