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
from macnet.explain.reply import Explanation
from programs_written import FIVE, written


@settings(max_examples=20, deadline=None)
@given(
    steps=st.integers(1, 16),
    words=st.booleans(),
    gate=st.booleans(),
    first=st.sampled_from([None, 0, 1]),
    seed=st.integers(0, 99),
)
def test_all_that_was_thought_is_there(
    steps: int, words: bool, gate: bool, first: int | None, seed: int
) -> None:
    told = explanation(steps=steps, words=words, gate=gate, first=first, seed=seed)
    text = make_page(told)
    data, parsed = data_of(text), Parsed(text)
    assert data["words"] == QUESTION.lower().split()
    assert len(data["steps"]) == steps
    for step, look in zip(data["steps"], told.steps, strict=True):
        assert step["gate"] == look.gate
        for name in ("words", "image", "self_attention"):
            thought = getattr(look, name)
            if thought is None:
                assert step[name] is None
            else:
                assert np.allclose(step[name], thought, atol=1e-5)
    (slider,) = (tag for tag in parsed.all("input") if tag["type"] == "range")
    assert (slider["min"], slider["max"]) == ("0", str(steps))
    assert parsed.text["title"] == parsed.text["h1"] == QUESTION
    shown = [f"{share:.1%}" for share in told.reply.probabilities.values()]
    assert [share for share in shown[:5] if share not in text] == []
    assert len(parsed.all("li")) == 5


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
    assert all(tag.get("aria-label") for name in ("button", "input") for tag in parsed.all(name))
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
    look.image[0, -1], look.image[2, 0] = 0.8, 0.2
    (step,) = data_of(make_page(told))["steps"]
    assert step["description"] == (
        "Step 1 of 1 reads “ball” (75%) and “red” (25%), looks at the upper right (80%) and keeps "
        f"{look.gate:.0%} of its memory."
    )
    told = explanation(steps=2, first=0, words=False, gate=False, grid=(3, 3))
    told.steps[1].image[:] = np.diag([0, 1, 0])
    recalled = told.steps[1].self_attention
    assert recalled is not None
    recalled[:] = 0.9, 0.1
    assert data_of(make_page(told))["steps"][1]["description"] == (
        "Step 2 of 2 looks at the middle (100%) and recalls the beginning (90%)."
    )


# --- in a browser ----------------------------------------------------------------------------

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
ACTS = """
<script>
const seen = [], saw = () => seen.push([
  $("step").value, $("words").children[0].style.getPropertyValue("--share"),
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


def acted(file: Path) -> Any:
    """What the script in a page puts out in a browser, from its second step on."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=3000",
        "--dump-dom",
    ]
    command = [str(BROWSER), *flags, f"--user-data-dir={file.parent}", f"{file.as_uri()}#step=2"]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    (output,) = re.findall("<output>(.*)</output>", dumped)
    return json.loads(output)


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
    return float(shares[0] / shares.max()) if step else 0.0


def test_the_template_has_a_place_for_everything() -> None:
    places = set(re.findall(r"\{\{(\w+)\}\}", page.TEMPLATE.read_text("utf-8")))
    assert places == {
        *("question", "length", "aspect", "picture", "panel", "panels"),
        *("answer", "likeliest", "unknown", "program", "data"),
    }
