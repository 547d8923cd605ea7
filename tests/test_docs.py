"""README, CONTRIBUTING and docs: Python runs; commands, links and file names are valid."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from textwrap import dedent
from typing import Any, NamedTuple

import pytest

import macnet
from macnet import devices
from macnet.clevr.generate import generate_world
from macnet.clevr.world import World
from macnet.cli import train
from macnet.cli.commands import COMMANDS, parse
from macnet.data import formats
from macnet.paper import TABLE_1

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
URL = PROJECT["urls"]["Repository"]


class Block(NamedTuple):
    page: str
    code: str


def blocks(language: str) -> list[Block]:
    """The code blocks of all pages, in order; those of lists are indented."""
    block = re.compile(rf"^ *```{language}\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
    return [Block(page.name, dedent(code)) for page in PAGES for code in block.findall(read(page))]


@functools.cache
def read(page: Path) -> str:
    """The text of a page."""
    return page.read_text()


def prose(page: Path) -> str:
    """The text of a page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", read(page), flags=re.DOTALL | re.MULTILINE)


def result(name: str) -> Any:
    """A record of a measurement."""
    return json.loads((ROOT / "results" / name).read_text())


# --- Python ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, sound: Path) -> Path:
    """A folder for the blocks to run in: a clone after `make run`, with HDF5 files of others."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "docs").mkdir()
    shutil.copy(ROOT / "docs/scene.png", folder / "docs")
    generate_world(
        folder / "out/world",
        World(seed=1, width=48, height=32),
        {"train": 8, "val": 0, "test": 0},
        device="cpu",
        workers=0,
    )
    shutil.copy(sound / "vocab.json", folder)
    shutil.copy(sound / "questions.h5", folder / "val_questions.h5")
    return folder


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "block", [pytest.param(b, id=f"{b.page}-{i}") for i, b in enumerate(blocks("python"))]
)
def test_a_block_of_python_runs_as_it_stands(
    block: Block, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clone)
    monkeypatch.setattr(devices, "default_workers", lambda device: 0)  # which take seconds to start
    monkeypatch.setattr(formats, "FORMATS", {**formats.FORMATS})  # to which a block adds one
    small = block.code.replace("width=128, height=128", "width=32, height=32")  # drawn sooner
    exec(compile(small, block.page, "exec"), {"__name__": "__main__"})


def block_with(page: str, name: str) -> str:
    """The Python block of a page that calls this."""
    (block,) = (b for b in blocks("python") if b.page == page and f"{name}(" in b.code)
    return block.code


def test_the_five_lines_of_the_readme_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    lines = block_with("README.md", "macnet.load")
    exec(lines, {})
    answer, probability = capsys.readouterr().out.split()
    assert answer == "blue"
    assert 0 <= float(probability) < 0.01
    assert len(lines.strip().splitlines()) == 5


def test_the_network_of_the_python_page_answers() -> None:
    names: dict[str, Any] = {}
    exec(block_with("python.md", "MACNetwork"), names)
    assert names["logits"].shape == (6, 28)
    assert len(names["steps"]) == 4


# --- commands --------------------------------------------------------------------------------


def commands() -> list[str]:
    """Every line of a shell that calls macnet; a backslash joins it to the next."""
    lines = (
        line.strip().removeprefix("$ ")
        for language in ("sh", "")
        for block in blocks(language)
        for line in block.code.replace("\\\n", " ").splitlines()
    )
    found = (re.sub(r"^torchrun .* -m macnet ", "macnet ", line) for line in lines)
    return [line for line in dict.fromkeys(found) if line.startswith("macnet ")]


@pytest.mark.parametrize("line", commands())
def test_a_command_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is parsed and not carried out, because RUN and DATA stand for files that are not there."""
    # Files are read for the defaults of other flags, and the recipe humans needs one.
    files = re.compile(r"--(from|overrides) \S+ ?|--recipe humans ?")
    configure = train.command

    def configure_without_files(given: list[str], **options: Any) -> Any:
        return configure(shlex.split(files.sub("", shlex.join(given))), **options)

    monkeypatch.setattr(train, "command", configure_without_files)
    assert callable(parse(shlex.split(line, comments=True)[1:]))


def test_there_are_commands_to_understand() -> None:
    assert len(commands()) > 30
    assert {line.split()[1] for line in commands()} >= {*COMMANDS}


# --- links and file names --------------------------------------------------------------------


