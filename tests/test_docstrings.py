"""Every public name has a docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

import macnet

ROOT = Path(macnet.__file__).parent
TREES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}
INHERITED = {"forward", "backward", "submit"}  # documented by torch and by the standard library


def public(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, str | None]]:
    """The full names of what a module or a class defines for others, with their docstrings."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            yield f"{prefix}.{child.name}", ast.get_docstring(child)
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{prefix}.{child.name}")


def test_every_public_name_has_a_docstring() -> None:
    found = [entry for path, tree in TREES.items() for entry in public(tree, str(path))]
    documented = {name.rpartition(".")[2] for name, text in found if text} | INHERITED
    # A method may be documented by the class or the protocol that it comes from.
    lacking = [n for n, text in found if not text and n.rpartition(".")[2] not in documented]
    assert lacking == []


def test_every_module_has_a_docstring() -> None:
    assert [str(path) for path, tree in TREES.items() if not ast.get_docstring(tree)] == []
