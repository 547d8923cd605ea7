"""The page holds all that was thought, nothing from elsewhere, and no word that becomes code."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from explained import QUESTION, Parsed, data_of, explanation
from macnet.data.unknown_words import UnknownWord
from macnet.explain import page
from macnet.explain.overlay import overlay_attention
from macnet.explain.page import make_page, write_page
from macnet.explain.reply import IDLE, Explanation
from programs_written import FIVE, written


@settings(max_examples=20, deadline=None)
@given(
    steps=st.integers(1, 16),
    words=st.booleans(),
    gate=st.booleans(),
    resting=st.booleans(),
    first=st.sampled_from([None, 0, 1]),
    seed=st.integers(0, 99),
)
def test_all_that_was_thought_is_there(
    steps: int, words: bool, gate: bool, resting: bool, first: int | None, seed: int
) -> None:
    told = explanation(steps=steps, words=words, gate=gate, resting=resting, first=first, seed=seed)
    text = make_page(told)
    data, parsed = data_of(text), Parsed(text)
    assert data["words"] == QUESTION.lower().split()
    assert len(data["steps"]) == steps
    for step, look in zip(data["steps"], told.steps, strict=True):
        assert (step["change"], step["idle"]) == (look.change, look.idle)
        for name in ("words", "image", "resting", "self_attention"):
            thought = getattr(look, name)
            if thought is None:
                assert step[name] is None
            else:
                assert np.allclose(step[name], thought, atol=1e-5)
    (slider,) = (tag for tag in parsed.all("input") if tag["type"] == "range")
    assert (slider["min"], slider["max"]) == ("0", str(steps))
    assert parsed.text["title"] == parsed.text["h1"] == QUESTION
    shown = [f"{share:.1%}" for share in told.reply.probabilities.values()]
    likely = sum(share >= 0.01 for share in told.reply.probabilities.values())
    assert len(parsed.all("li")) == max(2, likely)
    assert [share for share in shown[: max(2, likely)] if share not in text] == []
    links = data["chain"]
    assert (links == []) == (not words)
    assert [link["step"] for link in links] == sorted(link["step"] for link in links)


def test_nothing_comes_from_elsewhere() -> None:
    text = make_page(explanation())
    parsed = Parsed(text)
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)
    fetching = {"src", "href", "srcset", "data", "action", "poster", "background"}
    sources = [tag[name] or "" for _, tag in parsed.tags for name in fetching & set(tag)]
    assert [source[:23] for source in sources] == ["data:image/jpeg;base64,"]
    (policy,) = (tag["content"] for tag in parsed.all("meta") if "http-equiv" in tag)
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_every_control_says_what_it_is() -> None:
    parsed = Parsed(make_page(explanation()))
    controls = [tag for name in ("button", "input") for tag in parsed.all(name)]
    unnamed = [tag["id"] for tag in controls if not tag.get("aria-label")]
    assert unnamed == ["take"]  # which has a label around it
    assert parsed.text["label"].strip() == "Take the resting maps off"
    assert all(tag.get("alt") for tag in parsed.all("img"))
    assert [tag["id"] for tag in parsed.all("p") if tag.get("aria-live") == "polite"] == ["said"]
    script = parsed.text["script"]
    assert 'addEventListener("keydown"' in script
    for key in ("ArrowLeft", "ArrowRight", "Home", "End", '" "'):
        assert f"{key}: () =>" in script


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(lambda s: s.split()))
def test_a_question_never_becomes_code(question: str) -> None:
    assert_escaped(question)


@pytest.mark.parametrize(
    "question",
    [
        "</script><script>alert(1)</script>",
        "<!-- <script>",
        "\"'><img src=x onerror=alert(1)>",
        "&lt;b&gt; {{data}} \\u003c ${1} `",
        "这个立方体是什么颜色的? Какого цвета куб? 🟥 مكعب",
        "\u2028 \u2029 x",
    ],
)
def test_a_question_that_would_be_code(question: str) -> None:
    assert_escaped(question)


def assert_escaped(question: str) -> None:
    plain, told = Parsed(make_page(explanation())), explanation(question=question)
    object.__setattr__(told.reply, "probabilities", explanation().reply.probabilities)
    text = make_page(told)
    parsed = Parsed(text)
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in plain.tags]
    for line_end in ("\r\n", "\r"):  # which HTML reads as \n
        question = question.replace(line_end, "\n")
    assert parsed.text["h1"].replace("\r\n", "\n").replace("\r", "\n") == question
    assert data_of(text)["words"] == list(told.words)


def test_what_no_script_has_is_replaced(tmp_path: Path) -> None:
    write_page(explanation(question="\udcff?"), tmp_path / "a.html")
    assert ">??</h1>" in (tmp_path / "a.html").read_text("utf-8")


def test_unknown_words_are_told() -> None:
    unknown = (UnknownWord("<b>", None), UnknownWord("shpere", "sphere"))
    parsed = Parsed(make_page(explanation(unknown=unknown)))
    assert (
        "It read 'shpere' as 'sphere'.It has never read '<b>', and left it out." in parsed.text["p"]
    )


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (2600, 1300)], ids=str)
def test_pictures_of_any_size(size: tuple[int, int]) -> None:
    (image,) = Parsed(make_page(explanation(picture=size))).all("img")
    content = base64.b64decode((image["src"] or "").partition(",")[2])
    with Image.open(io.BytesIO(content)) as opened:
        assert opened.size == (size if max(size) < 1280 else (1280, 640))


def test_a_step_is_told_in_words() -> None:
    told = explanation(steps=1, first=None, question="red ball")
    look = told.steps[0]
    look.words[:] = 0.25, 0.75  # type: ignore[index]
    look.image[:] = 0
    look.image[0, -1], look.image[3, 0] = 0.75, 0.25
    (step,) = data_of(make_page(told))["steps"]
    assert step["description"] == (
        "Step 1 of 1 reads “ball” (75%) and “red” (25%), attends to the upper right (75%) and "
        f"changes {look.change:.0%} of the memory."
    )
    object.__setattr__(look, "change", IDLE / 2)
    object.__setattr__(look, "resting", np.zeros_like(look.image))
    look.resting[0, -1] = 0.55  # type: ignore[index]
    look.resting[0, 0] = 0.45  # type: ignore[index]
    (step,) = data_of(make_page(told))["steps"]
    assert step["description"].endswith(" and changes 5% of the memory, so that it is idle.")
    assert step["description_beyond"] == (
        "Step 1 of 1 reads “ball” (75%) and “red” (25%), attends to the lower left (25%) and the "
        "upper right (20%) and changes 5% of the memory, so that it is idle. Its resting map, 55% "
        "of its attention, is taken off."
    )
    told = explanation(steps=2, first=0, words=False, gate=False, grid=(3, 3))
    told.steps[1].image[:] = np.diag([0, 1, 0])
    recalled = told.steps[1].self_attention
    assert recalled is not None
    recalled[:] = 0.9, 0.1
    assert data_of(make_page(told))["steps"][1]["description"] == (
        "Step 2 of 2 attends to the middle (100%) and recalls the beginning (90%)."
    )


# --- in a browser ----------------------------------------------------------------------------

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
ACTS = """
<script>
const seen = [], saw = () => seen.push([
  $("step").value, $("words").children[0].style.getPropertyValue("--light"),
]);
const press = (key) => document.body.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true })
);
function act() {
  saw();
  for (const key of ["ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home", "ArrowLeft"]) {
    press(key);
    saw();
  }
  $("strip").children[2].click(); saw();
  $("previous").click(); saw();
  press(" ");
  const playing = $("play").ariaLabel;
  press(" ");
  stage.draw(light(1));
  const { data } = stage.context.getImageData(0, 0, stage.width, stage.height);
  const done = document.createElement("output");
  done.textContent = JSON.stringify({
    seen, playing, then: $("play").ariaLabel, hash: location.hash, width: stage.width,
    pixels: Array.from(data),
  });
  document.body.append(done);
}
const waiting = setInterval(() => { if (now >= 0) { clearInterval(waiting); act(); } }, 50);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_in_a_browser(tmp_path: Path) -> None:
    """By keys and clicks to every step; and the picture is lit as in the figure."""
    told = explanation(steps=4, picture=(80, 60))
    rows, columns = np.mgrid[:60, :80]
    told.image[:] = np.stack([rows * 4, columns * 3, 255 - rows], -1)  # kinder to a JPEG
    file = tmp_path / "page.html"
    file.write_text(make_page(told).replace("</body>", f"{ACTS}</body>").replace("800)", "80)"))
    did = acted(file)
    steps = [2, 3, 4, 4, 3, 0, 0, 2, 1]
    assert [int(step) for step, _ in did["seen"]] == steps
    assert [float(share) for _, share in did["seen"]] == pytest.approx(
        [first_word(told, step) for step in steps], abs=1e-3
    )
    assert (did["playing"], did["then"], did["hash"]) == ("Pause", "Play", "#step=1")
    lit = np.array(did["pixels"]).reshape(-1, did["width"], 4)[..., :3]
    apart = np.abs(
        lit - overlay_attention(told.image, told.steps[0].image, told.centers).astype(int)
    )
    assert apart.mean() < 2
    assert apart.max() < 25


