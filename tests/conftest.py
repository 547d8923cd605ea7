"""For all tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Beside other processes, torch's threads mostly wait for each other."""
    torch.set_num_threads(1)
