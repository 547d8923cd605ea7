"""Programs that were written are shown module by module, beside the true ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from explained import Parsed, contrast, data_of, holds
from macnet.checkpoint import load_trained
from macnet.clevr.program import from_prefix
from macnet.cli import main
from macnet.data.block_encoder import _longest_program
from macnet.errors import InputError
from macnet.explain.animation import FRAME_WIDTH, draw_frames, write_gif
from macnet.explain.attention import measure_attention
from macnet.explain.cards import PADDING
from macnet.explain.drawing import DIFFERENT, MARGIN, WARNING
from macnet.explain.figure import FIGURE_WIDTH, draw_figure
from macnet.explain.model import Model
from macnet.explain.overlay import overlay_attention
from macnet.explain.page import make_page
from macnet.explain.program import MAX_FUNCTIONS, align, legend, parse_program, title
from macnet.explain.reply import Explanation
from macnet.models.registry import PRESETS, SYSTEMS, Preset
from programs_written import FIVE, LONGEST, TWELVE, WRITING, names_of, written
from small_data import sentence
from tiny_networks import HEIGHT, WIDTH, write_network

QUESTION = "How many large red cubes are there?"
OTHER = FIVE.replace("[red]", "[blue]").replace("filter_size[large] ", "")
SCENE = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)


# --- the true program ------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [FIVE, TWELVE, LONGEST])
def test_a_true_program_is_given_in_any_of_three_forms(prefix: str) -> None:
    tokens = prefix.split()
    for given_as in (prefix, f"  {prefix}\n", tokens, tuple(tokens), from_prefix(tokens)):
        assert parse_program(given_as) == tokens


def test_no_program_of_the_generated_world_is_too_long() -> None:
    assert len(LONGEST.split()) == MAX_FUNCTIONS == _longest_program()


SCENE_NODE = {"function": "scene", "inputs": [], "value_inputs": []}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("", "it is empty"),
        ([], "it is empty"),
        (7, "'int' object is not iterable"),
        ([3], "it has 3, which is no function"),
        ([["scene"]], "it has ['scene'], which is no function"),
        ("count things", "it has 'things', which is no function"),
        ("count <NULL>", "it has '<NULL>', which is no function"),
        ("count scene]", "it has 'scene]', which is no function"),
        ("count[3] scene", "it has 'count[3]', which is no function"),
        (
            "count filter_color[pink] scene",
            "it has 'filter_color[pink]', which is no function, and filter_color takes one of gray",
        ),
        ("count filter_size scene", "filter_size takes one of large, small"),
        ("count filter_color[cube] scene", "filter_color takes one of gray"),
        ("count", "'count' lacks an input"),
        ("count scene scene", "makes 2 programs, not one"),
        ("scene", '"scene" is its last function, which answers nothing'),
        ("count unique scene", '"count" takes a set of objects, but "unique" gives one object'),
        ("query_size scene", '"query_size" takes one object, but "scene" gives a set of objects'),
        (
            "equal_color query_size unique scene query_color unique scene",
            '"equal_color" takes a color, but "query_size" gives a size',
        ),
        ("count " * 26, "it has 26 functions, and 25 is the most"),
        ("count " * 10**6, "it has 1,000,000 functions, and 25 is the most"),
        ([{"function": "scene"}], 'it has no "inputs"'),
        ([{**SCENE_NODE, "function": "all"}], "unknown word 'all'"),
        ([{**SCENE_NODE, "inputs": [True]}], "expected int"),
        ([SCENE_NODE, "count"], "expected object"),
        ([{**SCENE_NODE, "inputs": [0]}], '"scene" takes 0 inputs, not 1'),
        (
            [{"function": "count", "inputs": [0], "value_inputs": []}],
            "step 0 takes step 0, which does not come before it",
        ),
        ([SCENE_NODE, SCENE_NODE], "step 0 is taken by 0 steps"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_what_is_no_program(program: Any, expected: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_program(program)
    told = str(refused.value)
    assert told.startswith("`program` is not one of CLEVR's: ")
    assert told.endswith("; give one such as 'count filter_color[red] scene'")
    assert expected in told
    assert len(told) < 400


# --- two programs, row by row ----------------------------------------------------------------

names = st.lists(st.sampled_from("abc"), max_size=8)


@given(names, names)
@settings(deadline=None)
def test_both_programs_are_in_the_rows_and_signs_tell_the_differences(
    ours: list[str], theirs: list[str]
) -> None:
    rows = align(ours, theirs)
    assert [row.written for row in rows if row.written is not None] == ours
    assert [row.true for row in rows if row.true is not None] == theirs
    numbers = [row.number for row in rows if row.number is not None]
    assert numbers == [*range(1, len(ours) + 1)]
    for row in rows:
        assert (row.written is None) == (row.number is None)
        expected = {(False, True): "+", (True, False): "−"}
        unlike = "≠" if row.written != row.true else ""
        assert row.sign == expected.get((row.written is None, row.true is None), unlike)
    assert (ours == theirs) == all(not row.sign for row in rows)
    assert set(legend(rows)) == {row.sign for row in rows} - {""}


def test_a_title_tells_whether_the_program_is_the_true_one() -> None:
    assert title(written(FIVE)) == "The program that it wrote"
    assert title(written(FIVE, FIVE)) == "The program that it wrote is the true one"
    told = "The program that it wrote differs from the true one in "
    assert title(written(FIVE, OTHER)) == f"{told}2 places"
    assert title(written(FIVE, FIVE.replace("red", "blue"))) == f"{told}1 place"
    # The filters of a color are beside each other, though there are more filters on one side.
    assert [row.sign for row in align(names_of(OTHER), names_of(FIVE))] == ["", "−", "≠", "", ""]


# --- pictures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "across", "true", "words"),
    [
        (FIVE, 5, None, True),
        (FIVE, 5, OTHER, False),
        (TWELVE, 4, TWELVE, True),
        (LONGEST, 5, FIVE, True),
    ],
)
def test_every_module_has_a_panel(prefix: str, across: int, true: str | None, words: bool) -> None:
    panel = (FIGURE_WIDTH + 28) // across - 28 - 2 * PADDING
    told = written(prefix, true, words=words, picture=(panel, 60))  # which is shown as it is
    figure = draw_figure(told)
    assert figure.width == FIGURE_WIDTH + 2 * MARGIN
    for module in told.modules[::6]:
        assert holds(figure, shown(told, module.image))
    marks = [(np.asarray(figure) == color).all(-1).sum() for color in (DIFFERENT, WARNING)]
    assert [count > 100 for count in marks] == [true not in (None, prefix)] * 2
    edges = np.asarray(figure).copy()
    edges[MARGIN:-MARGIN, MARGIN:-MARGIN] = 255
    assert (edges == 255).all()  # nothing stands over the edge


def shown(told: Explanation, attention: np.ndarray | None) -> np.ndarray:
    """The image as a panel shows it."""
    return (
        told.image if attention is None else overlay_attention(told.image, attention, told.centers)
    )


def test_differences_can_be_read() -> None:
    assert contrast(WARNING, DIFFERENT) > 7


def test_an_animation_shows_the_program_and_then_each_module(tmp_path: Path) -> None:
    told = written(FIVE, OTHER, picture=(FRAME_WIDTH, 20))
    question, program, *modules, answer = draw_frames(told)
    assert len({frame.size for frame in (question, program, *modules, answer)}) == 1
    assert (np.asarray(program) == DIFFERENT).all(-1).any()
    for frame, module in zip(modules, told.modules, strict=True):
        assert holds(frame, shown(told, module.image))
    write_gif(told, tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as film:
        stays = []
        for number in range(film.n_frames):  # type: ignore[attr-defined]
            film.seek(number)
            stays.append(film.info["duration"])
    assert stays == [2500, 4000, *[1600] * 5, 4000]


def test_names_of_any_length_have_room() -> None:
    told = written(TWELVE, FIVE)
    long = replace(told.modules[0], name="<b>" + "Find" * 40)
    told = replace(told, modules=(long, *told.modules[1:]), true_modules=("x" * 300,))
    assert draw_figure(told).width == FIGURE_WIDTH + 2 * MARGIN
    assert len(draw_frames(told)) == 15
    assert "<b>" not in re.sub(r"<script.*?</script>", "", make_page(told), flags=re.DOTALL)


@pytest.mark.parametrize("true", [None, FIVE, OTHER])
@pytest.mark.parametrize("maps", [True, False])
def test_a_page_has_the_modules_and_the_programs(true: str | None, maps: bool) -> None:
    told = written(FIVE, true, maps=maps)
    text = make_page(told)
    parsed, steps = Parsed(text), data_of(text)["steps"]
    assert [step["name"] for step in steps] == names_of(FIVE)
    for step, module in zip(steps, told.modules, strict=True):
        assert (step["image"] is None) == (module.image is None)
        assert (step["words"] is None) == (module.words is None)
    assert title(told) in parsed.text["h2"]
    rows = [tag.get("data-module") for tag in parsed.all("tr") if "data-module" in tag]
    assert rows == [str(number) for number in range(1, 6)]
    differing = [tag for tag in parsed.all("tr") if tag.get("class") == "differs"]
    labels = [tag["aria-label"] for tag in parsed.all("span") if tag.get("role") == "img"]
    if true == OTHER:
        assert labels == ["not in the true one", "another module"]
        assert "+ not in the true one" in text
    assert len(differing) == len(labels) == (2 if true == OTHER else 0)
    assert ">true</th>" in text if true else ">true</th>" not in text
    (slider,) = (tag for tag in parsed.all("input") if tag["type"] == "range")
    assert slider["max"] == "5"
    assert "Previous module" in text
    assert "step," not in parsed.text["p"]


def test_a_module_is_told_in_words() -> None:
    told = written("greater_than count scene count scene", question="red ball")
    told.modules[0].image[:] = 0  # type: ignore[index]
    told.modules[0].image[0, -1] = 1  # type: ignore[index]
    told.modules[4].words[:] = 0.25, 0.75  # type: ignore[index]
    first, *_, last = (step["description"] for step in data_of(make_page(told))["steps"])
    assert first == "Module 1 of 5, scene, has its attention at the upper right (100%)."
    assert last == (
        "Module 5 of 5, greater_than, takes modules 2 and 4, reads “ball” (75%) and “red” (25%) "
        "and has no map."
    )


# --- a network that writes programs ----------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("programs") / "run", "cnn-lstm")


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is in use, CNN+LSTM is said to write programs."""
    system = replace(SYSTEMS["cnn-lstm"], programs=WRITING)
    monkeypatch.setitem(SYSTEMS, "cnn-lstm", system)
    preset = Preset(system, PRESETS["cnn-lstm"].config)
    monkeypatch.setitem(PRESETS, "cnn-lstm", preset)


