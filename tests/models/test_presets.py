"""The networks that have a name: what they are, their size, that they learn; what is refused."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from macnet.configuration import with_changes
from macnet.errors import InputError
from macnet.models.config import NO_DROPOUT, Dropout, MACConfig
from macnet.models.encoders import PAD
from macnet.models.mac import MACNetwork
from macnet.models.presets import ABLATIONS, PRESETS, ablation, find_row, preset
from transcription import assert_close, assert_same, maps, network, small_config

QUESTIONS = torch.tensor([[3, 1, 4, 1], [5, 2, PAD, PAD], [6, PAD, PAD, PAD], [8, 7, 3, PAD]])
ANSWERS = torch.tensor([0, 3, 2, 1])

# The small one has the equations of `pixels`.
bases = pytest.mark.parametrize("base", [name for name in PRESETS if name != "small"])
rows = pytest.mark.parametrize("row", ABLATIONS)


# --- What they are ---------------------------------------------------------------------------

PAPER = Dropout(
    words=0.15,
    variational_words=True,
    question=0.15,
    image=0.15,
    control=0.15,
    memory=0.15,
    memory_again=0,
    knowledge=0,
    interaction=0,
    output=0.15,
)
REFERENCE = Dropout(
    words=0.15,
    variational_words=False,
    question=0.08,
    image=0.18,
    control=0,
    memory=0.15,
    memory_again=0.15,
    knowledge=0.15,
    interaction=0.15,
    output=0.15,
)


@pytest.mark.parametrize(
    ("name", "dropout"),
    [("paper", PAPER), ("reference", REFERENCE), ("reference-recurrent", REFERENCE)],
)
def test_dropout_is_as_published(name: str, dropout: Dropout) -> None:
    assert asdict(preset(name).dropout) == asdict(dropout)


def test_presets_are_what_the_page_on_the_model_says() -> None:
    forms = {
        name: (c.control, c.read, c.optional_steps, c.output, c.lstm, c.c0)
        for name, c in PRESETS.items()
    }
    assert forms == {
        "paper": ("paper", "paper", "paper", "paper", "d", "learned"),
        "pixels": ("paper", "paper", "paper", "paper", "d/2", "learned"),
        "small": ("paper", "paper", "paper", "paper", "d/2", "learned"),
        "reference": ("reference", "reference", "reference", "reference", "d/2", "question"),
        "reference-recurrent": (
            *("reference-recurrent", "reference", "reference", "reference", "d/2", "learned"),
        ),
    }
    for name, config in PRESETS.items():
        sizes = {"pixels": (384, 12, 300), "small": (64, 4, 64)}.get(name, (512, 12, 300))
        assert (config.d, config.p, config.embedding) == sizes
        assert config.write == "linear"
        assert config.separate
        assert config.share_weights
        assert not config.self_attention
        assert not config.gate
    assert preset("paper") == MACConfig()


def test_the_small_preset_is_the_network_that_make_run_has_always_trained() -> None:
    """Which was `paper`, changed by a file, before it had a name; `results/small_cpu.json`."""
    off = dict.fromkeys(("words", "question", "image", "control", "memory", "output"), 0.0)
    sizes = {"d": 64, "p": 4, "lstm": "d/2", "embedding": 64, "widths": (16, 32, 64)}
    file = {**sizes, "blocks": (0, 0, 0), "coordinates": True, "dropout": off}
    assert preset("small") == preset("paper", image="pixels", **file)


def test_a_change_overrides_a_row_and_a_row_a_preset() -> None:
    assert ablation("state dimension 256").d == 256
    assert ablation("state dimension 256", d=8).d == 8
    assert ablation("w/ memory gate", "reference", p=4) == preset("reference", gate=True, p=4)
    assert ablation("MAC", "reference-recurrent") == preset("reference-recurrent")


def test_rows_differ_from_one_another() -> None:
    """But for one: the gate's default bias is 1, and its row says so again."""
    made = {row: ablation(row) for row in ABLATIONS}
    same = [(a, b) for a, b in itertools.combinations(made, 2) if made[a] == made[b]]
    assert same == []
    torch.manual_seed(0)
    default = MACNetwork(small_config("w/ memory gate"), vocabulary=9, answers=4).state_dict()
    torch.manual_seed(0)
    biased = MACNetwork(small_config("gate bias 1"), vocabulary=9, answers=4).state_dict()
    assert all(torch.equal(default[name], biased[name]) for name in default)


