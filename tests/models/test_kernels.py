"""The kernels against plain torch, and the network on a GPU against itself on a CPU."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from macnet.models.attention import attend, attend_backward
from macnet.models.config import NO_DROPOUT
from macnet.models.interaction import interaction_logits
from macnet.models.kernels.deferred_grad import DeferredGradAttention
from macnet.models.mac import MACNetwork
from macnet.models.presets import PRESETS, preset
from macnet.training.step import OPTIMIZERS, AnyOptimizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WARM = 3  # runs before a graph is captured
BF16 = 2e-2  # what a few products of bfloat16 may be off, in norm


def error(found: Tensor, wanted: Tensor) -> float:
    """The relative error, in norm."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    return float((found - wanted).norm() / wanted.norm())


def low(*tensors: Tensor) -> list[Tensor]:
    return [tensor.to("cuda", torch.bfloat16) for tensor in tensors]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("n", "groups", "size", "d"),
    [(64, 10, 196, 512), (200, 1, 46, 512), (3, 12, 7, 48), (2, 33, 300, 128), (5, 2, 784, 64)],
)
def test_the_attention_kernel_equals_plain_torch(
    n: int, groups: int, size: int, d: int, padded: bool
) -> None:
    torch.manual_seed(0)
    z, dsums = (torch.randn(n * groups, d).bfloat16().double() for _ in range(2))
    elements = torch.randn(n, size, d).bfloat16().double()
    is_pad = torch.arange(size) >= torch.randint(1, size + 1, (n, 1)) if padded else None
    sums, weights = attend(z, elements, is_pad)
    given = [None, torch.randn(n * groups, size).bfloat16().double()]
    wanted = [attend_backward(dsums, weights, elements, is_pad, dweights) for dweights in given]

    z, dsums, elements = low(z, dsums, elements)
    is_pad = is_pad.cuda() if is_pad is not None else None
    found, found_weights = attend(z, elements, is_pad)
    assert error(found, sums) < BF16
    assert error(found_weights, weights) < BF16
    if is_pad is not None:
        hidden = is_pad[:, None].expand(n, groups, size).reshape(-1, size)
        assert found_weights[hidden].count_nonzero() == 0
    for dweights, (dz, dlogits) in zip(given, wanted, strict=True):
        dweights = None if dweights is None else low(dweights)[0]
        found, found_dlogits = attend_backward(dsums, low(weights)[0], elements, is_pad, dweights)
        assert error(found, dz) < BF16
        assert error(found_dlogits, dlogits) < BF16


@pytest.mark.parametrize("groups", [1, 5])
def test_the_attention_kernel_takes_any_mask_and_float16(groups: int) -> None:
    """The padding is in the middle, and an expanded view that is the same for all."""
    torch.manual_seed(0)
    elements = torch.randn(6, 30, 64)
    is_pad = (torch.rand(30) < 0.5).expand(6, 30)
    z = torch.randn(6 * groups, 64)
    wanted, _ = DeferredGradAttention(elements.double(), is_pad)(z.double())
    found, weights = DeferredGradAttention(elements.half().cuda(), is_pad.cuda())(z.half().cuda())
    assert error(found, wanted) < BF16
    assert weights[:, is_pad[0].cuda()].count_nonzero() == 0


def interaction(n: int, groups: int, size: int, d: int) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = [(n, groups, d)] * 2 + [(n, size, d)] * 2 + [(d, d)] * 2 + [(d,)] * 2
    values = [torch.randn(shape) for shape in shapes]
    values[4] /= d**0.5
    values[5] /= d**0.5
    return [value.bfloat16().double() for value in values]


@pytest.mark.parametrize(
    ("n", "groups", "size", "d"), [(4, 10, 196, 512), (3, 1, 21, 128), (2, 3, 50, 256)]
)
def test_the_interaction_kernels_equal_plain_torch(n: int, groups: int, size: int, d: int) -> None:
    wanted = [x.requires_grad_() for x in interaction(n, groups, size, d)]
    found = [x.requires_grad_() for x in low(*interaction(n, groups, size, d))]
    logits, found_logits = (
        interaction_logits(*wanted, rate=0.0),
        interaction_logits(*found, rate=0.0),
    )
    assert error(found_logits, logits) < BF16
    down = torch.randn(n, groups, size).bfloat16()
    logits.backward(down.double())
    found_logits.backward(down.to(found_logits))
    for name, x, y in zip(
        ["m", "c", "k", "direct", "hidden", "combine", "bias", "score"], found, wanted, strict=True
    ):
        assert x.grad is not None
        assert y.grad is not None
        assert error(x.grad, y.grad) < BF16, name


