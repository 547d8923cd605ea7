"""Some files of the real CLEVR lie beside the repository where it is developed, and only there."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "shared" / "reference"


def real_clevr(name: str) -> Path:
    """A file or folder of it; without it, the test that asks for it is skipped."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"there is no real CLEVR: {path}")
    return path
