"""Checkpoints give back what was written or are refused, whatever befell them; nothing is run."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from macnet import checkpoint
from macnet.checkpoint import (
    FORMAT,
    Checkpoint,
    _checksum,
    export,
    load_trained,
    load_weights,
    read_checkpoint,
    resolve_run,
    train_share,
    write_checkpoint,
)
from macnet.data.vocab import ANSWERS
from macnet.errors import InputError
from macnet.models.registry import SYSTEMS
from macnet.training.trainer import Trainer
from macnet.training.training_data import TrainingData
from tiny_training import SMALL, plan, same, trainer, training_data

METADATA = {"preset": "paper", "words": ["ü", "<NULL>"], "state": {"best": 1 / 3}}
TENSORS = {
    "network/weight": torch.arange(12, dtype=torch.float32).view(3, 4) / 7,
    "network/none": torch.zeros(0, 3),
    "optimizer/step": torch.tensor(3.0),
    "random/0/cpu": torch.arange(250, dtype=torch.uint8),
    "counts": torch.tensor([[1 << 40, -1]]),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "last.safetensors"
    write_checkpoint(path, METADATA, TENSORS)
    return path


def is_as_written(found: Checkpoint) -> bool:
    return found.metadata == {"format": FORMAT, **METADATA} and same(found.tensors, TENSORS)


def test_what_is_written_is_read(written: Path) -> None:
    assert is_as_written(read_checkpoint(written))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damage_anywhere_is_refused_or_harmless(written: Path, data: st.DataObject) -> None:
    sound = written.read_bytes()
    content = bytearray(sound)
    header = 8 + int.from_bytes(sound[:8], "little")
    # Where the header is, a byte can do most harm.
    places = st.integers(0, header) | st.integers(0, len(content) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=3), "places"):
        content[place] ^= data.draw(st.integers(1, 255), "by")
    damaged = written.with_name("damaged.safetensors")
    damaged.write_bytes(content)
    with suppress(InputError):
        found = read_checkpoint(damaged)
        assert is_as_written(found), "a blank of the header may become another blank"
        assert bytes(content[header:]) == sound[header:]
        return
    with pytest.raises(InputError, match=rf"^{damaged}: "):
        read_checkpoint(damaged)


@given(share=st.floats(0, 1, exclude_max=True))
@example(0.0)
@settings(max_examples=40, deadline=None)
def test_one_that_was_cut_short_is_refused(written: Path, share: float) -> None:
    content = written.read_bytes()
    damaged = written.with_name("short.safetensors")
    damaged.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"short.safetensors: it is damaged, or no checkpoint"):
        read_checkpoint(damaged)


class Trap:
    """Whoever unpickles this makes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("sprung",)


