"""FiLM's kernels give what its plain form gives, on a GPU in bfloat16."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from closeness import off_by
from macnet.models.norm import BatchNorm2d

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def leaves(*shapes: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Random tensors that bfloat16 holds exactly, in float64 and in bfloat16."""
    torch.manual_seed(6)
    low = [torch.randn(shape, device="cuda").bfloat16().requires_grad_() for shape in shapes]
    return [a.detach().double().requires_grad_() for a in low], low


def check_statistics(norm: BatchNorm2d, plain: BatchNorm2d) -> None:
    for (name, found), wanted in zip(norm.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(found, wanted.to(found), atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize(("n", "groups"), [(64, 10), (640, 1), (3, 2)])
@pytest.mark.parametrize(("channels", "height", "width"), [(128, 14, 14), (40, 5, 7)])
def test_modulation_equals_its_plain_form(
    n: int, groups: int, channels: int, height: int, width: int
) -> None:
    from macnet.models.kernels.film import modulate

    maps, film = (n, channels, height, width), (n * groups, channels)
    exact, low = leaves(maps, maps, film, film)
    plain = BatchNorm2d(channels, affine=False).cuda().double()
    norm = copy.deepcopy(plain).float()
    r, x, gamma, beta = exact
    repeated = (a.repeat_interleave(groups, 0) for a in (r, plain(x)))
    shown, normalized = repeated
    wanted = shown + F.relu(gamma[..., None, None] * normalized + beta[..., None, None])
    found = modulate(low[0], low[1], norm, low[2], low[3])
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert off_by(found, wanted) <= 1e-2
    frozen = modulate(low[0].detach(), low[1].detach(), copy.deepcopy(norm), low[2], low[3])
    assert torch.equal(frozen, found)
    down = torch.randn_like(wanted)
    only = torch.autograd.grad(frozen, low[2:], down.bfloat16())
    expected = torch.autograd.grad(wanted, exact, down)
    for one, other in zip(torch.autograd.grad(found, low, down.bfloat16()), expected, strict=True):
        assert off_by(one, other) <= 1e-2
    for one, other in zip(only, expected[2:], strict=True):
        assert off_by(one, other) <= 1e-2
    check_statistics(norm, plain)


def test_what_is_not_finite_stays_so() -> None:
    from macnet.models.kernels.film import modulate, pool

    x = torch.randn(2, 8, 3, 3, device="cuda").bfloat16()
    gamma = torch.ones(2, 8, device="cuda")
    gamma[1, 3] = torch.nan
    norm = BatchNorm2d(8, affine=False).cuda()
    assert modulate(x, x, norm, gamma, torch.zeros_like(gamma))[1, 3].isnan().all()
    x[0, 2, 1, 1] = torch.nan
    assert pool(x, BatchNorm2d(8).cuda())[:, 2].isnan().all()


@pytest.mark.parametrize(("batch", "channels", "side"), [(640, 512, 14), (5, 70, 3)])
def test_pooling_equals_its_plain_form(batch: int, channels: int, side: int) -> None:
    from macnet.models.kernels.film import pool

    (x,), (low,) = leaves((batch, channels, side, side))
    plain = BatchNorm2d(channels).cuda().double()
    torch.nn.init.normal_(plain.weight)
    torch.nn.init.normal_(plain.bias)
    norm = copy.deepcopy(plain).float()
    y = F.relu(plain(x)).flatten(2)
    # Of equal ones, which bfloat16 has, the first: amax would share out the gradient among them.
    cell = torch.arange(side**2, device="cuda")
    first = cell.where(y == y.amax(-1, keepdim=True), side**2).amin(-1, keepdim=True)
    wanted = y.gather(-1, first).squeeze(-1)
    found = pool(low, norm)
    assert off_by(found, wanted) <= 1e-2
    down = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, [x, plain.weight, plain.bias], down)
    run = torch.autograd.grad(found, [low, norm.weight, norm.bias], down.bfloat16())
    for one, other in zip(run, expected, strict=True):
        assert off_by(one, other) <= 1e-2
    check_statistics(norm, plain)
