"""What people are shown: all of it, in its place, and beside the right numbers of the paper."""

from __future__ import annotations

import errno
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from asked_data import asked, dataset_of, ids
from macnet.clevr.families import QUESTION_FAMILIES
from macnet.data.question_arrays import TYPES, UNKNOWN
from macnet.data.vocab import ANSWERS
from macnet.evaluation import report
from macnet.evaluation.accuracy import Proportion, Results, measure
from macnet.evaluation.report import show, summary_line, write_predictions
from macnet.models import presets
from macnet.models.registry import SYSTEMS
from macnet.paper import TABLE_1, TABLE_2, find_published

ROOT = Path(__file__).parents[2]
PAPER = ROOT.parent / "shared/paper/compositional_attention_networks.tex"

ROWS = [
    asked("yes" if n % 3 else "2", TYPES[n % len(TYPES)], steps=2 + n % 20, family=n % 90)
    for n in range(540)
]
GIVEN = ids(*("no" if n % 5 == 0 else "yes" if n % 3 else ("2", "3")[n % 2] for n in range(540)))


def results(origin: str) -> Results:
    return measure(dataset_of(ROWS, origin=origin), GIVEN)


def of_people(origin: str = "CLEVR-Humans") -> Results:
    rows = [asked("yes"), asked("no"), asked("red"), asked("3")]
    return measure(dataset_of(rows, origin=origin), ids("yes", "no", "blue", "3"))


