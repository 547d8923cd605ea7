"""MAC networks, and the CLEVR world they reason about.

model = macnet.load()
print(model.ask("scene.png", "What color is the cube?").answer)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    import torch

    from macnet.explain.model import Model

__all__ = ["load"]


def load(run: str | PathLike[str] | None = None, *, device: torch.device | str = "cpu") -> Model:
    """The network that comes with macnet; or that of a run, by its folder or a file of weights."""
    from macnet.explain.model import open_model  # which takes a second, for torch

    return open_model(run, device)
