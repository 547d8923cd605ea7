"""The kernels of additive attention give what torch gives, gradients included."""

from __future__ import annotations

import pytest
import torch

from closeness import off_by

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("batch", "queries", "keys", "units"), [(640, 10, 46, 512), (3, 1, 5, 48), (1, 4, 64, 16)]
)
def test_the_kernels_equal_all_pairs_written_out(
    batch: int, queries: int, keys: int, units: int, dtype: torch.dtype
) -> None:
    from macnet.models.kernels.additive_attention import additive_scores

    torch.manual_seed(1)
    shapes = (batch, queries, units), (batch, keys, units), (units,)
    given = [torch.randn(shape, device="cuda", dtype=dtype).requires_grad_() for shape in shapes]
    q, k, v = exact = [a.detach().double().requires_grad_() for a in given]
    found = additive_scores(*given)
    wanted = torch.tanh(q[:, :, None] + k[:, None]) @ v
    down = torch.randn_like(wanted)
    gradients = torch.autograd.grad(found, given, down.float())
    expected = torch.autograd.grad(wanted, exact, down)
    assert found.dtype == torch.float32
    for one, other in zip([found, *gradients], [wanted, *expected], strict=True):
        assert off_by(one, other) < (1e-5 if dtype == torch.float32 else 1e-2)