@pytest.mark.parametrize("base", PRESETS)
def test_a_network_knows_its_row(base: str) -> None:
    """Whatever it looks at, through whatever trunk, and however much is dropped.

    The small one is no network of the paper's: it has four steps.
    """
    for row in ABLATIONS:
        known = None if base == "small" else row
        assert find_row(ablation(row, base)) == known
        free = {"image": "pixels", "channels": 7, "widths": (8, 8, 8), "blocks": (0, 0, 0)}
        assert find_row(ablation(row, base, **free, dropout=NO_DROPOUT)) == known


@pytest.mark.parametrize(
    "changes",
    [
        {"p": 4},
        {"d": 384},
        {"lstm": "d/2"},
        {"embedding": 200},
        {"read": "reference"},
        {"gate": True, "gate_bias": 2.0},
        {"gate": True, "p": 4},
        {"gate": True, "direct_knowledge": False},
    ],
    ids=str,
)
def test_a_network_of_no_row_has_none(changes: dict[str, Any]) -> None:
    assert find_row(preset("paper", **changes)) is None


# --- How large they are ----------------------------------------------------------------------


def count(config: MACConfig) -> int:
    """Numbers learned with 28 answers and 90 words, embedding of the padding included."""
    net = MACNetwork(config, vocabulary=90, answers=28)
    return sum(parameter.numel() for parameter in net.parameters())


