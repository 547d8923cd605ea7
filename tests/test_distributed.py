"""Two processes, each with half of every batch, learn what one learns with all of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import killed_worker
from macnet import distributed
from macnet.checkpoint import read_checkpoint
from macnet.errors import InputError
from macnet.training.plan import TrainingPlan
from processes import in_processes, warm
from tiny_training import CALM, TINY, assert_equal, plan, result, small_and_quick, trainer

# A residual block is nothing at first, and so are its gradients. What is nearly nothing is
# rounding, and Adam, whose first steps ask only for signs, would learn that; Muon does not.
PLAIN = {**CALM, "blocks": (0, 0, 0)}


def plans() -> dict[str, TrainingPlan]:
    """All without dropout, which each process draws for itself, but the last."""
    return {
        "mac": plan(model=PLAIN, optimizer="muon", epochs=3, schedule="authors", clip=1),
        "stops early": plan(model=PLAIN, epochs=40, lr=0.0, patience=2),
        "fillers": plan(model=PLAIN, optimizer="muon", images=2, questions=3, epochs=0.6),
        "one part": plan(model=PLAIN, epochs=1, trainable=("output",)),
        "sa-mlp": plan("sa-mlp", TINY["sa-mlp"], optimizer="muon", epochs=1),
        "rn": plan("rn", {**TINY["rn"], "dropout": 0}, optimizer="muon", epochs=1),
        "film-pixels": plan("film-pixels", TINY["film"], optimizer="muon", epochs=1),
        "q-type": plan("q-type", epochs=1),
        "dropout": plan(epochs=3),
    }


def train_all(folder: Path) -> list[str]:
    """What happens to each plan, in this process; of several, only the first has the folder."""
    own = folder if distributed.is_rank_zero() else folder / "not the first"
    with small_and_quick():
        for name, made in plans().items():
            trainer(own / name, made).train()
    refused = []
    for name, resume in (("mac", False), ("dropout", True)):
        with pytest.raises(InputError) as failure:
            trainer(own / name, plan(lr=5.0)).train(resume=resume)
        refused.append(str(failure.value).replace(str(folder), "."))
    return refused


def failures() -> list[str]:
    """What the first process fails on, and what it makes."""

    def fail(error: Exception) -> Callable[[], None]:
        def raised() -> None:
            raise error

        return raised

    found = []
    for error in (InputError("no"), OSError(28, "No space left on device", "last")):
        with pytest.raises(type(error)) as failure:
            distributed.from_rank_zero(fail(error))
        found.append(repr(failure.value))
    return [*found, distributed.from_rank_zero(lambda: f"of {distributed.rank()}")]


def both(folder: Path) -> tuple[list[str], list[str], list[int]]:
    mine = torch.tensor([distributed.rank() + 1, 10])
    assert distributed.all_reduce_sum(mine) is mine
    return (
        train_all(folder),
        failures(),
        [*mine.tolist(), *distributed.all_gather(distributed.rank())],
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("two")
    return folder, in_processes(both, folder)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    train_all(folder)
    return folder


def learned(run: Path) -> dict[str, Tensor]:
    """The weights and their average."""
    tensors = read_checkpoint(run / "last.safetensors").tensors
    return {name: tensor for name, tensor in tensors.items() if name.startswith(("network", "ema"))}


@pytest.mark.parametrize("name", ["mac", "stops early", "fillers", "one part"])
def test_two_are_as_one(name: str, one: Path, two: tuple[Path, list[Any]]) -> None:
    """MAC from pixels, whose batch normalisation is over both shares.

    Seen after nine steps in float32: losses off by 1.3e-7 of themselves, gradients by 6e-7, weights
    by 4.6e-6 of their norm; with fillers, by up to 1.9e-7, 2.2e-6 and 5.6e-6.
    """
    (_, curve), (_, their_curve) = (result(folder / name) for folder in (one, two[0]))
    assert their_curve == nearly(curve, 1e-5)
    wanted, found = (learned(folder / name) for folder in (one, two[0]))
    assert wanted.keys() == found.keys()
    for tensor, value in wanted.items():
        off = (found[tensor] - value).double().norm()
        assert off <= 1e-4 * value.double().norm(), (tensor, off / value.double().norm())


@pytest.mark.parametrize("name", ["sa-mlp", "rn", "film-pixels"])
def test_other_systems_learn_in_two_processes_as_in_one(
    name: str, one: Path, two: tuple[Path, list[Any]]
) -> None:
    """Losses and variances; a bias before a normalisation has no gradient but rounding."""
    (_, curve), (_, their_curve) = (result(folder / name) for folder in (one, two[0]))
    assert their_curve == nearly(curve, 1e-4)
    wanted, found = (learned(folder / name) for folder in (one, two[0]))
    variances = [tensor for tensor in wanted if tensor.endswith("running_var")]
    assert variances
    for tensor in variances:
        torch.testing.assert_close(found[tensor], wanted[tensor], rtol=1e-3, atol=1e-6)


def nearly(lines: list[dict[str, Any]], rel: float) -> list[dict[str, Any]]:
    """Lines of a record whose numbers may be off by a share of themselves."""
    return [
        {k: pytest.approx(v, rel=rel) if isinstance(v, float) else v for k, v in line.items()}
        for line in lines
    ]


def test_early_stopping_agrees(two: tuple[Path, list[Any]]) -> None:
    _, lines = result(two[0] / "stops early")
    assert lines[-1]["reason"] == "early stopping"
    assert lines[-1]["epoch"] < 40


def test_each_process_has_its_own_random_numbers(two: tuple[Path, list[Any]]) -> None:
    last = read_checkpoint(two[0] / "dropout/last.safetensors").tensors
    assert not torch.equal(last["random/0/cpu"], last["random/1/cpu"])


def test_counting_is_exact(one: Path, two: tuple[Path, list[Any]]) -> None:
    (wanted, curve), (found, their_curve) = (result(folder / "q-type") for folder in (one, two[0]))
    assert their_curve == nearly(curve, 1e-6), "a sum of losses is a rounded number"
    counts, theirs = ([t for t in ts if t.dtype == torch.int64] for ts in (wanted, found))
    assert [t.sum() for t in counts] == [48, 48], "best and last"
    assert all(map(torch.equal, counts, theirs))


def test_only_rank_zero_writes(two: tuple[Path, list[Any]]) -> None:
    assert {path.name for path in two[0].iterdir()} == {*plans()}


def test_what_rank_zero_refuses_all_refuse(two: tuple[Path, list[Any]]) -> None:
    (first, failed, _), (second, also_failed, _) = two[1]
    assert first == second
    assert first[0].startswith("./mac: it holds a run already")
    assert first[1].startswith("./dropout: it holds a run of another configuration: recipe.")
    assert failed == also_failed == [*failed[:2], "of 0"]
    assert "InputError('no')" in failed[0]
    assert "No space left on device" in failed[1]


def test_sums_and_gatherings(two: tuple[Path, list[Any]]) -> None:
    assert [numbers for _, _, numbers in two[1]] == [[3, 20, 0, 1]] * 2


def test_alone_nothing_is_exchanged() -> None:
    assert (distributed.size(), distributed.rank(), distributed.is_rank_zero()) == (1, 0, True)
    assert distributed.all_gather("x") == ["x"]
    assert failures()[2] == "of 0"
    with distributed.process_group("cpu") as device:
        assert device == torch.device("cpu")


def test_a_gpu_by_its_number_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another is current, what is captured there would be an empty graph."""
    chosen: list[torch.device] = []
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("cpu", "cuda", "cuda:1"):
        with distributed.process_group(name) as device:
            assert device == torch.device(name)
    assert chosen == [torch.device("cuda:1")]


