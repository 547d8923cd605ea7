"""Small networks of the systems of table 1, and what is checked of each of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from macnet.data.spec import DataSpec
from macnet.errors import InputError
from macnet.models.encoders import PAD, PixelBackbone
from macnet.models.norm import BatchNorm2d
from system_loops import Convolution, Layer, Norm
from transcription import M, assert_close, gradients, randomized

QUESTIONS = [[3, 1, 8], [5], [2, 7, 7, 4, 1], [6, 2], [8, 1, 1, 3], [4, 5, 2]]
"""Three questions about each of two images, of different lengths."""


def data_spec(pixels: bool, height: int, width: int, *, vocabulary: int = 9) -> DataSpec:
    return DataSpec(vocabulary, 4, 0, pixels, 3 if pixels else 6, height, width)


def images_of(sizes: DataSpec, count: int = 2) -> Tensor:
    """Random images: (count, H, W, 3) bytes or (count, channels, H, W)."""
    generator = torch.Generator().manual_seed(1)
    if sizes.pixels:
        shape = (count, sizes.height, sizes.width, 3)
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    return torch.randn(count, *sizes[-3:], generator=generator, dtype=torch.float64)


def padded(questions: list[list[int]], extra: int = 0) -> Tensor:
    """The questions (B, S) with padding after them."""
    width = max(map(len, questions)) + extra
    return torch.tensor([words + [PAD] * (width - len(words)) for words in questions])


def with_random_state(network: M, *, training: bool) -> M:
    """The network in float64, with random weights, biases and running statistics."""
    generator = torch.Generator().manual_seed(3)
    for name, buffer in randomized(network).named_buffers():
        if "running" in name:
            shift = 0.5 if "var" in name else -0.5
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + shift)
    return network.train(training)


def norms_of(network: nn.Module) -> dict[str, Norm]:
    """Its normalisations by name, but for those of MAC's backbone, for the loops to move."""
    named = network.named_modules()
    shared = {n for m in network.modules() if isinstance(m, PixelBackbone) for n in m.modules()}
    return {k: Norm.of(m) for k, m in named if isinstance(m, BatchNorm2d) and m not in shared}


def strided_convolutions(
    cnn: nn.Sequential, norms: dict[str, Norm], name: str
) -> list[Convolution]:
    """The convolutions of stride 2 of a CNN of its own, whose name that is."""
    return [
        Convolution(Layer.of(layer), norms[f"{name}.{k + 1}"], stride=2, padding=1)
        for k, layer in enumerate(cnn)
        if isinstance(layer, nn.Conv2d)
    ]


def assert_same_statistics(network: nn.Module, norms: dict[str, Norm]) -> None:
    """The running statistics of the network are those of the loops."""
    found = dict(network.named_buffers())
    for name, norm in norms.items():
        assert_close(found[f"{name}.running_mean"], norm.mean, f"mean of {name}")
        assert_close(found[f"{name}.running_var"], norm.var, f"variance of {name}")


def running_statistics(network: nn.Module) -> dict[str, Tensor]:
    """Copies of the running mean and variance of each normalisation."""
    return {k: v.clone() for k, v in network.named_buffers() if "running" in k}


def assert_same_with_gradients(found: Tensor, wanted: Tensor, network: nn.Module) -> None:
    """Logits agree, and so do the gradients of every parameter."""
    assert_close(found, wanted, "logits")
    names, parameters = zip(*network.named_parameters(), strict=True)
    grads = zip(names, gradients(found, parameters), gradients(wanted, parameters), strict=True)
    for name, one, other in grads:
        assert_close(one, other, f"gradient of {name}")


def assert_answers_stand_alone(network: nn.Module, images: Tensor) -> None:
    """Neither padding nor other questions and images of a batch change the logits of a question."""
    logits = network(images, padded(QUESTIONS))
    assert_close(network(images, padded(QUESTIONS, extra=3)), logits, "more padding")
    for b, words in enumerate(QUESTIONS):
        alone = network(images[b // 3][None], torch.tensor([words]))
        assert_close(alone, logits[b][None], f"question {b}")


def assert_learns_64_questions(network: nn.Module, images: Tensor, *, lr: float = 1e-2) -> None:
    """Four questions about each of 16 images, which are the same for all images, are learned."""
    words = torch.arange(1, 5).repeat(16)
    questions = torch.stack([torch.full((64,), 5), words, torch.full((64,), 6)], 1)
    answers = torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    for _ in range(200):
        logits = network(images, questions)
        if logits.argmax(1).equal(answers):
            return
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, answers).backward()
        optimizer.step()
    raise AssertionError(f"{(logits.argmax(1) == answers).sum()} of 64 after 200 steps")


def assert_refuses_bad_inputs(network: nn.Module, sizes: DataSpec) -> None:
    """Images of another shape or type and questions of a wrong number get one sentence."""
    images, questions = images_of(sizes), padded(QUESTIONS)
    wrong = [
        (images[:, :, 1:], questions, r"images are .*; this network was made for \(images, "),
        (images[:, 0], questions, "images are "),
        (images, questions[:5], "5 questions cannot be shared out among 2 images"),
        (images, questions[0], r"questions are \(5,\); they must be \(B, words\)"),
        (images, questions[:, :0], r"questions are \(6, 0\); they must be \(B, words\)"),
    ]
    if sizes.pixels:
        wrong.append((images / 255, questions, "of torch.float32; they must be .*of torch.uint8"))
    for call in (network, getattr(network, "literal", network)):
        for bad_images, bad_questions, message in wrong:
            with pytest.raises(InputError, match=message) as caught:
                call(bad_images, bad_questions)
            assert "\n" not in str(caught.value)


class NoWaiting(TorchDispatchMode):
    """Fail where a GPU would be waited for: at its values on the host, and at copies from there."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.WAITS, func
        if name in ("index", "index_put", "index_put_"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), func
        return func(*args, **(kwargs or {}))


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