def test_an_explanation_is_the_program_module_by_module(run: Path, writes: None) -> None:
    model = Model(load_trained(run))
    found = model.explain(SCENE, QUESTION)
    assert found.reply == model.ask(SCENE, QUESTION)
    assert (found.steps, found.true_modules, found.map_title) == ((), None, "attention")
    assert [module.name for module in found.modules] == names_of(FIVE)
    assert [module.inputs for module in found.modules] == [(), (0,), (1,), (2,), (3,)]
    for place, module in enumerate(found.modules):
        assert (module.words is None) == (place == 0)
        assert module.words is None or module.words.shape == (len(found.words),)
        if place == 4:
            assert module.image is None
        else:
            assert module.image is not None
            assert module.image.shape == (HEIGHT // 8, WIDTH // 8)
            assert module.image.argmax() == place
    assert model.explain(SCENE, QUESTION, OTHER).true_modules == tuple(names_of(OTHER))
    with pytest.raises(InputError, match="`program` is not one of CLEVR's"):
        model.explain(SCENE, QUESTION, program="count")


def test_who_writes_no_programs_is_given_none(tmp_path: Path) -> None:
    model = Model(load_trained(write_network(tmp_path)))
    found = model.explain(SCENE, QUESTION)
    assert (found.modules, found.true_modules, found.map_title) == ((), None, None)
    with pytest.raises(
        InputError, match=r"^`program` is given, but .* the system mac, which writes no programs"
    ):
        model.explain(SCENE, QUESTION, FIVE)


def test_who_can_be_explained_and_whose_attention_can_be_measured(
    run: Path, tmp_path: Path, writes: None
) -> None:
    neither = Model(load_trained(write_network(tmp_path, "lstm")))
    with pytest.raises(InputError) as refused:
        neither.explain(SCENE, QUESTION)
    explainable = [s.name for s in SYSTEMS.values() if s.trace or s.programs]
    assert "cnn-lstm" in explainable
    for name in explainable:
        assert name in str(refused.value).partition("take a network of the system ")[2]
    attending = r"take a network of the system mac or sa-mlp$"
    with pytest.raises(InputError, match=f"cnn-lstm, which reasons in no steps; {attending}"):
        measure_attention(run, device="cpu")


# --- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "program", "told"),
    [
        ("a.png", (), ""),
        ("b.html", ("--program", FIVE), ", which is the true one"),
        ("a.html", ("--program", OTHER), ", which differs from the true one in 2 places"),
    ],
)
def test_the_command(
    name: str,
    program: tuple[str, ...],
    told: str,
    run: Path,
    writes: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    image, out = tmp_path / "scene.png", tmp_path / name
    Image.fromarray(SCENE).save(image)
    options = ["--out", str(out), "--model", str(run), *program]
    assert main(["explain", str(image), QUESTION, *options]) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"{out}: its program of 5 modules{told}"
    assert out.stat().st_size > 1000


def test_the_command_refuses_what_is_no_program(
    run: Path, writes: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, out = tmp_path / "scene.png", tmp_path / "a.png"
    Image.fromarray(SCENE).save(image)
    options = ("--out", out, "--model", run, "--program", "count cubes")
    said = sentence(capsys, "explain", image, QUESTION, *options)
    assert said.startswith("--program is not one of CLEVR's: it has 'cubes', which is no function")
    assert not out.exists()