def layer(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def lstm(inputs: int, units: int) -> int:
    """Two directions of four gates."""
    return 2 * 4 * layer(inputs + units, units)


WORDS = 90 * 300
TRUNK = layer(9 * 1024, 512) + layer(9 * 512, 512)
STATE, SCORE, SQUARE = 512, 512, 512 * 512


@pytest.mark.parametrize(("p", "total"), [(4, 12_200_852), (12, 14_302_100)])
def test_the_size_of_reference(p: int, total: int) -> None:
    control = layer(512, 512) + p * layer(512, 512) + SCORE  # tanh(W q), W_i, and c2.1
    read = 2 * layer(512, 512) + layer(1024, 512) + layer(512, 512) + SCORE  # r1, r2 twice, r3.1
    write = layer(1024, 512)  # w1
    output = layer(512, 512) + layer(1024, 512) + layer(512, 28)
    cell = STATE + control + read + write  # the state is m_0; c_0 is q
    assert WORDS + lstm(300, 256) + TRUNK + cell + output == total
    assert count(preset("reference", p=p)) == total


def test_the_size_of_paper() -> None:
    words = WORDS + lstm(300, 512) + layer(1024, 512)  # cw projected from 2d to d
    control = 12 * layer(1024, 512) + layer(1024, 512) + SCORE  # q_i, c1, c2.1
    read = layer(512, 512) + SQUARE + 1024 * 512 + SCORE  # r1, r2 and r3.1 less idle biases
    write = layer(1024, 512)  # w1
    output = layer(1024 + 512, 512) + layer(512, 28)
    total = words + TRUNK + 2 * STATE + control + read + write + output
    assert total == count(preset("paper")) == 20_160_404


def test_the_size_of_the_optional_steps() -> None:
    """w2.1, W_s and W_p, w3.1; in the reference a key, w2.1 and a wider w1, a gate of d."""
    for base, recalling, gate in (
        ("paper", SCORE + SQUARE + layer(512, 512), layer(512, 1)),
        ("reference", layer(512, 512) + SCORE + SQUARE, layer(512, 512)),
    ):
        plain = count(preset(base, p=2))
        assert count(preset(base, p=2, self_attention=True)) - plain == recalling
        assert count(preset(base, p=2, gate=True)) - plain == gate


def test_the_size_of_the_question_as_control() -> None:
    """c_i is q as it is, or one projection of it where it has 2d numbers; c2.1 goes as well."""
    for base, control, project in (
        ("reference", layer(512, 512) + 2 * layer(512, 512) + SCORE, 0),
        ("paper", 2 * layer(1024, 512) + layer(1024, 512) + SCORE + STATE, layer(1024, 512)),
    ):
        words = layer(1024, 512) if base == "paper" else 0  # nothing attends to them
        ours = count(ablation("question vector as control", base, p=2))
        assert ours == count(preset(base, p=2)) - control - words + project


@pytest.mark.parametrize(
    ("base", "own"),
    [
        # Of the control in each cell: W_i and c2.1, or W₁, W₂ and c2.1; nothing made of q alone.
        ("reference", layer(512, 512) + SCORE),
        ("reference-recurrent", layer(1024, 512) + layer(512, 512) + SCORE),
    ],
)
def test_cells_of_the_reference_share_what_is_made_of_the_question(base: str, own: int) -> None:
    read = 2 * layer(512, 512) + layer(1024, 512) + layer(512, 512) + SCORE
    unshared = (count(ablation("unshared weights", base, p=p)) for p in (3, 2))
    assert next(unshared) - next(unshared) == own + read + layer(1024, 512)


# --- Folded is literal -----------------------------------------------------------------------


@bases
@rows
def test_folded_is_literal(base: str, row: str) -> None:
    net = network(small_config(row, base, d=8)).eval()
    logits = net(maps(2), QUESTIONS), net.literal(maps(2), QUESTIONS)
    assert_same(*logits, list(net.parameters()))


def assert_same_in_training(config: MACConfig) -> None:
    """Folded and literal, each after the same seed and so with the same masks."""
    net = network(config).train()
    torch.manual_seed(1)
    folded = net(maps(2), QUESTIONS)
    torch.manual_seed(1)
    assert_same(folded, net.literal(maps(2), QUESTIONS), list(net.parameters()))
    torch.manual_seed(2)
    other = net(maps(2), QUESTIONS)
    assert not torch.allclose(other, folded), "there was no dropout"


@rows
def test_folded_is_literal_under_the_dropout_of_paper(row: str) -> None:
    assert_same_in_training(small_config(row, d=8, dropout=PAPER))


@rows
def test_folded_is_literal_under_the_dropout_of_reference(row: str) -> None:
    """Less that of elements and interactions, which the literal form draws anew per question."""
    dropout = replace(REFERENCE, knowledge=0, interaction=0)
    assert_same_in_training(small_config(row, "reference", d=8, dropout=dropout))


@bases
def test_in_evaluation_there_is_no_dropout(base: str) -> None:
    with_dropout = network(small_config(base=base, dropout=preset(base).dropout)).eval()
    without = network(small_config(base=base))
    one, other = (net(maps(2), QUESTIONS) for net in (with_dropout, without))
    assert_close(one, other, "logits", 0)


# --- They learn ------------------------------------------------------------------------------


def assert_trains_saves_and_loads(config: MACConfig, images: Tensor, path: Path) -> None:
    torch.manual_seed(0)
    net = MACNetwork(config, vocabulary=9, answers=4).double().train()
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(2):  # a residual block is nothing before the first
        loss = F.cross_entropy(net(images, QUESTIONS), ANSWERS)
        loss.backward()
        assert loss.isfinite()
        idle = [name for name, value in net.named_parameters() if value.grad is None]
        assert not idle, "without a gradient"
        optimizer.step()
    stuck = [name for name, value in net.named_parameters() if torch.equal(value, before[name])]
    assert not stuck, "unchanged by two steps"

    torch.save(net.state_dict(), path / "weights.pt")
    loaded = MACNetwork(config, vocabulary=9, answers=4).double()
    loaded.load_state_dict(torch.load(path / "weights.pt", weights_only=True))
    one, other = (n.eval()(images, QUESTIONS) for n in (net, loaded))
    assert_close(one, other, "answers after loading", 0)


@bases
@rows
def test_each_row_builds_trains_saves_and_loads(base: str, row: str, tmp_path: Path) -> None:
    config = small_config(row, base, d=8, p=3, dropout=preset(base).dropout)
    assert_trains_saves_and_loads(config, maps(2), tmp_path)


@bases
@pytest.mark.parametrize("coordinates", [True, False])
def test_pixels_too(base: str, coordinates: bool, tmp_path: Path) -> None:
    config = small_config(base=base, d=8, image="pixels", coordinates=coordinates)
    pictures = torch.randint(0, 256, (2, 24, 16, 3), dtype=torch.uint8)
    assert_trains_saves_and_loads(config, pictures, tmp_path)


@pytest.mark.parametrize(
    ("base", "options"),
    [("paper", False), ("paper", True), ("reference", True), ("reference-recurrent", False)],
)
def test_64_questions_are_learned_by_heart(base: str, options: bool) -> None:
    """Random questions about 16 random images, four to each, with random answers."""
    torch.manual_seed(0)
    config = small_config(base=base, d=32, p=4, embedding=16, self_attention=options, gate=options)
    net = MACNetwork(config, vocabulary=20, answers=8)
    images = torch.randn(16, 1024, 3, 3)
    questions, answers = torch.randint(1, 20, (64, 6)), torch.randint(8, (64,))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(300):
        logits = net(images, questions)
        if logits.argmax(-1).equal(answers):
            return
        optimizer.zero_grad()
        F.cross_entropy(logits, answers).backward()
        optimizer.step()
    right = (logits.argmax(-1) == answers).sum()
    pytest.fail(f"{right} of 64 after 300 steps")


# --- What is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"p": 0}, "p is 0; it must be a whole number from 1"),
        ({"p": -1}, "p is -1; it must be a whole number from 1"),
        ({"d": 8.0}, "d is 8.0; it must be a whole number from 1"),
        ({"d": True}, "d is True; it must be a whole number from 1"),
        ({"d": "8"}, "d is '8'; it must be a whole number from 1"),
        ({"embedding": 0}, "embedding is 0; it must be a whole number from 1"),
        ({"embedding_low": 1.0}, "embedding_low is 1.0; it must be a number below 1"),
        ({"gate": 1}, "gate is 1; choose True or False"),
        ({"separate": None}, "separate is None; choose True or False"),
        ({"image": "voxels"}, "image is 'voxels'; choose one of features, pixels"),
        ({"lstm": 2}, "lstm is 2; choose one of d, d/2"),
        (
            {"attend": "words"},
            "attend is 'words'; choose one of contextual words, word vectors, nothing",
        ),
        (
            {"control": "papers"},
            "control is 'papers'; choose one of paper, reference, reference-recurrent, question, n",
        ),
        ({"c0": "zero"}, "c0 is 'zero'; choose one of learned, question"),
        ({"read": "papers"}, "read is 'papers'; choose one of paper, reference"),
        ({"write": "none"}, "write is 'none'; choose one of linear, projected, retrieved"),
        ({"optional_steps": ""}, "optional_steps is ''; choose one of paper, reference"),
        ({"output": None}, "output is None; choose one of paper, reference"),
        ({"d": 7, "lstm": "d/2"}, 'd is 7; .* needs an even d, or choose lstm "d"'),
        ({"gate_bias": -1.0}, "gate_bias is -1.0 but gate is False; choose gate True or no gate_"),
        ({"gate_bias": 0}, "gate_bias is 0 but gate is False"),
        ({"c0": "question"}, 'c0 is "question" but lstm is "d".* c0 "learned" or lstm "d/2"'),
        (
            {"control": "question"},
            "attend is 'contextual words' but control is 'question'.* choose attend \"nothing\"",
        ),
        ({"control": "none", "attend": "word vectors"}, "attend is 'word vectors' but control is"),
        (
            {"dropout": replace(NO_DROPOUT, knowledge=0.1)},
            "dropout.knowledge is 0.1 .* read is 'paper'.* choose 0 .* or read reference",
        ),
        ({"dropout": replace(NO_DROPOUT, interaction=0.1)}, "dropout.interaction 0.1 but read is"),
        (
            {"separate": False, "gate": True},
            "gate is True but separate is False, .* choose separate True, or for gate False",
        ),
        ({"separate": False, "self_attention": True}, "self_attention is True but separate is F"),
        ({"separate": False, "write": "projected"}, "write is 'projected' but .* for write linear"),
        (
            {"separate": False, "control": "none", "attend": "nothing"},
            "control is 'none' but separate is False, .* or for control paper or reference or",
        ),
        ({"gate": True, "gate_bias": "x"}, "gate_bias is 'x'; it must be a number"),
        ({"gate": True, "gate_bias": float("nan")}, "gate_bias is nan; it must be a number"),
        ({"embedding_low": "x"}, "embedding_low is 'x'; it must be a number below 1"),
        ({"dropout": 0.1}, "dropout is 0.1; choose a Dropout"),
        ({"channels": 0}, "channels is 0; it must be a whole number from 1"),
        ({"widths": (8, 16)}, r"widths is \(8, 16\); it must be 3 whole numbers from 1"),
        ({"widths": (8, 0, 8)}, r"widths is \(8, 0, 8\); it must be 3 whole numbers from 1"),
        ({"blocks": (0, -1, 0)}, r"blocks is \(0, -1, 0\); it must be 3 whole numbers from 0"),
        ({"blocks": (0, 1.5, 0)}, r"blocks is \(0, 1.5, 0\); it must be 3 whole numbers from 0"),
    ],
    ids=str,
)
def test_an_impossible_network_is_refused(changes: dict[str, Any], sentence: str) -> None:
    """With a sentence that names the field, the value and the choices."""
    with pytest.raises(InputError, match=sentence):
        preset("paper", **changes)


