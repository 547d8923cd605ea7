"""LSTM and CNN+LSTM: as specified, whatever the padding and the grouping; they learn."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.encoders import PAD
from macnet.models.norm import BatchNorm2d
from macnet.models.systems.baselines import (
    CNNLSTMConfig,
    CNNLSTMNetwork,
    LSTMConfig,
    LSTMNetwork,
    lstm_encoder,
)
from system_checks import count_parameters, padded

pytestmark = pytest.mark.usefixtures("narrow_backbone")
SMALL = {"embedding": 12, "units": 10, "hidden": 32}
FEATURES: dict[str, Any] = {"pixels": False, "channels": 6, "height": 5, "width": 4}
PICTURES: dict[str, Any] = {"pixels": True, "channels": 3, "height": 18, "width": 24}
SPEC = DataSpec(9, 4, 0, **FEATURES)


def seeing(image: dict[str, Any], *, vocabulary: int = 9, answers: int = 4) -> CNNLSTMNetwork:
    torch.manual_seed(0)
    config = CNNLSTMConfig(channels=8, **SMALL)
    return CNNLSTMNetwork(config, DataSpec(vocabulary, answers, 0, **image))


def reading(*, vocabulary: int = 9, answers: int = 4) -> LSTMNetwork:
    torch.manual_seed(0)
    return LSTMNetwork(LSTMConfig(**SMALL), DataSpec(vocabulary, answers, 0, **FEATURES))


def images_of(image: dict[str, Any], count: int) -> Tensor:
    torch.manual_seed(1)
    if image["pixels"]:
        shape = (count, image["height"], image["width"], 3)
        return torch.randint(0, 256, shape, dtype=torch.uint8)
    return torch.randn(count, image["channels"], image["height"], image["width"])


# --- As specified ----------------------------------------------------------------------------


def test_parameters_are_as_many_as_published() -> None:
    data_spec = DataSpec(93, 32, 13, pixels=False, channels=1024, height=14, width=14)
    with torch.device("meta"):
        assert count_parameters(LSTMNetwork(LSTMConfig(), data_spec)) == 1_421_596
        network = CNNLSTMNetwork(CNNLSTMConfig(), data_spec)
    assert count_parameters(network) == 27_636_508
    assert network.output.hidden.in_features == 256 + 512 * 7 * 7


questions = st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=7), min_size=1, max_size=5)


@settings(max_examples=30, deadline=None)
@given(questions, st.integers(0, 3))
def test_a_question_is_the_state_at_its_last_word(asked: list[list[int]], extra: int) -> None:
    """Each alone, by the layers of torch; no padding and no neighbour changes it."""
    encoder = lstm_encoder(LSTMConfig(**SMALL), SPEC).double()
    for words, found in zip(asked, encoder(padded(asked, extra)), strict=True):
        states, _ = encoder.lstm(encoder.embedding(torch.tensor([words])))
        torch.testing.assert_close(found, states[0, -1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("image", [FEATURES, PICTURES], ids=["features", "pictures"])
def test_the_network_is_its_layers_for_each_question_of_an_image(image: dict[str, Any]) -> None:
    network = seeing(image).double().eval()
    images, asked = images_of(image, 2), torch.randint(1, 9, (6, 5))
    found = network(images, asked)
    for b, words in enumerate(asked):
        maps = images[[b // 3]]
        if image["pixels"]:
            maps = maps.permute(0, 3, 1, 2).double() / 255 * 2 - 1
            for layer in network.image.maps.cnn or ():
                maps = layer(maps)
        maps = F.max_pool2d(network.image.reduce(maps.double()).relu(), 2)
        whole = torch.cat([network.question(words[None]), maps.reshape(1, -1)], dim=1)
        wanted = network.output.answers(network.output.hidden(whole).relu())
        torch.testing.assert_close(found[[b]], wanted, rtol=1e-10, atol=1e-10)


def test_words_start_normal_and_padding_at_zero() -> None:
    torch.manual_seed(0)
    weight = lstm_encoder(LSTMConfig(), SPEC._replace(vocabulary=93)).embedding.weight.detach()
    assert weight[PAD].eq(0).all()
    assert abs(weight[1:].mean()) < 0.03  # 27,600 numbers: five standard errors
    assert abs(weight[1:].std() - 1) < 0.03


# --- In training -----------------------------------------------------------------------------

NETWORKS: list[Any] = [
    pytest.param(lambda **sizes: (reading(**sizes), images_of(FEATURES, 16)), id="lstm"),
    pytest.param(lambda **sizes: (seeing(FEATURES, **sizes), images_of(FEATURES, 16)), id="cnn"),
    pytest.param(lambda **sizes: (seeing(PICTURES, **sizes), images_of(PICTURES, 16)), id="pixels"),
]


@pytest.mark.parametrize("made", NETWORKS)
def test_gradients_reach_every_parameter(made: Any) -> None:
    network, images = made()
    for module in network.modules():
        if isinstance(module, BatchNorm2d):
            torch.nn.init.ones_(module.weight)  # residual blocks are nothing at first
    network(images, torch.randint(1, 9, (32, 5))).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-5, name
    assert network.question.embedding.weight.grad[PAD].eq(0).all()


@pytest.mark.parametrize("made", NETWORKS)
def test_64_questions_are_learned_by_heart(made: Any) -> None:
    """Four about each image: what sees is asked the same of all, what only reads is not."""
    network, images = made(vocabulary=70)
    asked = torch.arange(1, 5).repeat(16)
    if isinstance(network, LSTMNetwork):
        asked = torch.arange(1, 65)
    asked = torch.stack([torch.full((64,), 65), asked, torch.full((64,), 66)], 1)
    torch.manual_seed(2)
    answers = torch.randint(0, 4, (64,))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(100):
        logits = network(images, asked)
        if logits.argmax(1).equal(answers):
            return
        optimizer.zero_grad()
        F.cross_entropy(logits, answers).backward()
        optimizer.step()
    pytest.fail(f"{(logits.argmax(1) == answers).sum()} of 64 after 100 steps")


@pytest.mark.parametrize("made", NETWORKS)
def test_autocast_stays_close(made: Any) -> None:
    network, images = made()
    asked = torch.randint(1, 9, (32, 5))
    exact = network(images, asked)
    with torch.autocast("cpu", torch.bfloat16):
        found = network(images, asked)
    assert found.dtype == torch.bfloat16
    assert (found - exact).abs().max() < 0.03 * exact.abs().max()
    found.float().square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("made", NETWORKS)
def test_a_copy_has_weights_of_its_own(made: Any) -> None:
    """As the average of the weights has, which is a copy that is evaluated."""
    network, images = made()
    asked = torch.randint(1, 9, (32, 5))
    average, before = copy.deepcopy(network), network(images, asked)
    assert average(images, asked).equal(before)
    with torch.no_grad():
        for parameter in average.question.parameters():
            parameter.mul_(0.5)
    assert network(images, asked).equal(before)
    assert not average(images, asked).isclose(before).all(1).any()


def test_features_may_be_half_as_long_and_lie_channels_last() -> None:
    network = seeing(FEATURES)
    images, asked = images_of(FEATURES, 2).half(), torch.randint(1, 9, (4, 5))
    stored = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    torch.testing.assert_close(network(stored, asked), network(images.float(), asked))


# --- What is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["embedding", "units", "layers", "hidden", "channels"])
@pytest.mark.parametrize("value", [0, 2.0, True, "3"])
def test_a_size_that_is_none_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} is {value!r}; it must be a whole number from 1"):
        CNNLSTMConfig(**{field: value})


def test_other_images_than_it_was_made_for_are_refused() -> None:
    asked = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(
        InputError, match=r"images are \(2, 6, 4, 4\); this .* made for \(images, 6, 5, 4\)"
    ):
        seeing(FEATURES)(torch.zeros(2, 6, 4, 4), asked)
    with pytest.raises(InputError, match=r"of torch.float32; they must be .* of torch.uint8"):
        seeing(PICTURES)(torch.zeros(2, 18, 24, 3), asked)
    with pytest.raises(InputError, match="3 questions cannot be shared out among 2 images"):
        seeing(FEATURES)(images_of(FEATURES, 2), torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(InputError, match=r"questions are \(2,\); they must be \(B, words\)"):
        reading()(images_of(FEATURES, 2), asked[0, :2])


@pytest.mark.parametrize(
    ("image", "smallest"), [({**FEATURES, "height": 1}, 2), ({**PICTURES, "width": 8}, 9)]
)
def test_images_of_which_nothing_would_be_left_are_refused(
    image: dict[str, Any], smallest: int
) -> None:
    with pytest.raises(InputError, match=f"needs at least {smallest}×{smallest}"):
        seeing(image)
    sides = {"height": smallest, "width": smallest}
    network = seeing({**image, **sides})
    assert network.image.size == 8
    asked = torch.ones(2, 3, dtype=torch.int64)
    assert network(images_of({**image, **sides}, 2), asked).shape == (2, 4)
