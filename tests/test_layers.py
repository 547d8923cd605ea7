"""The layout is the map: a package imports only from those above it in docs/code.md."""

import ast
from pathlib import Path

import macnet

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
