"""Batch normalisation by its kernels on a CPU, in Triton's interpreter: what it is of is a file.

    TRITON_INTERPRET=1 python interpreted_batch_norm.py CASES.pt OUT.pt

Kernels have to be interpreted from the start of a process, so tests run this one.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor
from triton.runtime import interpreter  # type: ignore[import-not-found,unused-ignore]

from macnet.models.kernels import batch_norm
from macnet.models.norm import BatchNorm2d

patch_tensor = interpreter._patch_lang_tensor
SMALL = {"ROWS": 16, "WIDTH": 32, "num_warps": 1, "maxnreg": 64}


def patch_for_new_numpy(tensor: Any, scope: Any) -> None:
    """Let `range` take a scalar of a kernel: Triton 3.6 asks NumPy for what 2.4 no longer does."""
    patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def run(case: dict[str, Any]) -> dict[str, Tensor]:
    """The output, the gradients of its inputs and weights, and the statistics after it."""
    norm = BatchNorm2d(len(case["state"]["weight"]))
    norm.load_state_dict(case["state"])
    x, residual = case["x"].requires_grad_(), case["residual"]
    inputs = {"x": x, "weight": norm.weight, "bias": norm.bias}
    if residual is not None:
        inputs["residual"] = residual.requires_grad_()
    y = batch_norm.normalize(x, norm, case["activation"], residual)
    gradients = torch.autograd.grad(y, [*inputs.values()], case["dy"])
    found = {f"d{name}": dx for name, dx in zip(inputs, gradients, strict=True)}
    return {"y": y.detach(), **found, **dict(norm.named_buffers())}


def main(cases: str, out: str) -> None:
    torch.set_num_threads(1)
    interpreter._patch_lang_tensor = patch_for_new_numpy
    warnings.simplefilter("ignore")  # lanes whose result is not used may overflow
    results = []
    for case in torch.load(cases):
        if case["small tiles"]:  # so that small maps have many
            batch_norm.TILE, batch_norm.BACKWARD_TILE = SMALL, {**SMALL, "ROWS": 8}
            batch_norm.PROGRAMS, batch_norm.CHUNKS = 10, 8
        results.append(run(case))
    torch.save(results, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