def acted(file: Path, opened_at: str = "#step=2") -> Any:
    """What the script in a page puts out in a browser, by default from its second step on."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=30000",
        "--dump-dom",
    ]
    command = [
        str(BROWSER),
        *flags,
        f"--user-data-dir={file.parent}",
        f"{file.as_uri()}{opened_at}",
    ]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    (output,) = re.findall("<output>(.*)</output>", dumped)
    return json.loads(output)


REASONING_ACTS = """
<script>
function act() {
  const brightest = () => {
    const { data } = stage.context.getImageData(0, 0, stage.width, stage.height);
    let most = 0;
    for (let at = 0; at < data.length; at += 4) if (data[at] > data[most]) most = at;
    return [(most / 4) % stage.width, Math.floor(most / 4 / stage.width)];
  };
  const state = () => [now, $("title").textContent, $("facts").textContent, $("card").className];
  const seen = [state()];
  $("chain").querySelectorAll("button")[1].click(); seen.push(state());
  seen.push($("chain").children[1].ariaCurrent);
  stage.draw(light(now));
  const beyond = brightest();
  $("take").click(); seen.push(state());
  stage.draw(light(now));
  const done = document.createElement("output");
  done.textContent = JSON.stringify({
    seen, beyond, all: brightest(), said: $("said").textContent, follows: (go(1), following()),
    chain: $("chain").textContent, idle: [...document.querySelectorAll("#strip .idle")].length,
    pressed: !$("take").dispatchEvent(
      new KeyboardEvent("keydown", { key: " ", bubbles: true, cancelable: true })
    ),
    offered: getComputedStyle($("beyond")).display, words: $("shares").textContent,
  });
  document.body.append(done);
}
const waiting = setInterval(() => { if (now >= 0) { clearInterval(waiting); act(); } }, 50);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_the_reasoning_in_a_browser(tmp_path: Path) -> None:
    """It opens on the picture; the chain leads to steps, and resting maps come off and on."""
    told = explanation(
        steps=3, picture=(80, 60), grid=(3, 4), first=None, question="red ball", resting=True
    )
    told.image[:] = 128
    for step, cell, word in zip(told.steps, ((0, 0), (1, 1), (2, 3)), (0, 0, 1), strict=True):
        assert step.words is not None
        assert step.resting is not None
        step.words[:] = np.eye(2)[word]
        step.image[:] = 0.1 / 12
        step.image[0, 3] += 0.6
        step.image[cell] += 0.3
        step.resting[:] = 0.1 / 12
        step.resting[0, 3] += 0.9
    for step, change in zip(told.steps, (0.5, 0.05, 0.8), strict=True):
        object.__setattr__(step, "change", change)
    file = tmp_path / "page.html"
    file.write_text(
        make_page(told).replace("</body>", f"{REASONING_ACTS}</body>").replace("800)", "80)")
    )
    did = acted(file, "")
    assert did["seen"] == [
        [0, "the picture", "", ""],
        [3, "step 3 of 3", "30% of attention, 80% of memory", ""],
        "step",
        [3, "step 3 of 3", "80% of memory", ""],
    ]
    assert did["chain"] == f"redball{told.reply.answer}"
    for place, (row, column) in (("beyond", (2, 3)), ("all", (0, 3))):
        x, y = did[place]
        assert abs(x - 80 * told.centers.columns[column]) < 10
        assert abs(y - 60 * told.centers.rows[row]) < 10
    assert did["said"].startswith("Step 3 of 3 reads “ball” (100%)")
    assert "resting" not in did["said"]
    assert (did["follows"], did["idle"]) == (3, 1)  # play passes over the idle step
    assert did["pressed"] is False  # the space bar is left to the box
    assert did["offered"] == "block"
    assert did["words"] == "Attention to each wordred 100.0%, ball 0.0%"  # of step 1


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_what_there_is_not_is_not_offered_in_a_browser(tmp_path: Path) -> None:
    """No box where no resting map is known, and no words where none is attended to."""
    told = explanation(steps=2, words=False, first=None)
    told.image[:] = 128
    file = tmp_path / "page.html"
    acts = """<script>
    const waiting = setInterval(() => {
      if (now < 0) return;
      clearInterval(waiting);
      const shown = ["beyond", "shares", "reasoning", "recall", "controls"].filter(
        (id) => getComputedStyle($(id)).display !== "none"
      );
      const done = document.createElement("output");
      done.textContent = JSON.stringify(shown);
      document.body.append(done);
    }, 50);
    </script>"""
    file.write_text(make_page(told).replace("</body>", f"{acts}</body>"))
    assert acted(file) == ["controls"]