def test_an_environment_that_torchrun_did_not_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match=r"RANK is set .* but WORLD_SIZE is not; start"):
        distributed.process_group("cpu").__enter__()


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "3")
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "4")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"4 processes or more .* which has 2 usable GPUs"):
        distributed.process_group("cuda").__enter__()


LEAVE_GROUP = """
from pathlib import Path
import torch
from macnet.distributed import process_group
with process_group("cpu"):
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    torch.optim.Adam([weight]).step()  # imports torch's compiler
print(*(path.read_text() for path in Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are not listed here")
def test_no_thread_outlives_the_process_group() -> None:
    """One that freed a tensor while Python ended would crash the process."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    command = [*launch, sys.executable, "-c", LEAVE_GROUP]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "python" in done.stdout
    assert "gloo" not in done.stdout


def test_batches_that_cannot_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "size", lambda: 3)
    with pytest.raises(
        InputError, match=r"`recipe\.images` is 4; it must be a multiple of the 3 pr"
    ):
        trainer(tmp_path, plan()).training_data.open(
            plan().recipe, None, seed=0, device=torch.device("cpu"), position=0, workers=0
        )


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Handlers that a test sets are gone after it."""
    before = {number: signal.getsignal(number) for number in signal.Signals}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.mark.usefixtures("own_signals")
def test_a_killed_worker_comes_back(two: tuple[Path, list[Any]], tmp_path: Path) -> None:
    """What `torchrun` calls starts both again, once; they learn what they would have without that.

    `torchrun` itself would start every worker from nothing; `macnet train` is tested with it.
    """
    warm()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        start_method="forkserver",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id="killed",
    )
    elastic_launch(config, killed_worker.train)(tmp_path / "run", plans()["dropout"])
    assert (tmp_path / "run.killed").exists(), "one was killed"
    assert_equal(tmp_path / "run", two[0] / "dropout")
