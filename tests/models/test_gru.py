"""The last state of a GRU, by its equations, whatever pads the questions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from closeness import off_by
from macnet.models.gru import gru_last_state, torch_gru
from macnet.models.layers import can_use_triton

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def case(batch: int, steps: int, inputs: int, units: int) -> tuple[list[Tensor], Tensor]:
    """Words (B, S, e) and a GRU's four weights, in float64, and lengths from 1 to S."""
    torch.manual_seed(3)
    lengths = torch.randint(1, steps + 1, (batch,))
    lengths[0], lengths[-1] = steps, min(2, steps)
    x = torch.randn(batch, steps, inputs)
    weights = nn.GRU(inputs, units).all_weights[0]
    return [a.detach().double().requires_grad_() for a in (x, *weights)], lengths


def literal(leaves: list[Tensor], lengths: Tensor) -> Tensor:
    """The GRU's equations, one question and word at a time."""
    x, w, v, b, c = leaves
    last = []
    for words, length in zip(x, lengths.tolist(), strict=True):
        h = words.new_zeros(v.shape[1])
        for word in words[:length]:
            (w_r, w_z, w_n), (v_r, v_z, v_n) = (w @ word + b).chunk(3), (v @ h + c).chunk(3)
            r, z = torch.sigmoid(w_r + v_r), torch.sigmoid(w_z + v_z)
            h = (1 - z) * torch.tanh(w_n + r * v_n) + z * h
        last.append(h)
    return torch.stack(last)


def results(run: Callable[[], Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """The last states, and the gradients of a random projection of them."""
    last = run()
    down = torch.randn(last.shape, generator=torch.Generator().manual_seed(0)).to(last)
    return [last, *torch.autograd.grad(last, leaves, down)]


def test_torchs_gru_equals_the_equations() -> None:
    leaves, lengths = case(6, 7, 5, 4)
    expected = results(lambda: literal(leaves, lengths), leaves)
    found = results(lambda: gru_last_state(leaves[0], lengths, *leaves[1:]), leaves)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_padding_changes_nothing() -> None:
    (x, *weights), lengths = case(5, 6, 3, 4)
    expected = gru_last_state(x, lengths, *weights)
    longer = torch.cat([x, torch.randn(5, 3, 3).double()], 1)
    torch.testing.assert_close(gru_last_state(longer, lengths, *weights), expected)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("batch", "steps", "inputs", "units"),
    [(640, 46, 200, 1024), (130, 12, 200, 4096), (300, 9, 7, 512), (1, 3, 16, 256)],
)
def test_the_kernels_equal_torchs_gru(batch: int, steps: int, inputs: int, units: int) -> None:
    assert can_use_triton(torch.device("cuda"), torch.bfloat16)
    leaves, lengths = case(batch, steps, inputs, units)
    exact = [a.detach().cuda().requires_grad_() for a in leaves]
    single = [a.detach().float().requires_grad_() for a in exact]
    lengths = lengths.cuda()
    expected = results(lambda: torch_gru(exact[0], lengths, *exact[1:]), exact)
    with torch.autocast("cuda", torch.bfloat16):
        found = results(lambda: gru_last_state(single[0], lengths, *single[1:]), single)
    assert found[0].dtype == torch.bfloat16
    assert all(gradient.dtype == torch.float32 for gradient in found[1:])
    for one, other in zip(found, expected, strict=True):
        assert off_by(one, other) <= 2e-2
    is_pad = torch.arange(steps, device="cuda") >= lengths[:, None]
    assert not found[1][is_pad].any()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):  # which keeps no slopes
        assert torch.equal(gru_last_state(single[0], lengths, *single[1:]), found[0])