@pytest.mark.parametrize("way", ["pickle", "torch"])
def test_a_pickle_is_refused_unread(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("best.safetensors")
    if way == "pickle":
        path.write_bytes(pickle.dumps(Trap()))
    else:
        torch.save({"model": Trap()}, path)
    with pytest.raises(InputError, match=r"^best.safetensors: it is damaged, or no checkpoint"):
        load_trained(path)
    assert [*Path().iterdir()] == [path]


def test_others_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(InputError, match=r"model.safetensors: it has no metadata of macnet"):
        load_trained(path)
    save_file({"weight": torch.zeros(3)}, path, {"macnet": json.dumps({"format": FORMAT})})
    with pytest.raises(InputError, match=r"model.safetensors: it is damaged"):
        load_trained(path)
    write_checkpoint(path, {"format": FORMAT + 1}, {})
    with pytest.raises(InputError, match=r"model.safetensors: it was written in format 3 by anoth"):
        load_trained(path)
    write_checkpoint(path, {"format": 1}, {})
    with pytest.raises(InputError, match=r"model.safetensors: it was written in format 1 by anoth"):
        load_trained(path)
    with pytest.raises(InputError, match=r"there is no best.safetensors in it; has it been valid"):
        load_trained(tmp_path)
    with pytest.raises(InputError, match="nothing: there is no such file"):
        load_trained(tmp_path / "nothing")


def test_one_that_may_not_be_read(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)  # the tests may run as root, who may do anything
    with pytest.raises(PermissionError) as failure:
        read_checkpoint(written)
    assert failure.value.filename == str(written)


# --- networks --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a MAC that has seen three batches."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    trainer(folder, plan(epochs=1)).train()
    return folder


def test_a_trained_network_opens_by_itself(run: Path) -> None:
    trained = load_trained(run)
    assert trained.system is SYSTEMS["mac"]
    assert trained.config == replace(plan().model, image="pixels")  # which its pictures decide
    assert trained.vocabulary == training_data().vocabulary
    assert same(trained.network().state_dict(), read_checkpoint(run / "best.safetensors").tensors)
    assert not trained.network().training


def test_what_was_built_and_learned_from_is_recorded(run: Path, tmp_path: Path) -> None:
    metadata, tensors = read_checkpoint(run / "best.safetensors")
    assert metadata["model"]["image"] == "pixels"
    assert metadata["experiment"] == {"row": None, "share": 1.0}
    old = {**metadata, "model": {**metadata["model"], "image": "features", "channels": 1024}}
    path = tmp_path / "old.safetensors"
    write_checkpoint(path, old, tensors)
    assert load_trained(path).config == load_trained(run).config
    assert load_trained(path).share == 1


@pytest.mark.parametrize(
    ("train", "share"),
    [
        ({"seed": 1, "width": 128}, 1),  # an endless world
        ({"left_out": 0}, 1),
        ({"left_out": 3}, None),
        ({"left_out": 0, "fresh_questions": True}, None),
        ({"subsets": []}, 1),
        ({"subsets": [{"by": "question", "share": 0.25, "seed": 0}]}, 0.25),
        ({"subsets": [{"by": "image", "share": 0.1, "seed": 0}]}, None),
        ({"subsets": 2 * [{"by": "question", "share": 0.1, "seed": 0}]}, None),
        ({"subsets": 7}, None),
        ({"subsets": ["x"]}, None),
        ({"subsets": [{"by": "question", "share": "x"}]}, None),
        (None, None),
        (7, None),
    ],
    ids=str,
)
def test_the_share_of_the_questions(train: object, share: float | None) -> None:
    assert train_share(train) == share


def test_what_is_for_going_on_is_not_for_evaluation(run: Path) -> None:
    with pytest.raises(InputError, match=r"last.safetensors: it is for resuming training"):
        load_trained(run / "last.safetensors")


def test_weights_of_another_preset_are_refused(run: Path, tmp_path: Path) -> None:
    start, other = load_trained(run), "this is a checkpoint of another configuration"
    for made, message in (
        (plan("reference"), f"best.safetensors: the checkpoint has no '.*'; {other}"),
        (plan(model={**SMALL, "d": 20}), f"best.safetensors: '.*' is .* is wanted; {other}"),
    ):
        with pytest.raises(InputError, match=message):
            trainer(tmp_path / made.preset, replace(made, start=start)).train()
    lstm = replace(start, system=SYSTEMS["lstm"])
    with pytest.raises(InputError, match="it is of the system lstm, but mac is trained"):
        trainer(tmp_path / "run", replace(plan(), start=lstm))


def test_words_that_are_not_the_checkpoints_are_refused(run: Path, tmp_path: Path) -> None:
    made = replace(plan(), start=load_trained(run))
    words = training_data().vocabulary.words
    for other, message in (
        ({"words": (*words[:5], *words[6:], words[5])}, "word 5 is '.*', that of the data '.*'"),
        ({"words": words[:-1]}, f"word {len(words) - 1} is '.*', that of the data missing"),
        ({"tokenizer": "clevr-iep"}, "its tokenizer or its answers are not"),
        ({"answers": ANSWERS[::-1]}, "its tokenizer or its answers are not"),
    ):
        data = replace(training_data().val, vocabulary=replace(training_data().vocabulary, **other))
        with pytest.raises(InputError, match=f"best.safetensors: .*{message}"):
            Trainer(tmp_path / "run", made, TrainingData(data, data), device=torch.device("cpu"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '"format"', "{}", "[" * 100_000])
def test_one_that_says_nonsense_of_itself(content: str, tmp_path: Path) -> None:
    """Its checksum is right: it was not damaged, but made."""
    path = tmp_path / "best.safetensors"
    save_file({}, path, {"macnet": content, "checksum": _checksum(content, {})})
    with pytest.raises(InputError, match=r"best.safetensors: its metadata cannot be read"):
        read_checkpoint(path)


@pytest.mark.parametrize("part", ["preset", "model", "data_spec", "vocabulary", "data"])
@pytest.mark.parametrize("content", [None, 7, "x", [], {"x": 1}])
def test_one_that_describes_no_network(part: str, content: Any, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    metadata, tensors = read_checkpoint(run / "best.safetensors")
    write_checkpoint(path, {**metadata, part: content}, tensors)
    with pytest.raises(InputError, match=rf"^{path}: "):
        load_trained(path)


@pytest.mark.parametrize("size", [-1, 10**13, "x", 1.5, None])
def test_one_of_an_impossible_size(size: Any, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    metadata, tensors = read_checkpoint(run / "best.safetensors")
    write_checkpoint(
        path, {**metadata, "data_spec": {**metadata["data_spec"], "vocabulary": size}}, tensors
    )
    with pytest.raises(InputError, match=r"its vocabulary and its data_spec differ in size"):
        load_trained(path)
    if size != 10**13:
        write_checkpoint(
            path, {**metadata, "data_spec": {**metadata["data_spec"], "width": size}}, tensors
        )
        with pytest.raises(InputError, match=r"its data_spec has an impossible size"):
            load_trained(path)


class Reader(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 3)
        self.out = nn.Linear(3, 2)


def test_new_words_grow_the_embedding() -> None:
    torch.manual_seed(0)
    old, new = Reader(5), Reader(5 + 4000)
    kept = {name: tensor.clone() for name, tensor in old.state_dict().items()}
    load_weights(new, old.state_dict(), Path("best"))
    grown: Tensor = new.embedding.weight.detach()
    assert torch.equal(grown[:5], kept["embedding.weight"])
    assert torch.equal(new.out.weight, kept["out.weight"])
    assert grown[5:].std().item() == pytest.approx(0.01, rel=0.03)
    assert abs(grown[5:].mean().item()) < 0.0005
    with pytest.raises(InputError, match=r"best: 'embedding.weight' is \(4005, 3\), but \(5, 3\)"):
        load_weights(old, new.state_dict(), Path("best"))
    with pytest.raises(InputError, match=r"best: 'embedding.weight' is \(\), but \(5, 3\)"):
        load_weights(old, {**kept, "embedding.weight": torch.tensor(1.0)}, Path("best"))


def test_fine_tuning_on_new_words(run: Path, tmp_path: Path) -> None:
    """The vocabulary grows, ids stay; what is trained next knows all of it."""
    start = load_trained(run)
    words = start.vocabulary.extended(["is it glossy"], min_count=1)
    assert words.words == (*start.vocabulary.words, "glossy")
    humans = training_data(words)
    fine = replace(plan(epochs=1, lr=0), start=start)
    Trainer(tmp_path / "fine", fine, humans, device=torch.device("cpu")).train()
    tuned = load_trained(tmp_path / "fine")
    assert tuned.vocabulary == words
    before, after = start.weights, tuned.network().state_dict()
    (name,) = (name for name in before if name.endswith("embedding.weight"))
    assert torch.equal(after[name][:-1], before[name])
    assert after[name][-1].abs().max() < 0.06
    learned = [other for other in before if other != name and "running" not in other]
    assert same({n: after[n] for n in learned if "num_" not in n}, before)


# --- to give away ----------------------------------------------------------------------------


def test_an_exported_network_is_half_as_large_and_nearly_the_same(
    run: Path, tmp_path: Path
) -> None:
    trained = load_trained(run)
    out = tmp_path / "new" / "small.safetensors"
    assert export(run, str(out)) == out
    again = load_trained(out)
    assert again.metadata == trained.metadata
    for name, tensor in trained.weights.items():
        half = again.weights[name]
        if tensor.is_floating_point():
            assert half.dtype == torch.float16
            torch.testing.assert_close(half.float(), tensor, rtol=2**-11, atol=2**-25)
        else:
            assert half.equal(tensor)
    assert {w.dtype for w in again.network().parameters()} == {torch.float32}


def test_what_no_half_float_can_hold_is_refused(run: Path, tmp_path: Path) -> None:
    metadata, tensors = read_checkpoint(run / "best.safetensors")
    name = next(iter(tensors))
    path = tmp_path / "large.safetensors"
    write_checkpoint(path, metadata, {**tensors, name: tensors[name] + 1e6})
    with pytest.raises(InputError, match=f"{re.escape(name)!s}.*too large for a half float"):
        export(path, tmp_path / "small.safetensors")
    assert not (tmp_path / "small.safetensors").exists()


# --- which run -------------------------------------------------------------------------------


class Run:
    """As `macnet.train` returns it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __fspath__(self) -> str:
        return str(self.folder)


def test_a_run_is_a_folder_a_file_a_value_or_none(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    best = run / "best.safetensors"
    for same_run in (run, str(run), best, str(best), Run(run)):
        assert resolve_run(same_run) == best
    assert resolve_run(None) == checkpoint.SHIPPED
    monkeypatch.setattr(checkpoint, "SHIPPED", tmp_path / "mac.safetensors")
    with pytest.raises(InputError, match=r"mac\.safetensors: the network that comes with"):
        resolve_run(None)