MODULE_ACTS = """
<script>
function act() {
  const seen = [0, 1, 2, 3, 4, 5].map((number) => {
    go(number);
    const rows = [...document.querySelectorAll("#program [aria-current]")];
    return [$("lit").hidden, rows.map((row) => row.dataset.module).join()];
  });
  document.querySelector('#program [data-module="3"]').click();
  const done = document.createElement("output");
  const label = $("strip").children[3].ariaLabel;
  done.textContent = JSON.stringify({ seen, hash: location.hash, label });
  document.body.append(done);
}
const waiting = setInterval(() => { if (now >= 0) { clearInterval(waiting); act(); } }, 50);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
@pytest.mark.parametrize("maps", [True, False])
def test_modules_in_a_browser(maps: bool, tmp_path: Path) -> None:
    """Those without a map show the plain picture; the row of each is marked, and leads to it."""
    file = tmp_path / "page.html"
    file.write_text(
        make_page(written(FIVE, FIVE, maps=maps)).replace("</body>", f"{MODULE_ACTS}</body>")
    )
    did = acted(file)
    plain = [True, *[not maps] * 4, True]
    assert did["seen"] == [[hidden, str(i or "")] for i, hidden in enumerate(plain)]
    assert did["hash"] == "#step=3"
    assert did["label"] == "Module 3 filter_color[red]"


def first_word(told: Explanation, step: int) -> float:
    shares = told.steps[step - 1].words
    assert shares is not None
    return float(shares[0] / shares.max()) ** 0.5 if step else 0.75


def test_the_template_has_a_place_for_everything() -> None:
    places = set(re.findall(r"\{\{(\w+)\}\}", page.TEMPLATE.read_text("utf-8")))
    assert places == {
        *("question", "length", "aspect", "picture", "panel", "panels"),
        *("answer", "likeliest", "unknown", "program", "data"),
    }
