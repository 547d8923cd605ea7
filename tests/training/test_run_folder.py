"""A run may be stopped at any moment, by anything, and goes on as if it had not been."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from broken_off import (
    StoppedAfter,
    assert_no_failure_matters,
    die_in_a_save,
    learn,
    process,
    room_for,
    save_for_ever,
)
from macnet.checkpoint import load_trained, read_checkpoint, write_checkpoint
from macnet.errors import InputError
from macnet.files import locked_folder
from macnet.signals import PATIENCE, Interrupts
from macnet.training import trainer as trainer_module
from macnet.training.loop import Loop
from macnet.training.plan import TrainingPlan
from tiny_training import SMALL, assert_equal, plan, trainer

MADE: dict[str, Any] = {
    "optimizer": "muon",
    "shift": 2,
    "schedule": "authors",
    "ema_warmup": True,
}
SHORT: dict[str, Any] = {
    "epochs": 2 / 3,
    "validate_every": 1 / 3,
}  # two steps, each of them validated


@pytest.fixture(autouse=True)
def _no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A curve takes longer to draw than these runs."""
    monkeypatch.setattr(trainer_module, "draw_curve", lambda *_: None)


@pytest.fixture(scope="module")
def made() -> TrainingPlan:
    """Of four epochs, with dropout, pictures moved, a moving average, the learning rate by loss."""
    return plan(**MADE)


