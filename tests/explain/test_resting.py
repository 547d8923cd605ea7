"""The resting map is what a step attends to for other questions, and can be taken off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import macnet
from explained import explanation
from macnet.checkpoint import load_trained
from macnet.data.block_encoder import world_texts
from macnet.data.vocab import PAD, UNK, Vocabulary
from macnet.explain.reply import beyond_resting
from macnet.explain.resting import OTHER_QUESTIONS, other_questions
from tiny_networks import HEIGHT, WIDTH, write_network


def test_other_questions_are_the_same_each_time_and_of_all_kinds() -> None:
    vocabulary = Vocabulary.build(world_texts())
    found = other_questions(vocabulary)
    assert found is not None
    assert len(found) == OTHER_QUESTIONS
    assert torch.equal(found, other_questions(vocabulary))  # type: ignore[arg-type]
    assert (found[:, 0] != PAD).all()
    told = {" ".join(vocabulary.words[i] for i in row if i != PAD) for row in found.tolist()}
    assert len(told) == OTHER_QUESTIONS
    openings = {text.split()[0] for text in told}
    assert {"how", "what", "is", "are", "there"} <= openings


def test_questions_of_which_a_word_is_unknown_are_left_out() -> None:
    small = Vocabulary.build(text for text in world_texts() if "same" not in text)
    without = [word for word in Vocabulary.build(world_texts()).words if word not in small.words]
    assert without
    found = other_questions(small)
    assert found is not None
    assert (found != UNK).all()
    assert other_questions(Vocabulary.build(["what is this"])) is None


def test_a_resting_map_is_the_mean_over_other_questions(tmp_path: Path) -> None:
    run = write_network(tmp_path, "paper", {})
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    found = macnet.load(run).explain(pixels, "What color is the cube?")
    others = other_questions(load_trained(run).vocabulary)
    assert others is not None
    network: Any = load_trained(run).network()
    for i, step in enumerate(found.steps):
        each = []
        for row in others:
            with torch.no_grad():
                _, steps = network.trace(torch.tensor(pixels)[None], row[row != PAD][None])
            each.append(steps[i].knowledge[0].numpy())
        assert step.resting is not None
        np.testing.assert_allclose(step.resting.ravel(), np.mean(each, 0), rtol=1e-4)


def test_attention_beyond_a_resting_map() -> None:
    attention, resting = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.2, 0.4, 0.1, 0.3])
    beyond, share = beyond_resting(attention, resting)
    np.testing.assert_allclose(beyond, [0.75, 0, 0.25, 0])
    assert share == pytest.approx(0.4)
    for other in (resting, resting + np.array([0.005, 0, 0, -0.005])):
        beyond, share = beyond_resting(other, resting)
        assert share == 0
        assert (beyond == 0).all()
    both, rest = torch.from_numpy(np.stack([attention, resting])), torch.from_numpy(resting)
    tensors = beyond_resting(both, rest.expand(2, -1))
    np.testing.assert_allclose(tensors[0], np.array([[0.75, 0, 0.25, 0], np.zeros(4)]))
    np.testing.assert_allclose(tensors[1], [0.4, 0])


def test_an_explanation_beyond_resting() -> None:
    told = explanation(steps=3, resting=True)
    beyond = told.beyond_resting
    assert not told.is_beyond_resting
    assert beyond.is_beyond_resting
    for step, own in zip(beyond.steps, told.steps, strict=True):
        assert own.resting is not None
        more = np.maximum(own.image - own.resting, 0)
        np.testing.assert_allclose(step.image * step.share, more, atol=1e-6)
        assert step.image.sum() == pytest.approx(1, abs=1e-5)
        assert (step.resting, step.words is own.words) == (None, True)
    unknown = explanation(steps=2)
    assert unknown.beyond_resting.steps == unknown.steps
