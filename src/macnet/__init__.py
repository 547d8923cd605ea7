"""MAC networks, and the CLEVR world they reason about.

model = macnet.load()
print(model.ask("scene.png", "What color is the cube?").answer)
run = macnet.train("CLEVR_v1.0", out="runs/mac", recipe="fast")
print(macnet.evaluate(run))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from macnet.checkpoint import export
    from macnet.clevr.generate import generate
    from macnet.clevr.images import render_file as render
    from macnet.data.dataset import Dataset
    from macnet.data.extract import extract
    from macnet.data.pack import pack
    from macnet.errors import InputError
    from macnet.evaluation.evaluate import Report, evaluate
    from macnet.explain.model import Model, load
    from macnet.training.train import Run, train

__version__ = "0.2.0"
__all__ = [
    "Dataset",
    "InputError",
    "Model",
    "Report",
    "Run",
    "evaluate",
    "export",
    "extract",
    "generate",
    "load",
    "pack",
    "render",
    "train",
]


_MODULES = {
    "Dataset": "data.dataset",
    "InputError": "errors",
    "Model": "explain.model",
    "Report": "evaluation.evaluate",
    "Run": "training.train",
    "evaluate": "evaluation.evaluate",
    "export": "checkpoint",
    "extract": "data.extract",
    "generate": "clevr.generate",
    "load": "explain.model",
    "pack": "data.pack",
    "render": "clevr.images",
    "train": "training.train",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes a second to load."""
    if name not in _MODULES:
        raise AttributeError(f"module 'macnet' has no attribute {name!r}")
    found = {"render": "render_file"}.get(name, name)
    return getattr(import_module(f"macnet.{_MODULES[name]}"), found)