@pytest.fixture(scope="module")
def unbroken(made: TrainingPlan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    trainer(folder, made).train()
    return folder


# --- killed ----------------------------------------------------------------------------------


def test_killed_at_random_and_resumed(made: TrainingPlan, unbroken: Path, tmp_path: Path) -> None:
    folder, chance = tmp_path / "run", random.Random(1)
    for step in (1, 4, 4, 9):
        running = process(learn, folder, made, save_every=0)
        wait_for(partial(is_recorded, folder, step))
        time.sleep(chance.uniform(0, 0.06))  # as long as a step takes and a half
        running.kill()
        running.join()
        assert running.exitcode == -signal.SIGKILL
    trainer(folder, made).train(resume=True)
    assert_equal(folder, unbroken)


def is_recorded(folder: Path, step: int) -> bool:
    return f'"step": {step},' in recorded(folder)


def recorded(folder: Path) -> str:
    path = folder / "log.jsonl"
    return path.read_text() if path.exists() else ""


def wait_for(found: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("which", [0, 1, 2, 7])
def test_killed_in_a_save(which: int, made: TrainingPlan, unbroken: Path, tmp_path: Path) -> None:
    """As it begins, before the first checkpoint, between best and last, in a later one."""
    folder = tmp_path / "run"
    for _ in range(2):  # the second time from where the first left it
        running = process(die_in_a_save, which, folder, made)
        running.join()
        assert running.exitcode == -signal.SIGKILL
        assert [path for path in folder.iterdir() if path.name.endswith(".part")]
    trainer(folder, made).train(resume=True)
    assert_equal(folder, unbroken)
    assert not [path for path in folder.iterdir() if path.name.endswith(".part")]


# --- failed ----------------------------------------------------------------------------------


def test_failed_at_every_moment_of_every_save(tmp_path: Path) -> None:
    made = plan(**SHORT)
    moments = assert_no_failure_matters(made, tmp_path)
    assert moments >= 3 + 3 * (1 + 3) + 3, "what it is, three saves, and at least one best"


def test_a_full_disk_leaves_the_last_good_one(
    made: TrainingPlan, unbroken: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with StoppedAfter(3), pytest.raises(KeyboardInterrupt):
        trainer(folder, made, save_every=0).train()
    kept = (folder / "last.safetensors").read_bytes()
    with room_for(len(kept) // 2), pytest.raises(OSError, match="large") as failure:
        trainer(folder, made, save_every=0).train(resume=True)
    assert failure.value.filename == str(folder / "last.safetensors")
    assert (folder / "last.safetensors").read_bytes() == kept
    assert {path.name for path in folder.iterdir()} == {
        *("run.json", "log.jsonl", "last.safetensors", "best.safetensors")
    }
    trainer(folder, made).train(resume=True)
    assert_equal(folder, unbroken)


def test_how_often_it_is_saved_changes_nothing(
    made: TrainingPlan, unbroken: Path, tmp_path: Path
) -> None:
    for seconds in (0.0, 0.05):
        folder = tmp_path / str(seconds)
        trainer(folder, made, save_every=seconds).train()
        assert_equal(folder, unbroken)


def test_a_run_that_is_over_stays_as_it_is(made: TrainingPlan, unbroken: Path) -> None:
    before = {path: path.read_bytes() for path in unbroken.iterdir()}
    assert not trainer(unbroken, made).train(resume=True)
    assert {path: path.read_bytes() for path in unbroken.iterdir()} == before


# --- interrupted -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 5, 12])
def test_ctrl_c_saves(steps: int, made: TrainingPlan, unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with StoppedAfter(steps), pytest.raises(KeyboardInterrupt) as stop:
        trainer(folder, made).train()
    assert str(stop.value) == (
        f"stopped after step {steps} and saved to {folder}; the same with `resume` goes on "
        "from there"
    )
    assert read_checkpoint(folder / "last.safetensors").metadata["state"]["step"] == steps
    trainer(folder, made).train(resume=True)
    assert_equal(folder, unbroken)


def test_ctrl_c_does_not_wait_until_meters_are_read(
    made: TrainingPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that is every 40 steps, which may take long."""

    def run(loop: Loop, real: Callable[[Loop], None] = Loop.run) -> None:
        loop._read_every = loop._log_every = 40
        real(loop)

    monkeypatch.setattr(Loop, "run", run)
    with StoppedAfter(1), pytest.raises(KeyboardInterrupt, match="stopped after step 1 and saved"):
        trainer(tmp_path / "run", made).train()


def test_a_signal_from_outside(made: TrainingPlan, unbroken: Path, tmp_path: Path) -> None:
    folder, end = tmp_path / "run", tmp_path / "run.end"
    running = process(learn, folder, made)
    wait_for(lambda: recorded(folder))
    os.kill(running.pid or 0, signal.SIGTERM)
    running.join()
    assert end.read_text().startswith("KeyboardInterrupt: stopped after step ")
    trainer(folder, made).train(resume=True)
    assert_equal(folder, unbroken)


def test_three_quick_ctrl_c_are_one() -> None:
    """The second and the third do not keep what the first asked for from being saved."""
    with Interrupts() as interrupts:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
    assert interrupts.asked


def test_a_late_ctrl_c_does_not_wait(made: TrainingPlan, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    running = process(save_for_ever, folder, made)
    wait_for(lambda: recorded(folder))
    os.kill(running.pid or 0, signal.SIGINT)
    wait_for(folder.with_suffix(".saving").exists)
    time.sleep(1.5 * PATIENCE)  # counted from when the first was handled, which may be later
    os.kill(running.pid or 0, signal.SIGINT)
    running.join(10)
    assert not running.is_alive()
    assert folder.with_suffix(".end").read_text() == "KeyboardInterrupt: "


# --- refused ---------------------------------------------------------------------------------


def test_a_folder_in_use(made: TrainingPlan, tmp_path: Path) -> None:
    with locked_folder(tmp_path), pytest.raises(InputError, match="another run is at work here"):
        trainer(tmp_path, made).train()


def test_a_folder_of_something_else(made: TrainingPlan, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="not empty, and holds no run; choose another `out`"):
        trainer(tmp_path, made).train(resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.fixture
def begun(made: TrainingPlan, tmp_path: Path) -> Iterator[Path]:
    """A run of a few steps, of which nothing may change."""
    folder = tmp_path / "run"
    with StoppedAfter(4), pytest.raises(KeyboardInterrupt):
        trainer(folder, made).train()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    yield folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_is_not_started_twice(made: TrainingPlan, begun: Path) -> None:
    with pytest.raises(InputError, match="it holds a run already; go on with it with `resume`"):
        trainer(begun, made).train()


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"lr": 1e-5}, r"recipe\.lr is 0.003 there and 1e-05 here; choose"),
        ({"seed": 2}, r"seed is 0 there and 2 here; choose"),
        ({"preset": "reference"}, r"preset is 'paper' there and 'reference' here \(and \d+ more\)"),
        ({"model": {**SMALL, "p": 3}}, r"model\.p is 2 there and 3 here; choose"),
    ],
)
def test_a_run_of_another_configuration(
    changes: dict[str, Any], difference: str, begun: Path
) -> None:
    other = plan(**{**MADE, **changes})
    with pytest.raises(InputError, match=f"it holds a run of another configuration: {difference}"):
        trainer(begun, other).train(resume=True)


def test_a_run_that_failed_before_a_checkpoint_is_started_anew(
    made: TrainingPlan, unbroken: Path, tmp_path: Path
) -> None:
    """There is nothing to lose: another plan may take the folder, and none needs to resume."""
    with pytest.raises(InputError, match=r"the loss was .* training will not recover"):
        trainer(tmp_path, plan(lr=1e9, clip=0)).train()
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "log.jsonl"}
    trainer(tmp_path, made).train()
    assert_equal(tmp_path, unbroken)
    assert (tmp_path / "run.json").read_bytes() == (unbroken / "run.json").read_bytes()


def test_what_another_program_calls_a_run_is_left_alone(made: TrainingPlan, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"seed": 3}')
    for resume in (False, True):
        with pytest.raises(InputError, match="it holds a run"):
            trainer(tmp_path, made).train(resume=resume)
    assert (tmp_path / "run.json").read_text() == '{"seed": 3}'


@pytest.mark.parametrize("content", ["[]", "{", "", '"run"'])
def test_a_damaged_description(content: str, made: TrainingPlan, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json: (it describes no run|not JSON)"):
        trainer(tmp_path, made).train(resume=True)


def test_a_checkpoint_of_another_run(made: TrainingPlan, unbroken: Path, tmp_path: Path) -> None:
    folder, last = tmp_path / "run", tmp_path / "run/last.safetensors"
    other = plan(**SHORT, model={"d": 8, "p": 2, "embedding": 8})
    trainer(folder, other).train()
    content = last.read_bytes()
    (folder / "best.safetensors").rename(last)
    with pytest.raises(InputError, match=r"last.safetensors: training cannot go on from it"):
        trainer(folder, other).train(resume=True)
    last.write_bytes((unbroken / "last.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"last.safetensors: it is of a run of another config"):
        trainer(folder, other).train(resume=True)
    last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=r"last.safetensors: it is damaged; its content does not"):
        trainer(folder, other).train(resume=True)


# --- what is kept ----------------------------------------------------------------------------


def test_checkpoints_hold_the_metadata_of_the_run(made: TrainingPlan, unbroken: Path) -> None:
    last, best = (read_checkpoint(unbroken / f"{name}.safetensors") for name in ("last", "best"))
    assert json.loads((unbroken / "run.json").read_text()).items() <= last.metadata.items()
    assert last.metadata["preset"] == best.metadata["preset"] == "paper"
    assert last.metadata["recipe"]["schedule"] == "authors"
    assert last.metadata["vocabulary"] == best.metadata["vocabulary"]
    assert last.metadata["state"]["step"] == 12
    assert best.metadata["accuracy"]["overall"] == last.metadata["state"]["best_accuracy"]
    kinds = {name.partition("/")[0] for name in last.tensors}
    assert kinds == {"network", "ema", "optimizer", "random", "meters"}
    assert load_trained(unbroken).weights.keys() == {
        name.removeprefix("network/") for name in last.tensors if name.startswith("network/")
    }


def test_several_checkpoints_of_one_name(tmp_path: Path) -> None:
    """A new one takes the place of the old one, whole."""
    path = tmp_path / "last.safetensors"
    for number in range(3):
        write_checkpoint(path, {"number": number}, {"x": torch.full((5,), number)})
        assert read_checkpoint(path).metadata["number"] == number
        assert [*tmp_path.iterdir()] == [path]
