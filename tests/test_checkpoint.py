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

from macnet.data.vocab import ANSWERS
from macnet.errors import InputError
from macnet.models.registry import SYSTEMS
from macnet.training.checkpoint import (
    Checkpoint,
    _checksum,
    load_weights,
    open_trained,
    read_checkpoint,
    share_of,
    write_checkpoint,
    write_halved,
)
from macnet.training.data import Lessons
from macnet.training.trainer import Trainer
from tiny_lessons import SMALL, lessons, plan, same, trainer

ABOUT = {"preset": "paper", "words": ["ü", "<NULL>"], "standing": {"best": 1 / 3}}
TENSORS = {
    "network/weight": torch.arange(12, dtype=torch.float32).view(3, 4) / 7,
    "network/none": torch.zeros(0, 3),
    "optimiser/step": torch.tensor(3.0),
    "random/0/cpu": torch.arange(250, dtype=torch.uint8),
    "counts": torch.tensor([[1 << 40, -1]]),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "last.safetensors"
    write_checkpoint(path, ABOUT, TENSORS)
    return path


def is_as_written(found: Checkpoint) -> bool:
    return found.about == {"format": 1, **ABOUT} and same(found.tensors, TENSORS)


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
        open_trained(path)
    assert [*Path().iterdir()] == [path]


def test_others_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(InputError, match=r"model.safetensors: these weights do not say what they"):
        open_trained(path)
    save_file({"weight": torch.zeros(3)}, path, {"macnet": json.dumps({"format": 1})})
    with pytest.raises(InputError, match=r"model.safetensors: it is damaged"):
        open_trained(path)
    write_checkpoint(path, {"format": 2}, {})
    with pytest.raises(InputError, match=r"model.safetensors: written in format 2, by another"):
        open_trained(path)
    with pytest.raises(InputError, match=r"there is no best.safetensors in it; has it been valid"):
        open_trained(tmp_path)
    with pytest.raises(InputError, match="nothing: there is no such file"):
        open_trained(tmp_path / "nothing")


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
    trained = open_trained(run)
    assert trained.system is SYSTEMS["mac"]
    assert trained.config == replace(plan().model, image="pixels")  # which its pictures decide
    assert trained.vocabulary == lessons().vocabulary
    assert same(trained.network().state_dict(), read_checkpoint(run / "best.safetensors").tensors)
    assert not trained.network().training


def test_what_was_built_and_learned_from_is_recorded(run: Path, tmp_path: Path) -> None:
    """And is known of checkpoints from before it was, which said that all images are features."""
    about, tensors = read_checkpoint(run / "best.safetensors")
    assert about["model"]["image"] == "pixels"
    assert about["experiment"] == {"row": None, "share": 1.0}
    old = {**about, "model": {**about["model"], "image": "features", "channels": 1024}}
    del old["experiment"]
    path = tmp_path / "old.safetensors"
    write_checkpoint(path, old, tensors)
    assert open_trained(path).config == open_trained(run).config
    assert open_trained(path).share == 1
    tenth = {"subsets": [{"by": "question", "share": 0.1, "seed": 0}]}
    write_checkpoint(path, {**old, "data": {**old["data"], "train": tenth}}, tensors)
    assert open_trained(path).share == 0.1


@pytest.mark.parametrize(
    ("train", "share"),
    [
        ({"seed": 1, "width": 128}, 1),  # an endless world
        ({"left out": 0}, 1),
        ({"left out": 3}, None),
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
    assert share_of(train) == share


def test_what_is_for_going_on_is_not_for_evaluation(run: Path) -> None:
    with pytest.raises(InputError, match=r"last.safetensors: it is for going on with training"):
        open_trained(run / "last.safetensors")


def test_weights_of_another_preset_are_refused(run: Path, tmp_path: Path) -> None:
    start, other = open_trained(run), "this is a checkpoint of another configuration"
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
    made = replace(plan(), start=open_trained(run))
    words = lessons().vocabulary.words
    for other, message in (
        ({"words": (*words[:5], *words[6:], words[5])}, "word 5 is '.*', that of the data '.*'"),
        ({"words": words[:-1]}, f"word {len(words) - 1} is '.*', that of the data nothing"),
        ({"tokenising": "clevr-iep"}, "it cuts up texts, or answers, otherwise"),
        ({"answers": ANSWERS[::-1]}, "it cuts up texts, or answers, otherwise"),
    ):
        data = replace(lessons().val, vocabulary=replace(lessons().vocabulary, **other))
        with pytest.raises(InputError, match=f"best.safetensors: .*{message}"):
            Trainer(tmp_path / "run", made, Lessons(data, data), device=torch.device("cpu"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '"format"', "{}", "[" * 100_000])
def test_one_that_says_nonsense_of_itself(content: str, tmp_path: Path) -> None:
    """Its checksum is right: it was not damaged, but made."""
    path = tmp_path / "best.safetensors"
    save_file({}, path, {"macnet": content, "checksum": _checksum(content, {})})
    with pytest.raises(InputError, match=r"best.safetensors: what it says of itself makes no sens"):
        read_checkpoint(path)


@pytest.mark.parametrize("part", ["preset", "model", "fit", "vocabulary", "data"])
@pytest.mark.parametrize("content", [None, 7, "x", [], {"x": 1}])
def test_one_that_describes_no_network(part: str, content: Any, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    about, tensors = read_checkpoint(run / "best.safetensors")
    write_checkpoint(path, {**about, part: content}, tensors)
    with pytest.raises(InputError, match=rf"^{path}: "):
        open_trained(path)


@pytest.mark.parametrize("size", [-1, 10**13, "x", 1.5, None])
def test_one_of_an_impossible_size(size: Any, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "best.safetensors"
    about, tensors = read_checkpoint(run / "best.safetensors")
    write_checkpoint(path, {**about, "fit": {**about["fit"], "vocabulary": size}}, tensors)
    with pytest.raises(InputError, match=r"its words, or answers, are more or fewer than it was"):
        open_trained(path)
    if size != 10**13:
        write_checkpoint(path, {**about, "fit": {**about["fit"], "width": size}}, tensors)
        with pytest.raises(InputError, match=r"it was made for images of no size"):
            open_trained(path)


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
    start = open_trained(run)
    words = start.vocabulary.grown(["is it glossy"], at_least=1)
    assert words.words == (*start.vocabulary.words, "glossy")
    humans = lessons(words)
    fine = replace(plan(epochs=1, lr=0), start=start)
    Trainer(tmp_path / "fine", fine, humans, device=torch.device("cpu")).train()
    tuned = open_trained(tmp_path / "fine")
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
    trained = open_trained(run)
    write_halved(trained, tmp_path / "small.safetensors")
    again = open_trained(tmp_path / "small.safetensors")
    assert again.about == trained.about
    for name, tensor in trained.weights.items():
        half = again.weights[name]
        if tensor.is_floating_point():
            assert half.dtype == torch.float16
            torch.testing.assert_close(half.float(), tensor, rtol=2**-11, atol=2**-25)
        else:
            assert half.equal(tensor)
    assert {w.dtype for w in again.network().parameters()} == {torch.float32}


def test_what_no_half_float_can_hold_is_refused(run: Path, tmp_path: Path) -> None:
    trained = open_trained(run)
    name = next(iter(trained.weights))
    large = {**trained.weights, name: trained.weights[name] + 1e6}
    with pytest.raises(InputError, match=f"{re.escape(name)!s}.*too large for a half float"):
        write_halved(replace(trained, weights=large), tmp_path / "small.safetensors")
    assert not (tmp_path / "small.safetensors").exists()