def test_interaction_dropout_has_the_same_mask_backwards_as_forwards() -> None:
    """The logits are linear in the score, so score·d/dscore equals them, with the same mask."""
    m, c, k, direct, hidden, combine, bias, score = low(*interaction(4, 10, 196, 512))
    score = score.float().requires_grad_()
    inputs = (m, c, k, direct, hidden, combine, bias, score)
    kept, dropped = interaction_logits(*inputs, rate=0.0), interaction_logits(*inputs, rate=0.3)
    assert error(dropped, kept) > 0.05
    scale = (dropped * kept).sum() / kept.square().sum()  # what remains is scaled up
    assert scale.item() == pytest.approx(1, abs=0.02)
    assert not torch.equal(dropped, interaction_logits(*inputs, rate=0.3))  # fresh at every use
    down = torch.randn_like(dropped)
    dropped.backward(down)
    assert score.grad is not None
    assert (score * score.grad).sum().item() == pytest.approx(
        (down * dropped).sum().item(), rel=1e-3
    )


def batch(name: str, images: int = 6, groups: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Random images as a preset takes them, questions and answers."""
    generator = torch.Generator().manual_seed(2)
    if PRESETS[name].image == "pixels":
        size = (images, 56, 56, 3)
        seen = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
    else:
        seen = torch.randn(images, 64, 7, 7, generator=generator)
    questions = torch.randint(1, 30, (images * groups, 12), generator=generator)
    lengths = torch.randint(1, 13, (images * groups, 1), generator=generator)
    questions[torch.arange(12) >= lengths] = 0
    return seen, questions, torch.randint(0, 10, (images * groups,), generator=generator)


def network(name: str, **changes: Any) -> MACNetwork:
    torch.manual_seed(3)
    changes = {"d": 128, "p": 4, "channels": 64, "dropout": NO_DROPOUT, **changes}
    return MACNetwork(preset(name, **changes), vocabulary=30, answers=10)


def gradients(
    net: MACNetwork, answer: Callable[..., Tensor], tensors: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """The logits, and all the gradients as one vector."""
    images, questions, answers = tensors
    net.zero_grad()
    logits = answer(images, questions)
    F.cross_entropy(logits.float(), answers).backward()
    return logits, torch.cat(
        [p.grad.flatten().cpu() for p in net.parameters() if p.grad is not None]
    )


def captured(run: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of the run, captured after WARM eager ones, and its results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph, results


@pytest.mark.parametrize(
    "extra",
    [{}, {"self_attention": True, "gate": True}, {"control": "none", "attend": "nothing"}],
    ids=["basic", "self-attention and gate", "w/o control"],
)
@pytest.mark.parametrize("name", PRESETS)
def test_a_gpu_in_bfloat16_computes_what_a_cpu_does(name: str, extra: dict[str, Any]) -> None:
    tensors = batch(name)
    on_cpu = network(name, **extra)
    on_gpu = copy.deepcopy(on_cpu).cuda()
    wanted = gradients(on_cpu, on_cpu.literal, tensors)
    with torch.autocast("cuda", torch.bfloat16):
        found = gradients(on_gpu, on_gpu, tuple(tensor.cuda() for tensor in tensors))
    assert error(found[0], wanted[0]) < 3e-2
    assert F.cosine_similarity(found[1].float(), wanted[1].float(), dim=0) > 0.995
    exact = gradients(on_gpu, on_gpu, tuple(tensor.cuda() for tensor in tensors))
    assert error(exact[0], wanted[0]) < 2e-3  # float32 on a GPU: TF32 in cuDNN


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("name", PRESETS)
def test_a_step_can_be_captured_in_a_graph(name: str, optimizer: str) -> None:
    """Replayed on other data, the graph trains as eager steps do; no step waits for the host."""
    first = tuple(x.cuda() for x in batch(name))
    second = tuple(x.flip(0) for x in first)
    plain, graphed = (network(name).cuda() for _ in range(2))

    def step(net: MACNetwork, optimizer: AnyOptimizer, tensors: tuple[Tensor, ...]) -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(net(*tensors[:2]).float(), tensors[2])
        loss.backward()
        optimizer.step()

    optimizers = [
        OPTIMIZERS[optimizer](net.named_parameters(), lr=1e-3, capturable=True)
        for net in (plain, graphed)
    ]
    static = tuple(x.clone() for x in first)
    graph, _ = captured(lambda: step(graphed, optimizers[1], static))
    for _ in range(WARM):
        step(plain, optimizers[0], first)
    for tensors in (second, first, second):
        for x, new in zip(static, tensors, strict=True):
            x.copy_(new)
        graph.replay()
        step(plain, optimizers[0], tensors)
    for (key, x), y in zip(graphed.named_parameters(), plain.parameters(), strict=True):
        assert error(x, y) < 1e-2, key


@pytest.mark.parametrize(
    "name", [name for name, config in PRESETS.items() if config.dropout != NO_DROPOUT]
)
def test_a_graph_samples_new_masks_at_each_replay_and_evaluation_none(name: str) -> None:
    images, questions, _ = (x.cuda() for x in batch(name))
    net = network(name, dropout=preset(name).dropout).cuda()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        graph, logits = captured(lambda: net(images, questions))
        sampled = []
        for _ in range(3):
            graph.replay()
            sampled.append(logits.clone())
        assert all(error(a, b) > 1e-3 for a, b in itertools.pairwise(sampled))
        before = torch.cuda.get_rng_state()
        net.eval()(images, questions)
        assert torch.equal(torch.cuda.get_rng_state(), before)
