"""The input unit: questions and images against plain loops; padding, dropout, initialisation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from macnet.errors import InputError
from macnet.models.config import NO_DROPOUT
from macnet.models.encoders import (
    PAD,
    FeatureEncoder,
    PixelBackbone,
    PixelEncoder,
    QuestionEncoder,
    ResidualBlock,
    question_size,
)
from macnet.models.presets import preset
from transcription import (
    assert_close,
    assert_same,
    convolve,
    elu,
    encode,
    encode_image,
    located,
    randomized,
    small_config,
    weights_of,
)

QUESTIONS = torch.tensor([[3, 1, 4, 1, 5], [2, 6, PAD, PAD, PAD], [7, PAD, PAD, PAD, PAD]])
LENGTHS = [5, 2, 1]
M = TypeVar("M", bound=nn.Module)

# --- The question ----------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["paper", "reference"])
@pytest.mark.parametrize("attend", ["contextual words", "word vectors", "nothing"])
@pytest.mark.parametrize("embedding", [5, 6])  # as wide as d or not
def test_the_question_encoder_equals_its_loops(base: str, attend: str, embedding: int) -> None:
    config = small_config(base=base, attend=attend, embedding=embedding)
    encoder = randomized(QuestionEncoder(config, vocabulary=9)).eval()
    q, words, is_pad = encoder(QUESTIONS)
    assert torch.equal(is_pad, QUESTIONS == PAD)
    assert q.shape == (3, question_size(config))
    found, wanted = [], []
    for b, length in enumerate(LENGTHS):
        found += [q[b], *words[b, :length]]
        one_q, one_words = encode(config, encoder, QUESTIONS[b, :length].tolist())
        wanted += [one_q, *one_words]
    assert_same(torch.cat(found), torch.cat(wanted), list(encoder.parameters()))


def test_words_have_dimension_d_where_a_control_attends_to_them() -> None:
    for base in ("paper", "reference"):
        for attend in ("contextual words", "word vectors"):
            config = small_config(base=base, attend=attend)
            words = QuestionEncoder(config, vocabulary=9)(QUESTIONS).words
            assert words.shape == (3, 5, config.d)


def test_an_empty_question_is_one_empty_word() -> None:
    encoder = randomized(QuestionEncoder(small_config(), vocabulary=9))
    q, words, is_pad = encoder(torch.full((1, 4), PAD))
    assert is_pad.tolist() == [[False, True, True, True]]
    assert q.isfinite().all()
    assert words.isfinite().all()
    (q.sum() + words.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_padding_stays_zero_in_training() -> None:
    """Even where a question is empty."""
    encoder = QuestionEncoder(small_config(), vocabulary=9)
    before = encoder.embedding.weight.detach().clone()
    optimizer = torch.optim.Adam(encoder.parameters(), lr=0.1)
    q, words, _ = encoder(torch.cat([QUESTIONS, torch.full((1, 5), PAD)]))
    (q.sum() + words.sum()).backward()
    optimizer.step()
    after = encoder.embedding.weight.detach()
    assert after[PAD].eq(0).all()
    assert after[1:8].ne(before[1:8]).all()  # every word that was asked
    assert after[8].eq(before[8]).all()  # none asked this one


@pytest.mark.parametrize(("base", "low"), [("paper", 0), ("reference", -1)])
def test_word_vectors_start_uniform(base: str, low: float) -> None:
    torch.manual_seed(0)
    weight = QuestionEncoder(small_config(base=base, embedding=300), vocabulary=90).embedding.weight
    assert weight[PAD].eq(0).all()
    assert weight[1:].min() >= low
    assert weight[1:].min() < low + 0.01
    assert 0.99 < weight[1:].max() <= 1
    assert abs(weight[1:].mean() - (low + 1) / 2) < 0.02


def words_mask(hold: bool, *, train: bool = True) -> Tensor:
    """The dropout mask of each word vector: (B, S, embedding)."""
    dropout = replace(NO_DROPOUT, words=0.3, variational_words=hold)
    config = small_config("attention over word vectors", d=64, embedding=64, dropout=dropout)
    encoder = randomized(QuestionEncoder(config, vocabulary=9)).train(train)
    torch.manual_seed(0)
    tokens = torch.randint(1, 9, (16, 5))
    words: Tensor = encoder(tokens).words
    return (words / encoder.embedding.weight[tokens]).detach()


def assert_dropped(mask: Tensor, rate: float) -> None:
    """The mask is 0 or 1/(1 - rate), in about the right shares."""
    gone = mask == 0
    assert_close(mask[~gone], torch.full_like(mask[~gone], 1 / (1 - rate)), "kept")
    assert abs(gone.double().mean() - rate) < 4 * math.sqrt(rate * (1 - rate) / mask.numel())


def test_a_variational_mask_is_the_same_for_all_words_of_a_question() -> None:
    mask = words_mask(hold=True)
    assert_dropped(mask[:, 0], 0.3)
    assert_close(mask, mask[:, :1].expand_as(mask), "words")
    assert len(mask[:, 0].unique(dim=0)) == len(mask)


def test_a_fresh_mask_is_sampled_for_every_word() -> None:
    mask = words_mask(hold=False)
    assert_dropped(mask, 0.3)
    assert len(mask.flatten(0, 1).unique(dim=0)) == mask[..., 0].numel()


@pytest.mark.parametrize("hold", [True, False])
def test_in_evaluation_no_word_is_dropped(hold: bool) -> None:
    mask = words_mask(hold, train=False)
    assert_close(mask, torch.ones_like(mask), "words")


def test_the_question_vector_is_dropped_and_its_words_are_not() -> None:
    config = small_config(d=128, dropout=replace(NO_DROPOUT, question=0.3))
    encoder = randomized(QuestionEncoder(config, vocabulary=9))
    torch.manual_seed(0)
    dropped, exact = encoder(QUESTIONS), encoder.eval()(QUESTIONS)
    assert_dropped(dropped.q / exact.q, 0.3)
    assert_close(dropped.words, exact.words, "words")


# --- The image -------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinates", [False, True])
@pytest.mark.parametrize("size", [(2, 3), (4, 4)])
def test_the_feature_encoder_is_two_convolutions(coordinates: bool, size: tuple[int, int]) -> None:
    config = small_config(coordinates=coordinates, channels=4)
    encoder = randomized(FeatureEncoder(config)).eval()
    maps = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    found, is_pad = encoder(maps)
    assert is_pad is None
    wanted = torch.stack([torch.stack(encode_image(config, weights_of(encoder), m)) for m in maps])
    assert_same(found, wanted, [maps, *encoder.parameters()])


def test_features_are_what_resnet_gives() -> None:
    encoder = FeatureEncoder(small_config(d=8))
    assert encoder(torch.zeros(2, 1024, 14, 14)).elements.shape == (2, 196, 8)


def test_the_input_of_each_convolution_is_dropped() -> None:
    config = small_config(d=64, channels=64, dropout=replace(NO_DROPOUT, image=0.3))
    encoder = randomized(FeatureEncoder(config))
    seen: dict[str, Any] = {}
    for name in ("first", "second"):
        encoder.get_submodule(name).register_forward_hook(
            lambda layer, x, y, name=name: seen.update({name: x[0].clone(), f"after {name}": y})
        )
    torch.manual_seed(0)
    encoder(torch.ones(3, 64, 4, 4, dtype=torch.float64))
    assert_dropped(seen["first"], 0.3)
    assert_dropped(seen["second"] / torch.nn.functional.elu(seen["after first"]), 0.3)
    encoder.eval()(torch.ones(3, 64, 4, 4, dtype=torch.float64))
    assert seen["first"].eq(1).all()


def normed(maps: Tensor, norm: Any) -> Tensor:
    """One image, normalised by the running mean and variance."""
    scale = (norm.running_var + norm.eps).sqrt()
    columns: list[Tensor] = [norm.running_mean, scale, norm.weight, norm.bias]
    mean, scale, weight, bias = (x[:, None, None] for x in columns)
    return (maps - mean) / scale * weight + bias


def with_history(encoder: M) -> M:
    """The encoder with random running statistics, as after some training."""
    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return encoder


def convolved(maps: Tensor, layer: Any, stride: int = 1) -> Tensor:
    """One image through a convolution and its batch normalisation."""
    convolution, norm = layer
    no_bias = torch.zeros(len(convolution.weight), dtype=maps.dtype)
    return normed(convolve(maps, convolution.weight, no_bias, stride=stride), norm)


def elus(maps: Tensor) -> Tensor:
    return elu(maps.flatten()).view_as(maps)


def halved_three_times(maps: Tensor, backbone: PixelBackbone, counts: Sequence[int]) -> Tensor:
    """By strided convolutions with so many residual blocks behind them."""
    layers: Iterator[Any] = iter(backbone)
    for blocks in counts:
        maps = convolved(maps, next(layers), stride=2).clamp(min=0)
        next(layers)
        for _ in range(blocks):
            block = next(layers)
            inside = convolved(maps, block.first).clamp(min=0)
            maps = (maps + convolved(inside, block.second)).clamp(min=0)
    assert next(layers, None) is None
    return maps


WIDTHS, BLOCKS = (2, 3, 4), (0, 1, 2)


@torch.no_grad()
@pytest.mark.parametrize("coordinates", [False, True])
def test_behind_the_backbone_two_convolutions_follow(coordinates: bool) -> None:
    config = small_config(coordinates=coordinates, widths=WIDTHS, blocks=BLOCKS)
    encoder = with_history(randomized(PixelEncoder(config))).eval()
    image = torch.randint(0, 256, (16, 24, 3), dtype=torch.uint8)
    pixels = image.permute(2, 0, 1).double() / 255 * 2 - 1  # from −1 to 1
    maps = halved_three_times(pixels, encoder.features, BLOCKS)
    maps = located(maps) if coordinates else maps
    for layer in (encoder.trunk.first, encoder.trunk.second):
        maps = elus(convolved(maps, layer))
    wanted = maps.flatten(1).T
    assert_close(encoder(image[None]).elements[0], wanted, "K")


@torch.no_grad()
def test_the_backbone_can_be_told_where_pixels_are() -> None:
    backbone = with_history(randomized(PixelBackbone(WIDTHS, BLOCKS, coordinates=True))).eval()
    image = torch.randint(0, 256, (16, 24, 3), dtype=torch.uint8)
    pixels = image.permute(2, 0, 1).double() / 255 * 2 - 1
    wanted = halved_three_times(located(pixels), backbone, BLOCKS)
    assert_close(backbone(image[None])[0], wanted, "maps")


def test_a_residual_block_is_the_identity_at_initialisation() -> None:
    maps = torch.randn(2, 5, 4, 4).clamp(min=0)
    assert ResidualBlock(5)(maps).equal(maps)


@pytest.mark.parametrize(("pixels", "side"), [(112, 14), (128, 16)])
def test_a_knowledge_base_is_an_eighth_of_its_image(pixels: int, side: int) -> None:
    images = torch.zeros(2, pixels, pixels, 3, dtype=torch.uint8)
    assert PixelEncoder(small_config(d=8))(images).elements.shape == (2, side**2, 8)


def test_inputs_of_other_shapes_are_errors() -> None:
    with pytest.raises(
        InputError, match=r"features are \(2, 512, 14, 14\); they must be \(images, 1024"
    ):
        FeatureEncoder(preset("paper", d=8))(torch.zeros(2, 512, 14, 14))
    with pytest.raises(
        InputError, match=r"images are \(2, 3, 64, 64\) of torch.float32; they must be"
    ):
        PixelEncoder(preset("paper", d=8))(torch.zeros(2, 3, 64, 64))


def test_padding_inside_a_question_does_not_shorten_it() -> None:
    encoder = QuestionEncoder(preset("paper", d=8, dropout=NO_DROPOUT), vocabulary=5)
    assert encoder(torch.tensor([[1, 0, 2, 0]])).is_pad.tolist() == [[False, False, False, True]]


def test_contextual_words_are_not_dropped() -> None:
    dropout = replace(NO_DROPOUT, question=0.5, image=0.5, control=0.5, memory=0.5, output=0.5)
    encoder = QuestionEncoder(small_config(dropout=dropout), vocabulary=9)
    dropped, kept = encoder.train()(QUESTIONS), encoder.eval()(QUESTIONS)
    assert torch.equal(dropped.words, kept.words)
    assert not torch.equal(dropped.q, kept.q)
