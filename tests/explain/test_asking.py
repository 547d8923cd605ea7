"""A network to talk to: what it answers, what it understands, and what it says it attended to."""

from __future__ import annotations

import string
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import macnet
from macnet import checkpoint
from macnet.checkpoint import BEST, load_trained
from macnet.clevr.images import read_image, save_image
from macnet.data.block_encoder import world_texts
from macnet.data.unknown_words import UnknownWord
from macnet.data.vocab import ANSWERS, SPECIALS, TOKENIZERS, Vocabulary
from macnet.errors import InputError
from macnet.explain.model import Model, parse_question
from tiny_networks import HEIGHT, WIDTH, write_network

QUESTION = "What color is the large sphere?"
WORDS = ("what", "color", "is", "the", "large", "sphere")
KNOWN = Vocabulary.build(world_texts())
SCENE = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
BOTH = {"self_attention": True, "gate": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("asked") / "run", model=BOTH)


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return macnet.load(run)


@pytest.fixture(scope="module")
def scene(run: Path) -> Path:
    save_image(run / "scene.png", SCENE)
    return run / "scene.png"


# --- answers ---------------------------------------------------------------------------------


def test_the_answer_is_the_networks(run: Path, model: Model, scene: Path) -> None:
    trained = load_trained(run)
    pixels = torch.tensor(read_image(scene, WIDTH, HEIGHT))[None]
    tokens = torch.tensor([trained.vocabulary.encode(QUESTION)])
    with torch.no_grad():
        expected = trained.network()(pixels, tokens)[0].softmax(-1)
    reply = model.ask(scene, QUESTION)
    assert (reply.question, reply.unknown) == (QUESTION, ())
    assert reply.answer == ANSWERS[int(expected.argmax())]
    assert set(reply.probabilities) == set(ANSWERS)
    for answer, share in zip(ANSWERS, expected.tolist(), strict=True):
        assert reply.probabilities[answer] == pytest.approx(share, rel=1e-5)


def test_the_likeliest_first(model: Model) -> None:
    shares = list(model.ask(SCENE, QUESTION).probabilities.values())
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)


def test_a_picture_is_a_picture(model: Model, scene: Path) -> None:
    expected = model.ask(scene, QUESTION)
    floats = torch.tensor(SCENE / 255)
    for same in (str(scene), Image.open(scene), Image.fromarray(SCENE), SCENE, SCENE / 255, floats):
        assert model.ask(same, QUESTION) == expected
    assert model.ask(SCENE[::-1], QUESTION).probabilities != expected.probabilities


@pytest.mark.parametrize("shape", [(1, 1), (1, 900), (900, 1), (300, 5, 4), (7, 7, 1)])
def test_pictures_of_any_size(shape: tuple[int, ...], model: Model) -> None:
    reply = model.ask(np.full(shape, 99, np.uint8), QUESTION)
    assert sum(reply.probabilities.values()) == pytest.approx(1)


def test_weights_stored_in_halves_are_asked_in_whole_numbers(model: Model, tmp_path: Path) -> None:
    halved = macnet.load(write_network(tmp_path, model=BOTH, dtype=torch.float16))
    assert {p.dtype for p in halved.network.parameters()} == {torch.float32}
    whole, half = (asked.ask(SCENE, QUESTION).probabilities for asked in (model, halved))
    assert half == pytest.approx(whole, abs=1e-2)
    assert half != whole


@pytest.mark.parametrize("preset", ["lstm", "cnn-lstm"])
def test_other_systems_answer_but_cannot_be_watched(preset: str, tmp_path: Path) -> None:
    model = macnet.load(write_network(tmp_path, preset))
    there, elsewhere = (model.ask(picture, QUESTION) for picture in (SCENE, SCENE[::-1]))
    assert (there == elsewhere) == (preset == "lstm"), "which looks at nothing"
    with pytest.raises(InputError, match=f"the system {preset}, which has no attention"):
        model.explain(SCENE, QUESTION)


@pytest.mark.parametrize("device", ["toaster", "cuda:99", 1.5])
def test_a_device_that_is_not_here(device: Any, run: Path) -> None:
    with pytest.raises(InputError, match=r"^`device` is .* which is not available; use cpu$"):
        macnet.load(run, device=device)


