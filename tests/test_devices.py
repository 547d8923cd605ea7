"""What a machine is made to do for a network."""

from __future__ import annotations

import ctypes
import resource
import sys

import numpy as np
import pytest

from macnet.devices import keep_freed_memory

has_mallopt = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")


@pytest.mark.skipif(not has_mallopt, reason="memory is not managed by glibc")
def test_freed_memory_is_used_again() -> None:
    """To take blocks again that were freed causes no page faults."""
    keep_freed_memory()
    size = 24 << 20

    def take_and_free() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [np.ones(size, np.uint8) for _ in range(4)]
        assert all(block[-1] for block in blocks)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    take_and_free()
    assert max(take_and_free() for _ in range(3)) < size // resource.getpagesize() / 10
