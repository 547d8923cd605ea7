"""`macnet export`: a run's best network as one small file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import macnet
from macnet.checkpoint import BEST, LAST
from macnet.cli import main
from small_data import sentence
from tiny_networks import write_network


def test_a_file_to_give_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = write_network(tmp_path / "run"), tmp_path / "new" / "mac.safetensors"
    assert main(["export", str(run), str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size / 1e6:.1f} MB\n"
    weights = (run / BEST).stat().st_size
    assert weights / 2 < out.stat().st_size < 0.8 * weights  # what it says of itself is no smaller
    picture = np.zeros((24, 40, 3), np.uint8)
    one, other = (macnet.load(file).ask(picture, "Is it red?") for file in (run, out))
    for answer, share in one.probabilities.items():
        assert abs(share - other.probabilities[answer]) < 1e-3


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_network(tmp_path / "run")
    said = sentence(capsys, "export", run, tmp_path / "mac.pt")
    assert said.endswith("must end in .safetensors")
    said = sentence(capsys, "export", tmp_path / "none", tmp_path / "mac.safetensors")
    assert str(tmp_path / "none") in said
    assert not (tmp_path / "mac.safetensors").exists()
    before = (run / BEST).read_bytes()
    for name in (BEST, LAST):
        assert "choose another" in sentence(capsys, "export", run, run / name)
    assert (run / BEST).read_bytes() == before
    assert not (run / LAST).exists()