@pytest.mark.parametrize("rate", [1.0, -0.1, 2, float("nan"), "x", True])
@pytest.mark.parametrize(
    "place", [name for name in asdict(NO_DROPOUT) if name != "variational_words"]
)
def test_an_impossible_rate_is_refused(place: str, rate: float) -> None:
    sentence = f"dropout.{place} is {rate!r}; it must be a number from 0 to below 1"
    with pytest.raises(InputError, match=sentence):
        with_changes(Dropout(), {place: rate})


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="`preset` is 'args1'; choose one of paper, pixels, small"):
        preset("args1")
    with pytest.raises(InputError, match="`preset` is 'args1'; choose one of paper"):
        ablation("MAC", "args1")
    with pytest.raises(
        InputError, match="`ablation` is 'w/ gate'; choose one of MAC, state dimension 256"
    ):
        ablation("w/ gate")
    with pytest.raises(InputError, match="there is no field 'depth'; choose among d, p, image"):
        preset("paper", depth=4)
    with pytest.raises(InputError, match="there is no field 'depth'; choose among d, p, image"):
        ablation("MAC", depth=4)


def test_a_row_can_be_typed() -> None:
    assert ablation("gate bias -1") == ablation("gate bias −1")
    assert ablation("W * retrieved + b -> memory") == ablation("W · retrieved + b → memory")


def test_dropout_can_be_changed_in_part() -> None:
    with_changes = preset("reference", dropout={"memory": 0.2}).dropout
    assert with_changes == replace(preset("reference").dropout, memory=0.2)
    with pytest.raises(InputError, match=r"no field 'dropout.memories'; choose among words, var"):
        preset("reference", dropout={"memories": 0.2})


def test_a_configuration_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        preset("paper").p = 4  # type: ignore[misc]
