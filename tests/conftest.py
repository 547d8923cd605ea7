"""For all tests."""

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before each test and its fixtures: on a busy machine, torch's threads crawl."""
    torch.set_num_threads(1)
