"""The layout is the map: a package imports only from those above it in docs/code.md.

And what takes long to load, or is not everywhere, is loaded only by what needs it.
"""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np

import macnet
from macnet.clevr.images import save_image
from tiny_networks import write_network

ORDER = [
    *("errors", "configuration", "files", "signals", "progress", "workers", "devices"),
    "distributed",
    "clevr",
    "data",
    "paper",
    "models",
    "checkpoint",
    "evaluation",
    "training",
    "explain",
    "cli",
    "__main__",
]
ROOT = Path(macnet.__file__).parent


def imported(path: Path) -> set[str]:
    """The packages of macnet that a module imports from, at its top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "macnet":
            found |= {alias.name for alias in node.names} & {*ORDER}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("macnet."):
            found.add((node.module or "").split(".")[1])
    return found


def test_packages_import_only_from_those_above() -> None:
    offences = []
    for path in sorted(ROOT.rglob("*.py")):
        package = path.relative_to(ROOT).with_suffix("").parts[0]
        if package == "__init__":
            continue
        assert package in ORDER, f"{package} has no place in the order"
        above = {*ORDER[: ORDER.index(package) + 1]}
        below = sorted(imported(path) - above)
        offences += [f"{path.relative_to(ROOT)} imports {name}" for name in below]
    assert not offences


def loaded(*steps: str) -> list[set[str]]:
    """What a fresh Python has loaded after each of these steps, taken one after another."""
    script = "import sys\n" + "".join(f"{step}\nprint(*sys.modules)\n" for step in steps)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    return [set(line.split()) for line in run.stdout.splitlines()]


def test_what_is_loaded(tmp_path: Path) -> None:
    """`import macnet` costs nothing; to ask costs torch, and hardly more: there are two seconds."""
    run, scene = write_network(tmp_path / "run"), tmp_path / "scene.png"
    save_image(scene, np.zeros((32, 48, 3), np.uint8))
    alone, world, model, asked, trainer = loaded(
        "import macnet",
        "import macnet.clevr.world",
        "import macnet.explain.model",
        f"macnet.load(); macnet.load({str(run)!r}).ask({str(scene)!r}, 'Is it a cube?')",
        "import macnet.training.trainer, macnet.data.generated",
    )
    assert not alone & {"torch", "numpy", "PIL"}
    parsers = {"tyro", "msgspec"}
    assert not world & {*parsers, "PIL", "matplotlib"}, "a machine that only trains has none"
    assert "torch" in model
    assert not model & {*parsers, "matplotlib", "h5py", "triton", "sympy", "torch._dynamo"}
    assert not [name for name in asked if name.startswith("macnet.training")]
    assert not trainer & parsers, "a machine that only trains has none"
