"""The kernels of the execution engine give what its modules give, one kind after another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from closeness import off_by
from macnet.data.spec import DataSpec
from macnet.data.vocab import PROGRAM_TOKENS
from macnet.models.systems.execution_engine import ExecutionEngine
from macnet.models.systems.programs import SCENE, read_prefix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
LENGTH = 9


def programs(count: int) -> Tensor:
    """Whatever may be written: of every token, malformed, without an end, `scene` alone, empty."""
    generator = torch.Generator().manual_seed(0)
    written = torch.randint(0, len(PROGRAM_TOKENS), (count, LENGTH), generator=generator)
    written[0], written[1, 0] = 0, SCENE
    pair = PROGRAM_TOKENS.index("union")
    written[2], written[3, ::2] = pair, pair
    return written


def both(
    channels: int, height: int, width: int, dtype: torch.dtype, *, images: int = 3
) -> list[tuple[str, Tensor, Tensor]]:
    """Outputs and gradients of the kernels, and of the modules in float64."""
    torch.manual_seed(1)
    spec = DataSpec(9, 4, 13, False, 6, height, width)
    engine = ExecutionEngine(spec, channels=channels, pooled=4, hidden=4).cuda()
    trees = read_prefix(programs(images * 20).cuda())
    stem = torch.randn(images, channels, height, width, device="cuda").relu()
    results = []
    for precision in (dtype, torch.float64):
        bank = engine.to(precision).bank
        x = stem.to(precision, memory_format=torch.channels_last).requires_grad_()
        if precision == torch.float64:
            outputs, rows = engine._run_levels(x, trees)
            roots = outputs[rows[:, 0]]
        else:
            roots = engine._run_kernels(x, trees)
        weights = dict(bank.named_parameters())
        direction = torch.linspace(-1, 1, roots.numel(), device="cuda").view(roots.shape)
        grads = torch.autograd.grad(roots, [x, *weights.values()], direction.to(roots))
        results.append(dict(zip(["roots", "stem", *weights], [roots, *grads], strict=True)))
    kernels, modules = results
    return [(name, kernels[name], modules[name]) for name in modules]


@pytest.mark.parametrize(
    ("channels", "height", "width"), [(16, 3, 5), (128, 14, 14), (128, 16, 16), (64, 10, 15)]
)
def test_float32(channels: int, height: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for name, found, wanted in both(channels, height, width, torch.float32):
        # Near zero, a ReLU may pass a value in one and not in the other.
        assert off_by(found, wanted) < 1e-3, name


@pytest.mark.parametrize(("channels", "height", "width"), [(128, 14, 14), (32, 5, 7)])
def test_bfloat16(channels: int, height: int, width: int) -> None:
    for name, found, wanted in both(channels, height, width, torch.bfloat16):
        assert off_by(found, wanted) < 5e-2, name


def test_the_same_at_each_run() -> None:
    one, other = (both(128, 6, 6, torch.bfloat16) for _ in range(2))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(one, other, strict=True))
