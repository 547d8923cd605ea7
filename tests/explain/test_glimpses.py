"""Stacked attention is explained by its glimpses; a system without attention is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from explained import holds
from macnet import devices
from macnet.errors import InputError
from macnet.explain.animation import draw_frames
from macnet.explain.attention import measure_attention
from macnet.explain.cards import PADDING
from macnet.explain.figure import IMAGE_WIDTH, draw_figure
from macnet.explain.grouping import merge_steps
from macnet.explain.model import load
from macnet.explain.overlay import overlay_attention
from macnet.explain.page import make_page
from tiny_networks import HEIGHT, WIDTH, write_network

QUESTION = "What color is the large sphere?"
SMALL = {"embedding": 6, "units": 8}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with glimpses, which has learned nothing."""
    return write_network(tmp_path_factory.mktemp("sa") / "run", preset="sa-mlp", model=SMALL)


def test_two_glimpses_are_two_steps_without_words(run: Path) -> None:
    width = IMAGE_WIDTH - 2 * PADDING
    image = np.random.default_rng(0).integers(0, 256, (400, width, 3), dtype=np.uint8)
    explanation = load(run).explain(image, QUESTION)
    first, second = explanation.steps
    for step in (first, second):
        assert step.image.shape == (-(-HEIGHT // 8), -(-WIDTH // 8))
        assert step.image.sum() == pytest.approx(1)
        assert (step.words, step.self_attention, step.change) == (None, None, None)

    each = [merge_steps(explanation.steps, [number]) for number in (1, 2)]
    figure = draw_figure(explanation, each)
    for step in (first, second):
        assert holds(figure, overlay_attention(image, step.image, explanation.centers))
    assert len(draw_frames(explanation, each)) == 4
    page = make_page(explanation)
    assert "Step 2 of 2 attends to " in page
    assert " reads " not in page


def test_its_attention_is_measured_without_words(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "choose_share_of_workers", lambda _: 0)  # they take seconds
    report = measure_attention(run, world_images=2, world_seed=3, device="cpu")
    assert [len(steps) for steps in report.agreement.steps.values()] == [2, 2, 2]
    told = str(report)
    assert told.startswith("What CNN+LSTM+SA+MLP attends to on val of the generated world 3")
    assert "backwards" not in told
    assert "reads at" not in told


@pytest.mark.parametrize("preset", ["rn", "film"])
def test_a_system_without_attention_is_refused_with_those_that_have_some(
    preset: str, tmp_path: Path
) -> None:
    without = write_network(tmp_path / "run", preset=preset, model=SMALL)
    refused = f"is of the system {preset}, which has no attention"
    with pytest.raises(InputError, match=f"{refused} and no program to show; take a network of "):
        load(without).explain(np.zeros((8, 8, 3), np.uint8), QUESTION)
    named = "take a network of the system mac or sa-mlp$"
    with pytest.raises(InputError, match=f"{refused} to show; {named}"):
        measure_attention(without, device="cpu")