@pytest.mark.parametrize("way", ["ask", "explain"])
def test_a_question_is_one_threads_work(way: str, model: Model) -> None:
    """And what comes after it has the threads that it had."""
    torch.set_num_threads(3)
    used: list[int] = []
    network: Any = model.network
    hook = network.output.register_forward_hook(lambda *_: used.append(torch.get_num_threads()))
    getattr(model, way)(SCENE, QUESTION)
    hook.remove()
    assert ({*used}, torch.get_num_threads()) == ({1}, 3)


# --- questions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "words", "unknown"),
    [
        ("Spheres?", ["spheres"], []),
        ("is  THERE\ta\ncube", ["is", "there", "a", "cube"], []),
        ("a shpere; a cube", ["a", "sphere", ";", "a", "cube"], [("shpere", "sphere")]),
        ("wug wug shpere", ["sphere"], ["wug", ("shpere", "sphere")]),
        ("Где cube? 🙂", ["cube"], ["где", "🙂"]),
        ("红色的 cube", ["cube"], ["红色的"]),
        ("ما لون cube", ["cube"], ["ما", "لون"]),
        ("<NULL> cube <UNK>", ["cube"], ["null", "unk"]),
        ("a — cube … “a 'cube'”。", ["a", "cube", "a", "cube"], []),
        ("\x1b[31m \udc80 cube", ["cube"], ["\x1b[31m", "\udc80"]),
    ],
)
def test_questions(question: str, words: list[str], unknown: list[Any], model: Model) -> None:
    expected = tuple(
        UnknownWord(*found) if isinstance(found, tuple) else UnknownWord(found, None)
        for found in unknown
    )
    assert parse_question(question, KNOWN) == (question, tuple(words), expected)
    reply = model.ask(SCENE, question)
    assert (reply.question, reply.unknown) == (question, expected)
    assert sum(reply.probabilities.values()) == pytest.approx(1)


def test_what_was_meant_is_what_is_asked(model: Model) -> None:
    slipped = model.ask(SCENE, "What colour is the lagre shpere?")
    assert slipped.probabilities == model.ask(SCENE, QUESTION).probabilities
    assert slipped.question == "What colour is the lagre shpere?"
    strange = model.ask(SCENE, "Please, robot, what color is the large sphere 🙂 ?")
    assert strange.probabilities == model.ask(SCENE, QUESTION).probabilities
    assert [lacking.word for lacking in strange.unknown] == ["please", "robot", "🙂"]


@pytest.mark.parametrize("question", ["Где синий куб?", "红色的 球", "<NULL> <UNK>", "🙂", "wug"])
def test_nothing_that_it_has_read(question: str) -> None:
    with pytest.raises(
        InputError, match=r"^no word of the question is in the network's vocabulary \('"
    ):
        parse_question(question, KNOWN)


@given(st.text())
@settings(max_examples=150, deadline=None)
def test_whatever_is_typed_is_understood(question: str) -> None:
    asked = parse_question(f"cube {question}", KNOWN)
    assert asked.words[0] == "cube"
    assert set(asked.words) <= set(KNOWN.ids)
    for lacking in asked.unknown:
        assert any(lacking.word in word for word in TOKENIZERS["mac"](question))
        assert lacking.word not in KNOWN.ids
        assert not is_mark(lacking.word[0])
        assert not is_mark(lacking.word[-1])
    named = {lacking.word for lacking in asked.unknown}
    for word in TOKENIZERS["mac"](question):
        bare = word.strip("".join(filter(is_mark, word)))
        assert not bare or bare in KNOWN.ids or word in KNOWN.ids or bare in named


def is_mark(sign: str) -> bool:
    return sign in string.punctuation + string.whitespace or unicodedata.category(sign)[0] == "P"


def test_marks_it_has_never_read_are_left_out(model: Model) -> None:
    expected = model.ask(SCENE, QUESTION)
    for question in ("What color, is the: large sphere.", "– What color is … the large * sphere?!"):
        reply = model.ask(SCENE, question)
        assert (reply.probabilities, reply.unknown) == (expected.probabilities, ())
    assert parse_question("a cube; a cube", KNOWN).words == ("a", "cube", ";", "a", "cube")


def test_the_most_words_there_may_be(model: Model) -> None:
    assert sum(model.ask(SCENE, "cube " * 255).probabilities.values()) == pytest.approx(1)
    for count in (256, 500, 2_000_000):
        with pytest.raises(InputError, match=rf"^the question has {count:,} words; 255 is the mos"):
            model.ask(SCENE, "cube " * count)


