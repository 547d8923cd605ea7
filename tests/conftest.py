"""For all tests."""

import signal

import pytest
import torch

# Whoever runs the tests in the background may have had this ignored, and so would every process
# that a test starts in order to interrupt it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before each test and its fixtures: on a busy machine, torch's threads crawl."""
    torch.set_num_threads(1)
