"""Where in a picture the places of a knowledge base are."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np


def centres(trunk: Any, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The pixels, down and across, on which the rows and the columns of places are centred.

    Strided convolutions with a padding of one centre place i on pixel i · stride: half a stride
    before the middle of the i-th of equal stretches.
    """
    stride = next(n for n in count(1) if trunk.grid(n + 1, 1)[0] > 1)
    rows, columns = trunk.grid(height, width)
    return stride * np.arange(rows), stride * np.arange(columns)
