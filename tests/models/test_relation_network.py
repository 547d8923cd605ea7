"""RN equals literal loops over all pairs, in value and gradient, and learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.registry import find_preset
from macnet.models.systems.inputs import StridedCNN
from macnet.models.systems.relation_network import RelationNetwork, RelationNetworkConfig
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
from system_loops import Layer, Norm, Recurrent, relation_network, scaled
from transcription import assert_close

pytestmark = pytest.mark.usefixtures("narrow_backbone")
SMALL = RelationNetworkConfig(object_channels=4, embedding=5, units=6, g=7, g_layers=3, f=8)
OWN = replace(SMALL, backbone="strided", pooling="sum")
FEATURES, PIXELS, OWN_PIXELS = (
    data_spec(False, 3, 5),
    data_spec(True, 18, 34),
    data_spec(True, 20, 40),
)
INPUTS = pytest.mark.parametrize(
    ("config", "sizes"),
    [(SMALL, FEATURES), (SMALL, PIXELS), (OWN, OWN_PIXELS)],
    ids=["features", "pixels", "own-cnn"],
)
MODES = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def network_for(
    config: RelationNetworkConfig, sizes: DataSpec, *, training: bool = False
) -> RelationNetwork:
    torch.manual_seed(0)
    return with_random_state(RelationNetwork(config, sizes), training=training)


def loops(network: RelationNetwork, images: Tensor, norms: dict[str, Norm]) -> Tensor:
    seen = network.image.maps
    if isinstance(seen.cnn, StridedCNN):
        maps = scaled(images)
        convolutions = strided_convolutions(seen.cnn, norms, "image.maps.cnn")
    else:  # MAC's backbone has tests of its own
        maps = list(images if seen.cnn is None else seen.cnn(images))
        convolutions = strided_convolutions(network.image.reduce, norms, "image.reduce")  # type: ignore[arg-type]
    kept = None
    if network.training:
        torch.manual_seed(5)
        kept = F.dropout(torch.ones(len(QUESTIONS), SMALL.f, dtype=torch.float64), 0.5)
    return relation_network(
        maps,
        QUESTIONS,
        convolutions=convolutions,
        embedding=network.question.embedding.weight,
        recurrent=Recurrent.of(network.question.lstm)[0],
        g=[Layer.of(layer) for layer in network.g.layers],
        f=[Layer.of(network.f[k]) for k in (0, 2, 5)],  # type: ignore[arg-type]
        training=network.training,
        mean=network.config.pooling == "mean",
        kept=kept,
    )


# --- As specified ----------------------------------------------------------------------------


@INPUTS
@MODES
@pytest.mark.parametrize("literal", [False, True], ids=["forward", "literal"])
def test_network_equals_loops(
    config: RelationNetworkConfig, sizes: DataSpec, training: bool, literal: bool
) -> None:
    """Half of f's second layer is dropped in training, by the same mask."""
    network, images = network_for(config, sizes, training=training), images_of(sizes)
    norms = norms_of(network)
    torch.manual_seed(5)
    found = (network.literal if literal else network)(images, padded(QUESTIONS, extra=literal))
    assert_same_with_gradients(found, loops(network, images, norms), network)
    assert_same_statistics(network, norms)


@INPUTS
def test_answers_depend_on_neither_padding_nor_neighbors(
    config: RelationNetworkConfig, sizes: DataSpec
) -> None:
    assert_answers_stand_alone(network_for(config, sizes), images_of(sizes))


def test_published_objects_and_parameters() -> None:
    """64 objects of 26 numbers, and 0.48M parameters."""
    preset, sizes = find_preset("rn-pixels"), DataSpec(82, 28, 13, True, 3, 128, 128)
    network = preset.system.build(preset.config, sizes)
    assert isinstance(network, RelationNetwork)
    assert network.image(images_of(sizes)).shape == (2, 64, 26)
    cnn = (3 * 9 + 1 + 2) * 24 + 3 * (24 * 9 + 1 + 2) * 24  # with a scale and a shift of each map
    words = 82 * 32 + 4 * 128 * (32 + 128 + 2)
    g = (26 + 26 + 128 + 1) * 256 + 3 * (256 + 1) * 256
    f = 2 * (256 + 1) * 256 + (256 + 1) * 28
    assert count_parameters(network) == cnn + words + g + f == 484_548


def test_sum_and_mean_start_as_the_same_network() -> None:
    """They differ in the scale of f's first layer only."""
    images, questions = images_of(FEATURES), padded(QUESTIONS)
    one, other = (network_for_pooling(pooling) for pooling in ("sum", "mean"))
    torch.testing.assert_close(one(images, questions), other(images, questions), rtol=1e-5, atol=0)
    narrow, wide = (network.f.get_parameter("0.weight") for network in (one, other))
    torch.testing.assert_close(wide, 6**2 * narrow)


def network_for_pooling(pooling: Any) -> RelationNetwork:
    torch.manual_seed(0)
    return RelationNetwork(replace(SMALL, pooling=pooling), FEATURES).double().eval()


def test_every_pair_counts_once() -> None:
    """Without a question, g of two cells that are swapped has the same sum."""
    network = network_for(SMALL, FEATURES)
    objects = network.image(images_of(FEATURES))
    q = torch.zeros(2, SMALL.units, dtype=torch.float64)
    turned = network.g(objects.flip(1), q)
    assert_close(turned, network.g(objects, q), "sum over the cells in another order")
    one = network.g(objects[:, :1], q)
    assert_close(network.g(objects[:, :1].expand(-1, 5, -1), q), 25 * one, "25 equal pairs")


# --- In training -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backbone", "sizes"),
    [("residual", FEATURES), ("strided", OWN_PIXELS)],
    ids=["features", "own-cnn"],
)
def test_64_questions_are_learned(backbone: Any, sizes: DataSpec) -> None:
    torch.manual_seed(0)
    config = RelationNetworkConfig(
        backbone=backbone,
        object_channels=8,
        embedding=12,
        units=16,
        g=32,
        g_layers=2,
        f=32,
        dropout=0,
    )
    assert_learns_64_questions(RelationNetwork(config, sizes), images_of(sizes, 16))


# --- What is refused -------------------------------------------------------------------------


@INPUTS
def test_bad_inputs_are_refused(config: RelationNetworkConfig, sizes: DataSpec) -> None:
    assert_refuses_bad_inputs(network_for(config, sizes), sizes)


def test_features_are_refused_by_the_preset_for_pixels() -> None:
    with pytest.raises(InputError, match=r"the data are features, but this preset has a CNN"):
        RelationNetwork(OWN, FEATURES)


@pytest.mark.parametrize("field", sorted({*vars(SMALL)} - {"backbone", "dropout", "pooling"}))
@pytest.mark.parametrize("value", [0, 2.0, True, "3"])
def test_a_bad_size_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} is {value!r}; it must be a whole number from 1"):
        RelationNetworkConfig(**{field: value})


@pytest.mark.parametrize("value", [1, -0.1, float("nan"), True, "0.5", None])
def test_a_bad_dropout_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=f"dropout is {value!r}; it must be"):
        RelationNetworkConfig(dropout=value)


@pytest.mark.parametrize("value", [0, "resnet", None])
def test_an_unknown_backbone_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"backbone is .*residual, strided"):
        RelationNetworkConfig(backbone=value)