@pytest.mark.parametrize("tokenizer", ["mac", "clevr-iep", "n2nmn"])
@pytest.mark.parametrize("question", ["", " ", "\n\t", "?", "...", "; -"])
def test_no_question(question: str, tokenizer: str) -> None:
    with pytest.raises(InputError, match=r"^the question is empty; ask one in the words"):
        parse_question(question, Vocabulary.build(["a cube"], tokenizer))


def test_where_case_counts() -> None:
    """As in the community's vocabulary, which has an empty word too."""
    words = Vocabulary((*SPECIALS, "", "Is", "cube", "there"), "clevr-iep")
    asked = parse_question("is there  Cube", words)
    assert asked.words == ("<START>", "Is", "there", "", "cube", "<END>")
    assert asked.unknown == (UnknownWord("is", "Is"), UnknownWord("Cube", "cube"))


# --- explanations ----------------------------------------------------------------------------


def test_an_explanation_is_the_trace_of_its_answer(run: Path, model: Model) -> None:
    found = model.explain(SCENE, "What color is the large shpere?")
    assert found.reply == model.ask(SCENE, "What color is the large shpere?")
    assert found.words == WORDS
    np.testing.assert_array_equal(found.image, SCENE)
    # In the middle of every eighth pixel, from the first.
    np.testing.assert_allclose(found.centers.rows, [0.5 / 24, 8.5 / 24, 16.5 / 24])
    np.testing.assert_allclose(found.centers.columns, np.arange(0.5, 40, 8) / 40)
    trained = load_trained(run)
    network: Any = trained.network()
    pixels = np.asarray(Image.fromarray(SCENE).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
    with torch.no_grad():
        _, steps = network.trace(
            torch.tensor(pixels)[None], torch.tensor([trained.vocabulary.encode(QUESTION)])
        )
    assert len(found.steps) == len(steps) == 3
    for number, (look, step) in enumerate(zip(found.steps, steps, strict=True)):
        assert look.words is not None
        assert (look.words.shape, look.image.shape) == ((len(WORDS),), (HEIGHT // 8, WIDTH // 8))
        np.testing.assert_allclose(look.words, step.words[0], rtol=1e-5)
        np.testing.assert_allclose(look.image.ravel(), step.knowledge[0], rtol=1e-5)
        assert look.words.sum() == pytest.approx(1)
        assert look.image.sum() == pytest.approx(1)
        assert look.change == pytest.approx(1 - step.gate.item())
        assert look.resting is not None
        assert look.resting.shape == look.image.shape
        if number:
            assert look.self_attention is not None
            assert look.self_attention.shape == (number,)
            np.testing.assert_allclose(look.self_attention, step.self_attention[0], rtol=1e-5)
        else:
            assert look.self_attention is None


@pytest.mark.parametrize(
    ("preset", "changes"),
    [("paper", {}), ("reference", BOTH), ("paper", {"control": "none", "attend": "nothing"})],
)
def test_explanations_of_other_networks(
    preset: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    found = macnet.load(write_network(tmp_path, preset, changes)).explain(SCENE, QUESTION)
    for number, look in enumerate(found.steps):
        assert (look.words is None) == ("attend" in changes)
        assert look.image.shape == (3, 5)
        # The reference recalls the state before the first step too.
        assert (look.self_attention is None) == (not changes.get("self_attention"))
        assert look.self_attention is None or look.self_attention.shape == (number + 1,)
        assert (look.change is None) == (not changes.get("gate"))
        assert look.change is None or 0 < look.change < 1


# --- which network ---------------------------------------------------------------------------


def test_by_folder_by_file_and_by_default(
    run: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = model.ask(SCENE, QUESTION)
    assert macnet.load(str(run / BEST)).ask(SCENE, QUESTION) == expected
    monkeypatch.setattr(checkpoint, "SHIPPED", run / BEST)
    assert macnet.load().ask(SCENE, QUESTION) == expected
    assert macnet.load(device=torch.device("cpu")).device == torch.device("cpu")


def test_networks_that_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = write_network(tmp_path / "features", pixels=False)
    with pytest.raises(
        InputError, match=r"best.safetensors: it was trained on features, and cannot"
    ):
        macnet.load(features)
    types = write_network(tmp_path / "types", "q-type")
    with pytest.raises(
        InputError, match=r"it is of the system q-type, which takes neither images nor qu"
    ):
        macnet.load(types)
    with pytest.raises(InputError, match="nowhere: there is no such file"):
        macnet.load(tmp_path / "nowhere")
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path / "mac.safetensors")
    with pytest.raises(InputError, match=r"mac.safetensors: the network that comes with macnet is"):
        macnet.load()
