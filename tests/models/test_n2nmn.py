"""N2NMN equals its modules as published, one question at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layout_checks import sampled, stack_of
from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.systems.layouts import EOS, INPUTS, TOKENS
from macnet.models.systems.n2nmn import N2NMNConfig, N2NMNNetwork, trace_layout
from macnet.models.systems.neural_modules import Executor
from n2nmn_loops import run_layout, write_alone
from system_checks import (
    QUESTIONS,
    assert_answers_stand_alone,
    count_parameters,
    data_spec,
    images_of,
    padded,
    with_random_state,
)
from transcription import assert_close, assert_same, randomized

pytestmark = pytest.mark.usefixtures("narrow_backbone")
SMALL = N2NMNConfig(embedding=5, units=6, layers=2, map_dim=7, training_steps=6, steps=9)
INPUT_KINDS = pytest.mark.parametrize(
    "sizes", [data_spec(False, 2, 3), data_spec(True, 10, 17)], ids=["features", "pixels"]
)
TWO_BRANCHES = [
    ["Find", "Transform", "Filter", "Scene", "And", "Find", "FindSameProperty", "EqualNum"],
    ["Find", "Find", "Transform", "Or", "Filter", "Describe"],
    ["Scene", "Find", "Find", "And", "SameProperty"],
    ["Find", "Find", "FindSameProperty", "Find", "Or", "MoreNum"],
]


def network_for(sizes: DataSpec) -> N2NMNNetwork:
    torch.manual_seed(0)
    return with_random_state(N2NMNNetwork(SMALL, sizes), training=False)


# --- the modules as published ----------------------------------------------------------------


def executed(steps: int) -> tuple[Executor, Tensor, Tensor, Tensor]:
    """Modules, two images, four texts and layouts about each."""
    modules = randomized(Executor(channels=4, cells=12, text=5, d=7, answers=3))
    chance = torch.Generator().manual_seed(1)
    images = torch.randn(2, 4, 3, 4, generator=chance, dtype=torch.float64, requires_grad=True)
    text = torch.randn(8, steps, 5, generator=chance, dtype=torch.float64, requires_grad=True)
    layouts = sampled(8, steps, seed=steps)
    return modules, images, text, layouts


@pytest.mark.parametrize("layouts", ["two branches", 2, 5, 8, 12], ids=str)
def test_layouts_are_executed_as_published(layouts: int | str) -> None:
    if isinstance(layouts, int):
        modules, images, text, given = executed(layouts)
    else:
        modules, images, text, given = executed(11)
        rows = [[TOKENS.index(name) for name in names] for names in TWO_BRANCHES * 2]
        given = torch.tensor([row + [EOS] * (11 - len(row)) for row in rows])
    found, maps = modules(images, text, given)
    pairs = zip(text, given.tolist(), strict=True)
    wanted = [run_layout(modules, images[b // 4], t, row) for b, (t, row) in enumerate(pairs)]
    assert maps.shape == (8, given.shape[1] - 1, 12)
    assert_same(found, torch.stack(wanted), [images, text, *modules.parameters()])


def test_every_module_has_been_compared() -> None:
    tokens = torch.cat([executed(steps)[3].flatten() for steps in (2, 5, 8, 12)])
    names = {TOKENS[token] for token in tokens.tolist()} | {n for row in TWO_BRANCHES for n in row}
    assert names == {*TOKENS}


def test_layouts_are_executed_in_low_precision() -> None:
    modules, images, text, layouts = executed(8)
    modules, images, text = modules.float(), images.detach().float(), text.detach().float()
    wanted, wanted_maps = modules(images, text, layouts)
    with torch.autocast("cpu", torch.bfloat16):
        found, maps = modules(images.bfloat16(), text.bfloat16(), layouts)
    assert maps.dtype == torch.float32
    assert (found.float() - wanted).norm() < 0.03 * wanted.norm()
    assert (maps - wanted_maps).norm() < 0.02 * wanted_maps.norm()


# --- the layout generator as published -------------------------------------------------------


def test_layouts_are_written_as_published() -> None:
    network, layouts = network_for(data_spec(False, 2, 3)), sampled(6, 6)
    tokens = padded(QUESTIONS, extra=1)
    writing = network.generator.follow(network.generator.read(tokens), layouts, None)
    alone = [
        write_alone(network, words, layout)
        for words, layout in zip(QUESTIONS, layouts.tolist(), strict=True)
    ]
    wanted = torch.stack([logits for logits, _ in alone])
    assert_same(writing.logits, wanted, [*network.generator.parameters()])
    for found, (_, attention) in zip(writing.words, alone, strict=True):
        assert_close(found[:, : attention.shape[1]], attention, "attention")
        assert not found[:, attention.shape[1] :].any()


@pytest.mark.parametrize("sample", [False, True])
def test_what_is_written_can_be_executed(sample: bool) -> None:
    network = network_for(data_spec(False, 2, 3))
    for steps in (2, 3, 7):
        nn.init.normal_(network.generator.output.weight, std=5)  # all sorts of preferences
        question = network.generator.read(padded(QUESTIONS * 20))
        writing = network.generator.write(question, steps, sample=sample)
        for layout in writing.layouts.tolist():
            assert len(stack_of(layout)) == steps
        again = network.generator.follow(question, writing.layouts, writing.logits > -torch.inf)
        finite = writing.logits > -torch.inf
        assert_close(again.logits[finite], writing.logits[finite], "logits")
        assert_close(again.words, writing.words, "attention")
        if not sample:
            assert again.logits.argmax(-1).equal(writing.layouts)


# --- the network -----------------------------------------------------------------------------


@INPUT_KINDS
def test_answers_depend_on_neither_padding_nor_neighbors(sizes: DataSpec) -> None:
    assert_answers_stand_alone(network_for(sizes), images_of(sizes))


def test_answers_in_low_precision() -> None:
    sizes = data_spec(False, 2, 3)
    network, images = network_for(sizes).float(), images_of(sizes).half()
    exact = network.answer(images, padded(QUESTIONS))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = network.answer(images, padded(QUESTIONS))
    for layout in found.layouts.tolist():
        stack_of(layout)
    # Of two tokens that are almost as probable, rounding may choose the other.
    same = (found.layouts == exact.layouts).all(1)
    assert same.sum() >= 4
    assert (found.logits - exact.logits)[same].norm() < 0.02 * exact.logits[same].norm()


def test_number_of_parameters_is_as_published() -> None:
    sizes = DataSpec(82, 28, 13, pixels=False, channels=512, height=10, width=15)
    with torch.device("meta"):
        network = N2NMNNetwork(N2NMNConfig(), sizes)

    def linear(inputs: int, outputs: int) -> int:
        return (inputs + 1) * outputs

    lstm = linear(300 + 512, 4 * 512) + linear(512 + 512, 4 * 512)
    attention = linear(512, 512) + 512 * 512 + 512
    generator = 82 * 300 + lstm + (15 + 1) * 300 + lstm + attention + linear(1024, 15)
    image, text, score, answers = linear(512, 250), linear(300, 250), linear(250, 1), 28
    find, same = image + text + score, 2 * image + text + score
    transform = linear(25, 250) + text + score
    numbers = linear(152, answers) + 3 * linear(304, answers)
    describe = text + image + linear(250, answers)
    same_property = text + 2 * image + linear(250, answers)
    modules = find + same + transform + linear(3, answers) + numbers + describe + same_property
    assert count_parameters(network) == generator + modules == 9_295_610


def test_weights_start_as_published() -> None:
    network = N2NMNNetwork(SMALL, data_spec(False, 2, 3))
    for name, weight in network.named_parameters():
        is_lstm = "encoder" in name or "decoder" in name
        if name.endswith("bias") and not is_lstm:
            assert not weight.any(), name
        elif name.endswith("bias"):
            gates = weight.view(4, -1)
            assert (gates[1] == 1).all()
            assert not gates[[0, 2, 3]].any()
        elif not is_lstm and name != "generator.score.weight":
            fans = nn.init._calculate_fan_in_and_fan_out(weight)
            assert 0 < weight.abs().max() <= (6 / sum(fans)) ** 0.5, name
    assert network.baseline.mean == 0.5


def test_a_trace_tells_what_was_executed() -> None:
    sizes = data_spec(False, 2, 3)
    network, images = network_for(sizes), images_of(sizes)
    for b, words in enumerate(QUESTIONS):
        image, question = images[b // 3][None], torch.tensor([words])
        logits, modules = trace_layout(network, image, question)
        answers = network.answer(image, question)
        assert logits.equal(answers.logits)
        layout = [TOKENS.index(module.name) for module in modules]
        assert layout == [token for token in answers.layouts[0].tolist() if token != EOS]
        assert [module.inputs for module in modules] == stack_of(layout)
        for module in modules:
            assert module.words is not None
            assert module.words.shape == (len(words),)
            assert (module.map is None) == (module is modules[-1])
            for attention in (module.words, module.map):
                if attention is not None:
                    assert_close(attention.sum(), torch.tensor(1.0).double(), module.name)


# --- what is refused -------------------------------------------------------------------------


@INPUT_KINDS
def test_bad_inputs_are_refused(sizes: DataSpec) -> None:
    network, images, questions = network_for(sizes), images_of(sizes), padded(QUESTIONS)
    for bad_images, bad_questions, message in [
        (images[:, :, 1:], questions, r"images are .*; this network was made for \(images, "),
        (images, questions[:5], "5 questions cannot be shared out among 2 images"),
        (images, questions[0], r"questions are \(5,\); they must be \(B, words\)"),
    ]:
        with pytest.raises(InputError, match=message):
            network(bad_images, bad_questions)


@pytest.mark.parametrize(
    "field", [name for name, value in vars(SMALL).items() if type(value) is int]
)
@pytest.mark.parametrize("value", [0, 2.0, True, "3"])
def test_a_bad_size_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{field} is {value!r}; it must be a whole number from 1"):
        N2NMNConfig(**{field: value})


def test_other_bad_fields_are_refused() -> None:
    with pytest.raises(InputError, match="steps is 1; it must be at least 2, as long as"):
        N2NMNConfig(steps=1)
    for value in (-0.1, 2, float("nan"), "1", True):
        with pytest.raises(InputError, match=r"entropy is .*; it must be a number from 0 to 1"):
            N2NMNConfig(entropy=value)  # type: ignore[arg-type]


def test_tokens_take_as_many_maps_as_they_are_given() -> None:
    assert sum(INPUTS) == 6 + 6 * 2