def shown(
    results: Results, width: int | None = 120, row: str = "MAC", share: float | None = 1
) -> list[str]:
    """The lines of a terminal so wide, of a network that learned from a share of the questions."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, force_terminal=True)
    show(results, row=row, what="val", paper=find_published(row, share), console=console)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    return [line.rstrip() for line in plain.splitlines()]


def cells(lines: list[str], name: str) -> list[str]:
    (line,) = (line for line in lines if re.match(rf" +{name}  ", line))
    return re.split(r"  +", line.strip())


@pytest.mark.parametrize("width", [80, 120])
def test_ours_stands_beside_the_papers_where_the_set_is_clevr(width: int) -> None:
    lines = shown(results("CLEVR"), width)
    assert max(map(len, lines)) <= width
    assert lines[0] == "MAC on val"
    assert cells(lines, "Overall")[-1] == "98.9"
    assert cells(lines, "Compare Numbers")[-1] == "99.1"
    for name, share in results("CLEVR").groups.items():
        low, high = share.interval
        interval = f"{100 * low:.2f} – {100 * high:.2f}"
        ours = [name, f"{100 * share.value:.2f}", interval, f"{share.total}"]
        assert cells(lines, name)[:4] == ours
    assert cells(shown(results("CLEVR"), row="LSTM"), "Count")[-1] == "41.7"
    assert "In the paper: MAC in table 1." in lines
    # A system that the paper does not know has no such column.
    unknown = shown(results("CLEVR"), row="Something else")
    assert len(cells(unknown, "Count")) == 4
    assert report.NO_NUMBER in unknown


def test_an_ablated_network_stands_beside_its_own_row() -> None:
    lines = shown(results("CLEVR"), row="w/ memory gate")
    assert cells(lines, "Overall")[-1] == "99.4"
    assert len(cells(lines, "Count")) == 4
    assert "In the paper: w/ memory gate in table 2." in lines
    tuned = shown(of_people(), row="w/ memory gate")
    assert len(cells(tuned, "Overall")) == 4
    assert report.NO_NUMBER in tuned


def test_a_tenth_of_the_data_stands_beside_the_papers_tenth() -> None:
    for row, number in (("MAC", "84.5"), ("gate bias 1", "68.5")):
        lines = shown(results("CLEVR"), row=row, share=0.1)
        assert cells(lines, "Overall")[-1] == number
        assert len(cells(lines, "Count")) == 4
        assert f"In the paper: {row} in table 2, trained on 10% of CLEVR." in lines
    for row, share in (("MAC", 0.25), ("MAC", None), ("LSTM", 0.1)):
        assert len(cells(shown(results("CLEVR"), row=row, share=share), "Overall")) == 4


@pytest.mark.parametrize("origin", ["generated", "CoGenT", "unknown"])
def test_other_sets_never_stand_beside_clevrs_numbers(origin: str) -> None:
    lines = shown(results(origin))
    assert len(cells(lines, "Overall")) == 4
    assert not any("paper," in line or "n the paper:" in line for line in lines)
    assert report.NO_NUMBER not in lines
    assert any("do not compare" in line for line in lines) == (origin == "generated")


@pytest.mark.parametrize("width", [80, 120])
def test_peoples_questions_have_two_numbers_and_no_columns(width: int) -> None:
    lines = shown(of_people(), width)
    assert cells(lines, "Overall")[-2:] == ["57.4", "81.5"]
    assert not any("Count" in line or "famil" in line or "steps" in line for line in lines)
    assert any(re.match(r" +blue for red +1", line) for line in lines)
    assert len(cells(shown(of_people(), row="N2NMN*"), "Overall")) == 4


def test_the_rest_is_there_too() -> None:
    lines = shown(results("CLEVR"), 120)
    found = results("CLEVR")
    for length, share in found.lengths.items():
        start = rf" +{length} +{100 * share.value:.2f} +{share.total}\b"
        assert any(re.match(start, line) for line in lines)
    off = found.off_by_one
    assert (off.correct, off.total) == (72, 108)  # of 180 numbers, 36 became "no" and 72 "3"
    assert "Of 108 wrong counts, 72 are off by one (66.67%)." in lines
    assert cells(lines, "1") == ["1", "0", "72", "72"]
    assert cells(lines, "no number") == ["no number", "36"]
    right, given, times = found.confusions()[0]
    assert any(re.search(rf"  {given} for {right} +{times}$", line) for line in lines)
    (first,) = (i for i, line in enumerate(lines) if line == "The weakest of 90 families")
    values = [float(line.split()[1]) for line in lines[first + 4 : first + 14]]
    assert values == sorted(values)
    assert values[0] == round(100 * min(share.value for share in found.families.values()), 2)


def test_counts_are_off_by_so_much_and_too_low_or_too_high() -> None:
    rows = [asked("5", "count") for _ in range(8)]
    far = measure(dataset_of(rows), ids("4", "4", "6", "3", "2", "9", "yes", "5"))
    lines = shown(far)
    (first,) = (i for i, line in enumerate(lines) if line == "How far wrong counts are off")
    assert [line.split() for line in lines[first + 4 : first + 8]] == [
        ["1", "2", "1", "3"],
        ["2", "1", "0", "1"],
        ["3", "or", "more", "1", "1", "2"],
        ["no", "number", "1"],
    ]
    assert "Of 7 wrong counts, 3 are off by one (42.86%)." in lines


def test_every_family_has_an_example() -> None:
    for family in QUESTION_FAMILIES:
        text = report._family_example(family.number).plain
        assert text.endswith("?")
        assert "%" not in text
        assert set(re.findall(r"<(\w)>", text)) == {
            slot for node in family.nodes for slot in node.slots
        }


def test_a_file_gets_lines_that_nothing_has_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    paper = find_published("MAC", 1)
    show(results("CLEVR"), row="MAC", what="a/very/long/path" * 10, paper=paper)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "MAC on " + "a/very/long/path" * 10
    assert lines[1:] == shown(results("CLEVR"), 1000)[1:]
    assert len(cells(lines, "Overall")) == 5


def test_words_that_look_like_markup_are_shown_as_they_are() -> None:
    odd = replace(of_people(), answers=tuple(f"[{word}] :{word}:" for word in ANSWERS))
    assert any("[blue] :blue: for [red] :red:" in line for line in shown(odd))
    assert shown(odd, row="[bold]x")[0] == "[bold]x on val"


def test_one_line() -> None:
    made_up = replace(
        results("CLEVR"),
        overall=Proportion(8712, 10_000),
        groups={
            name: Proportion(right, 1000)
            for name, right in zip(results("CLEVR").groups, (751, 902, 850, 913, 888), strict=True)
        },
    )
    wanted = (
        "val 87.12% | Count 75.1, Exist 90.2, Compare Numbers 85.0, Query Attribute 91.3, "
        "Compare Attribute 88.8"
    )
    assert summary_line(made_up, "val") == wanted
    assert summary_line(of_people(), "val") == "val 75.00%"


# --- the paper -------------------------------------------------------------------------------


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's text is not here")
def test_table_1_is_the_papers() -> None:
    text = PAPER.read_text()
    table = text[: text.index(r"\end{tabular}", text.index(r"\label{tab:table1}"))]
    table = table[table.index(r"\label{tab:table1}") :]
    found: dict[str, list[str]] = {}
    for line in table.splitlines():
        first, *numbers = re.sub(r"\\\\.*", "", line).split("&")
        if len(numbers) == 8 and re.search(r"\d", numbers[0]):
            name = re.sub(r"\\citep\{.*?\}|\\tiny|\\textbf|[{}$^]", "", first)
            name = name.replace(r"\dag", "†").replace(r"\ddag", "‡").strip()
            found[name] = [re.sub(r"\\textbf|[{} ]", "", number) for number in numbers]
    assert list(found) == list(TABLE_1)
    for name, row in TABLE_1.items():
        humans = ["-", "-"] if row.humans is None else [f"{value:.1f}" for value in row.humans]
        assert found[name] == [f"{v:.1f}" for v in (row.overall, *row.columns)] + humans


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's text is not here")
def test_table_2_is_the_papers() -> None:
    table = PAPER.read_text().partition(r"\label{tab:table2}")[2].partition(r"\end{tabular}")[0]
    found = {}
    for line in table.splitlines():
        first, *numbers = line.replace(r"\\", "").split("&")
        if len(numbers) == 2 and re.search(r"\d", numbers[0]):
            label = first.replace(r"$\rightarrow$", "→").replace(r"$\cdot$", "·")
            found[label.replace("$-1$", "−1").strip()] = [number.strip() for number in numbers]
    assert found == {row: [f"{v:.1f}" for v in numbers] for row, numbers in TABLE_2.items()}


def test_table_2_has_the_rows_that_can_be_trained_and_the_numbers_of_the_page() -> None:
    assert list(TABLE_2) == list(presets.ABLATIONS)
    page = (ROOT / "docs/model.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (\d\d\.\d) \| (\d\d\.\d) \|$", page, re.MULTILINE)
    assert {row: (float(full), float(tenth)) for row, full, tenth in rows} == TABLE_2


def test_overall_lies_among_the_columns_and_every_system_has_a_row() -> None:
    for row in TABLE_1.values():
        assert min(row.columns) < row.overall < max(row.columns)
    assert {system.table1_row for system in SYSTEMS.values()} <= set(TABLE_1)


# --- predictions -----------------------------------------------------------------------------


def test_predictions_are_one_answer_a_line(tmp_path: Path) -> None:
    predictions = np.array([*ids("yes", "10", "cylinder"), UNKNOWN, *ids("no")], np.int16)
    write_predictions(tmp_path / "answers.txt", predictions, ANSWERS)
    assert (tmp_path / "answers.txt").read_text() == "yes\n10\ncylinder\n\nno\n"


def test_predictions_are_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answers.txt"
    path.write_text("of an earlier run\n")

    @contextmanager
    def full(part: Path, *_: Any) -> Iterator[io.RawIOBase]:
        class Full(io.RawIOBase):
            def write(self, _: Any) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

        part.touch()
        yield Full()

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(OSError, match=r"answers\.txt"):
        write_predictions(path, ids("yes"), ANSWERS)
    monkeypatch.undo()
    assert path.read_text() == "of an earlier run\n"
    assert list(tmp_path.iterdir()) == [path]


def test_errors_need_not_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(results("generated"), row="MAC", what="val")
    whole = capsys.readouterr().out
    show(results("generated"), row="MAC", what="val", errors=False)
    short = capsys.readouterr().out
    assert whole.startswith(short)
    assert "family" in whole
    assert "family" not in short
