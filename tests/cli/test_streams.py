"""Commands end as other programs do, wherever their output goes and however they are stopped."""

from __future__ import annotations

import io
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from macnet.cli import main, streams
from macnet.signals import Interrupts

HELLO = "−1 → 2 × 3 … – “é” █ │ 红\udc80\n"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", b'-1 > 2 x 3 ~ - "?" # | ??\n'),
        ("latin-1", b'-1 > 2 \xd7 3 ~ - "\xe9" # | ??\n'),
        ("utf-8", HELLO.replace("\udc80", "?").encode()),
    ],
)
def test_signs_that_cannot_be_shown(
    encoding: str, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdout", "stderr"):
        written = io.BytesIO()
        monkeypatch.setattr(sys, name, io.TextIOWrapper(written, encoding, newline="\n"))
        streams.prepare_streams()
        getattr(sys, name).write(HELLO)
        getattr(sys, name).flush()
        assert written.getvalue() == expected


def test_without_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["generate", "world", "--train", "1"]) == 2
    told = "macnet: standard output is closed; send it somewhere, such as to /dev/null\n"
    assert capsys.readouterr().err == told
    assert not list(tmp_path.iterdir())


def test_without_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["paint"]) == 2
    sys.stderr.close()
    assert capsys.readouterr().out == "", "where a print would go that finds no stderr"


# --- as processes ----------------------------------------------------------------------------

MACNET = f"{sys.executable} -m macnet"


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (f"{MACNET} --help >/dev/full", 2, "macnet: standard output: no space left; make room whe"),
        (f"{MACNET} --help >&-", 2, "macnet: standard output is closed; send it somewhere"),
        (f"{MACNET} paint 2>&-", 2, ""),
        (f"exec 3>&1; ({MACNET} --help; echo $? >&3) | true", 141, ""),
    ],
)
def test_where_output_goes_nowhere(command: str, code: int, said: str) -> None:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert int(done.stdout or done.returncode) == code
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)


def test_three_quick_ctrl_c() -> None:
    """While modules are imported, and while the first is still heard of."""
    script = (
        "import sys, threading, time; from macnet.cli import main\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'macnet.cli.commands':\n"
        "            print('importing', flush=True)\n"
        "            try: time.sleep(60)\n"
        "            finally: time.sleep(0.3)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "sys.exit(main())"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout
    assert running.stdout.readline() == "importing\n"
    for _ in range(3):
        running.send_signal(signal.SIGINT)
        time.sleep(0.05)
    said = running.communicate(timeout=20)[1]
    assert (running.returncode, said) == (
        130,
        "macnet: stopped; the same command goes on from here\n",
    )


def test_a_late_ctrl_c_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    try:
        ctrl_c = streams.CtrlC()
        monkeypatch.setattr(Interrupts, "last_time", time.monotonic())
        signal.raise_signal(signal.SIGINT)  # it is the same that made a run save and stop
        monkeypatch.setattr(Interrupts, "last_time", -math.inf)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert not ended
        monkeypatch.setattr(streams, "PATIENCE", 0.0)
        signal.raise_signal(signal.SIGINT)
        assert ended == [130]
        ctrl_c.close()
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
