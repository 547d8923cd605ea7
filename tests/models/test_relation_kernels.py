"""The kernels of RN's sum over pairs equal g of each pair written out, and reproduce it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from closeness import off_by
from macnet.models.layers import can_use_triton
from macnet.models.systems.relation_network import Relation, RelationNetworkConfig

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def case(
    images: int, groups: int, cells: int, g: int, layers: int
) -> tuple[Relation, Tensor, Tensor]:
    """A relation and its inputs (N, L, 26) and (N·G, 128), in float32 on the GPU."""
    torch.manual_seed(3)
    relation = Relation(RelationNetworkConfig(g=g, g_layers=layers)).cuda()
    objects = torch.randn(images, cells, 26, device="cuda", requires_grad=True)
    q = torch.randn(images * groups, 128, device="cuda", requires_grad=True)
    return relation, objects, q


def results(run: Callable[[Tensor, Tensor], Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """The sum, and the gradients of a random projection of it."""
    out = run(*leaves[:2])
    down = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    return [out, *torch.autograd.grad(out, leaves, down)]


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize(
    ("cells", "g", "layers"), [(64, 256, 4), (49, 256, 4), (70, 64, 2), (3, 128, 3)]
)
def test_the_kernels_equal_every_pair_written_out(cells: int, g: int, layers: int) -> None:
    assert can_use_triton(torch.device("cuda"), torch.bfloat16)
    relation, objects, q = case(3, 4, cells, g, layers)
    exact = copy.deepcopy(relation).double()
    doubles = [x.detach().double().requires_grad_() for x in (objects, q)]
    expected = results(exact.literal, [*doubles, *exact.parameters()])
    leaves = [objects, q, *relation.parameters()]
    with torch.autocast("cuda", torch.bfloat16):
        plain = results(relation.literal, leaves)
        found = results(relation, leaves)
        again = results(relation, leaves)
        with torch.no_grad():  # which keeps no layer's output
            alone = relation(objects, q)
    names = ["sum", "objects", "q", *dict(relation.named_parameters())]
    for name, one, other, same, rough in zip(names, found, expected, again, plain, strict=True):
        assert one.dtype == torch.float32
        # What is near zero in bfloat16 passes a ReLU or not: torch's own products err by as much.
        assert off_by(one, other) <= 1.2 * off_by(rough, other) + 2e-3, name
        assert torch.equal(one, same), name
    assert torch.equal(alone, found[0])


@pytest.mark.gpu
@needs_cuda
def test_a_second_backward_pass_is_refused() -> None:
    relation, objects, q = case(1, 2, 5, 64, 2)
    with torch.autocast("cuda", torch.bfloat16):
        out = relation(objects, q).sum()
    out.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="run the forward pass again"):
        out.backward()


@pytest.mark.gpu
@needs_cuda
def test_weights_in_bfloat16_give_a_sum_in_bfloat16() -> None:
    relation, objects, q = case(2, 2, 9, 64, 3)
    relation.bfloat16()
    expected = relation.literal(objects.bfloat16(), q.bfloat16())
    found = relation(objects.bfloat16(), q.bfloat16())
    assert found.dtype == torch.bfloat16
    assert off_by(found, expected) <= 2e-2
