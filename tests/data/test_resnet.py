"""ResNet-101: the published file's names and shapes, and the same numbers computed without it."""

from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from macnet.data.resnet import (
    PUBLISHED,
    ResNet101,
    fingerprint,
    load_resnet,
    normalize,
    published_shapes,
)
from macnet.errors import InputError
from tiny_resnet import State, literal, random_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet101.pth"
    torch.save(random_weights(3), path)
    return path


def test_names_and_shapes_are_those_of_the_published_file() -> None:
    def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
        parts = ("weight", "bias", "running_mean", "running_var")
        return {f"{name}.{part}": (width,) for part in parts} | {f"{name}.num_batches_tracked": ()}

    expected: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), **norm("bn1", 64)}
    inputs = 64
    for layer, (blocks, width) in enumerate([(3, 64), (4, 128), (23, 256), (3, 512)], start=1):
        for block in range(blocks):
            name, outputs = f"layer{layer}.{block}", 4 * width
            expected[f"{name}.conv1.weight"] = (width, inputs, 1, 1)
            expected[f"{name}.conv2.weight"] = (width, width, 3, 3)
            expected[f"{name}.conv3.weight"] = (outputs, width, 1, 1)
            for k, channels in enumerate((width, width, outputs), start=1):
                expected |= norm(f"{name}.bn{k}", channels)
            if block == 0:
                expected[f"{name}.downsample.0.weight"] = (outputs, inputs, 1, 1)
                expected |= norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    expected |= {"fc.weight": (1000, 2048), "fc.bias": (1000,)}

    found = {name: tuple(shape) for name, shape in published_shapes().items()}
    assert found == expected
    assert len(found) == 626
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    learned = [shape for name, shape in found.items() if not name.endswith(buffers)]
    assert sum(int(np.prod(shape)) for shape in learned) == 44_549_160  # as is published


@pytest.mark.parametrize("stage", [2, 3])
def test_against_a_literal_computation(weights: Path, stage: int) -> None:
    network = load_resnet(weights, stage).double()
    state = {name: array.double() for name, array in torch.load(weights).items()}
    x = torch.randn(2, 3, 64, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = literal(state, x, stage)
    found = network(x)
    assert found.shape == (2, {2: 512, 3: 1024}[stage], 64 >> stage + 1, 96 >> stage + 1)
    assert 0.1 < expected.std() < 100  # or the next line would say little
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_it_is_only_for_use(weights: Path) -> None:
    network = load_resnet(weights, 2)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    before = fingerprint(network)
    mean = network.get_buffer("bn1.running_mean").clone()
    network(torch.randn(1, 3, 32, 32))
    assert torch.equal(network.get_buffer("bn1.running_mean"), mean)
    assert fingerprint(network) == before


def test_files_of_every_kind_are_the_same_network(weights: Path, tmp_path: Path) -> None:
    state: State = torch.load(weights)
    expected = fingerprint(load_resnet(weights, 2))
    old = {name: array for name, array in state.items() if "num_batches_tracked" not in name}
    torch.save(old, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    full = dict(state)
    for name, shape in published_shapes().items():
        full.setdefault(name, torch.zeros(shape))  # what lies behind the stage
    torch.save(full, tmp_path / "full.pth")
    save_file(state, tmp_path / "weights.safetensors")
    for name in ("old.pth", "full.pth", "weights.safetensors"):
        assert fingerprint(load_resnet(tmp_path / name, 2)) == expected
    assert fingerprint(load_resnet(weights, 3)) != expected
    torch.save(random_weights(2, seed=1), tmp_path / "other.pth")
    assert fingerprint(load_resnet(tmp_path / "other.pth", 2)) != expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s.pop("layer1.0.bn1.bias"), "1 of its 144 arrays are missing, first layer1.0"),
        (lambda s: s.clear(), "120 of its 144 arrays are missing, first conv1.weight"),
        (
            lambda s: s.update({"layer2.4.conv1.weight": torch.zeros(1)}),
            "no 'layer2.4.conv1.weight'",
        ),
        (lambda s: s.update({"bn1.bias": torch.zeros(3)}), r"bn1.bias is \(3,\) where \(64,\) is"),
        (lambda s: s.update({"bn1.bias": 3}), r"bn1.bias is int where \(64,\) is expected"),
        (lambda s: s["bn1.bias"].fill_(torch.nan), "bn1.bias holds values that are not finite"),
    ],
)
def test_weights_of_something_else(
    change: Callable[[State], object], expected: str, tmp_path: Path
) -> None:
    state = random_weights(2)
    change(state)
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(InputError, match=f"weights.pth: .*{expected}"):
        load_resnet(tmp_path / "weights.pth", 2)


def test_files_that_are_no_weights(weights: Path, tmp_path: Path) -> None:
    def complaint(path: Path) -> str:
        with pytest.raises(InputError) as raised:
            load_resnet(path, 2)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    assert complaint(tmp_path / "nowhere.pth").endswith("nowhere.pth: there is no such file")
    assert complaint(tmp_path).endswith("this is a folder, not a file")
    content = weights.read_bytes()
    save_file({"a": torch.zeros(9)}, tmp_path / "whole.safetensors")
    damaged = {
        "cut.pth": content[: len(content) // 2],
        "empty.pth": b"",
        "text.pth": b"these are the weights",
        "cut.safetensors": (tmp_path / "whole.safetensors").read_bytes()[:-5],
        "empty.safetensors": b"",
    }
    for name, data in damaged.items():
        (tmp_path / name).write_bytes(data)
        assert f"{name}: it cannot be read as weights saved by" in complaint(tmp_path / name)
    torch.save(ResNet101, tmp_path / "code.pth")  # a class, which would have to be imported
    assert "cannot be read as weights" in complaint(tmp_path / "code.pth")
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    assert "it holds no weights by name" in complaint(tmp_path / "list.pth")


def test_without_a_network_a_file_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(url: str, **_: object) -> State:
        assert url == PUBLISHED
        raise URLError("Name or service not known")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", unreachable)
    with pytest.raises(
        InputError, match=r"cannot be downloaded .*; give a file of them as `weights`"
    ):
        load_resnet(None, 3)


def test_with_a_network_the_published_weights_are_used(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(url: str, **options: object) -> State:
        assert options == {"map_location": "cpu", "check_hash": True, "weights_only": True}
        state: State = torch.load(weights)
        return state

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", fetch)
    assert fingerprint(load_resnet(None, 3)) == fingerprint(load_resnet(weights, 3))


def test_both_normalisations() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    mean = np.array([0.485, 0.456, 0.406])
    for name, last in (("public", 0.224), ("imagenet", 0.225)):
        std = np.array([0.229, 0.224, last])
        expected = ((pictures / 255 - mean) / std).transpose(0, 3, 1, 2)
        found = normalize(torch.from_numpy(pictures), name)  # type: ignore[arg-type]
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