def links(page: Path) -> list[str]:
    """The targets of a page's links and images."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def local_links() -> Iterator[tuple[Path, str]]:
    """Every link to a file of this repository with its page; in the README they are absolute."""
    host = re.escape(URL.replace("github.com", "raw.githubusercontent.com"))
    ours = re.compile(rf"{re.escape(URL)}/(?:blob|tree)/main/|{host}/main/")
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        for link in links(page):
            local = ours.sub("", link)
            if page == README:
                assert link.startswith("https://"), f"{link}: a package index cannot resolve it"
            if page == README and local != link:
                yield page, local
            elif not link.startswith("https://"):
                yield page, link


def test_links_lead_to_files_and_headings_that_are_there() -> None:
    found = list(local_links())
    assert len(found) > 40
    for page, link in found:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_the_index_lists_every_page_once() -> None:
    listed = re.findall(r"^\| \[(.+\.md)\]\(\1\) \| .+\? \|$", read(ROOT / "docs/index.md"), re.M)
    assert sorted([*listed, "index.md"]) == [page.name for page in PAGES[2:]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """Records lie in results/; code is named from the root, the package, or one of its packages."""
    named = set(re.findall(r"`([\w./-]+\.(?:py|json|txt|toml))`", prose(page)))
    ours = {n for n in named if n.endswith(".py") or n.startswith(("results/", "examples/"))}
    ours |= {n for n in named if re.fullmatch(r"\w+_(h200|cpu|speed|train32|val100)\.json", n)}
    package = ROOT / "src/macnet"
    places = [ROOT, ROOT / "results", package, *(f for f in package.iterdir() if f.is_dir())]
    assert [n for n in sorted(ours) if not any((p / n).is_file() for p in places)] == []


def test_the_readme_maps_the_paper_to_names_that_are_in_the_files() -> None:
    rows = re.findall(r"`(models/\w+\.py)`: ((?:`\w+`(?:, )?)+)", prose(README))
    assert len(rows) > 4
    for file, names in rows:
        code = read(ROOT / "src/macnet" / file)
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^(class {name}\b|{name}\b.*=)", code, re.MULTILINE), (file, name)


def test_the_map_of_the_code_names_every_module() -> None:
    """Those of cli/, kernels/ and systems/ are named by their folder."""
    package, page = ROOT / "src/macnet", read(ROOT / "docs/code.md")
    modules = {path.relative_to(package) for path in package.rglob("[a-z]*.py")}
    unnamed = {m for m in modules if not {"cli", "kernels", "systems", "evaluation"} & {*m.parts}}
    assert [str(m) for m in sorted(unnamed) if f"`{m.name}`" not in page] == []


# --- what the README claims ------------------------------------------------------------------


def test_the_readme_is_short() -> None:
    assert len(read(README).splitlines()) <= 150


def test_the_table_of_the_readme_is_that_of_the_paper_and_of_the_record() -> None:
    cells = [line.strip("|").split("|") for line in read(README).splitlines() if "| " in line]
    rows = {row[0].strip(" *`"): [cell.strip(" *") for cell in row[1:]] for row in cells}
    paper = TABLE_1["MAC"]
    assert rows["MAC, as published"][1:7] == [str(x) for x in (paper.overall, *paper.columns)]

    shipped = result("shipped.json")["measured"]["clevr_val100"]
    low, high = (f"{100 * x:.1f}" for x in shipped["overall"]["interval"])
    accuracies = [shipped["overall"], *shipped["columns"].values()]
    overall, *columns = (f"{100 * x['accuracy']:.1f}" for x in accuracies)
    (ours,) = (row for name, row in rows.items() if name.startswith("macnet`, never trained"))
    assert ours[0] == f"{shipped['overall']['count']:,}"
    assert ours[1].replace("*", "") == f"{overall} ({low}–{high})"
    assert ours[2:7] == columns
    training = result("mac_stream_h200.json")["training"]
    assert ours[7].startswith(f"{training['seconds']:.0f} s")


def test_the_speeds_and_the_accuracy_in_the_text_of_the_readme_are_those_of_the_records() -> None:
    text = " ".join(read(README).split())
    step = result("model_speed_h200.json")["paper"]
    assert f"{step['questions_per_second']:,} questions/s" in text
    assert f"{step['times_the_literal']} times" in text
    generated = result("mac_stream_h200.json")["measured"]["generated test, 15,000 images"][
        "overall"
    ]
    assert f"On {generated['count']:,} generated test questions" in text
    assert f"accuracy is {100 * generated['accuracy']:.2f}%" in text
    made = result("small_cpu.json")["seconds_of_make_run"]
    assert f"takes {made[0]:.0f} to {made[-1]:.0f} s" in text
    small = result("small_cpu.json")["mac"]["0"]
    assert f"in {small['training_seconds']:.0f} s, to answer {small['overall']:.0f}% of" in text
    learned = sorted(result("learn_h200.json")["seconds_to_the_papers_accuracy"])
    assert f"takes {learned[0]:.0f} to {learned[-1]:.0f} seconds" in text
    fed = result("stream_speed_h200.json")["learning"]["questions_per_second_on_the_stream"]
    assert f"{sorted(fed)[1]:,} questions/s" in text
    rendered = (
        result(f"{name}.json")["triton"]["images_per_second"]
        for name in ("render_speed_128_h200", "render_speed_h200")
    )
    assert " / ".join(f"{rate:,}" for rate in rendered) + " images/s" in text
    seconds = sorted(result("shipped.json")["seconds_of_asking"])
    assert f"takes {seconds[len(seconds) // 2]:.1f} s" in text


def test_what_is_said_of_attention_is_in_its_record() -> None:
    measured, text = result("attention.json"), " ".join(read(README).split())
    shown, masked = measured["as_shown"], measured["masking"]["accuracy"]

    def percent(value: float, digits: int = 1) -> str:
        return f"{100 * value:.{digits}f}"

    def pointed_at(reading: str, kind: str, source: str = "network") -> float:
        objects = measured[reading]["objects"][kind]["pointed_at"]
        return float(objects[source]["accuracy"])

    of_some, of_others = (pointed_at("as_shown", kind) for kind in ("referenced", "not referenced"))
    assert f"{of_some:.0%} of the objects that questions refer to are pointed at" in text
    assert f"and {of_others:.0%} of the others" in text
    without, control = (masked[k]["accuracy"] for k in ("objects pointed at", "as many others"))
    assert f"painted out, {without:.0%} of the answers are correct" in text
    assert f"as many others are, {control:.0%}" in text

    page = prose(ROOT / "docs/attention.md").replace("**", "")
    sources = "network", "another question", "random weights"
    for reading, opening in (
        ("as_shown", "beyond resting maps: "),
        ("attention", "all attention: "),
    ):
        for name, kind in ((f"{opening}referents", "unique"), ("members", "counted")):
            row = " | ".join(percent(pointed_at(reading, kind, source)) for source in sources)
            assert f"| {name} | {row} |" in page
    plain, share = measured["attention"], shown["share"]["network"]
    for number, columns in enumerate(
        zip(shown["steps"]["network"], share, plain["steps"]["network"], strict=True), start=1
    ):
        step, beyond, of_all = columns
        cells = [*step.values(), beyond, *of_all.values()]
        assert f"| {number} | {' | '.join(map(percent, cells))} |" in page
    both, order = (shown[name]["network"]["accuracy"] for name in ("both_pointed_at", "order"))
    assert f"both are pointed at in {percent(both)}% of cases" in page
    assert f"the leading one comes first in {percent(order)}%" in page


def test_the_table_of_changes_on_a_fixed_set_is_that_of_the_records() -> None:
    text = prose(ROOT / "docs/training.md").replace("**", "")
    by_variant = defaultdict[str, list[Any]](list)
    for name in ("fixed_set_cpu.json", "fixed_set_long_cpu.json"):
        for run in result(name)["runs"]:
            by_variant[run["variant"]].append(run)
    for runs in by_variant.values():
        overall, count = ([run["test"][name] for run in runs] for name in ("overall", "Count"))
        training = fmean(run["training_accuracy_at_the_end"] for run in runs)
        cells = (
            f"{fmean(overall):.1f} ({min(overall):.1f}–{max(overall):.1f})",
            f"{fmean(count):.1f}",
        )
        assert f"| {' | '.join(cells)} | {training:.1f} |" in text


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["version"]
    assert macnet.__version__ == version
    assert re.search(rf"^version: {re.escape(version)}$", read(ROOT / "CITATION.cff"), re.M)
    assert re.search(rf"^## \[.+{re.escape(version)}", read(ROOT / "CHANGELOG.md"), re.M)
