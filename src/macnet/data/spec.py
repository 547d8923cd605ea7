"""What a network is built for: the sizes that follow from the data."""

from __future__ import annotations

from typing import NamedTuple


class DataSpec(NamedTuple):
    """The sizes of vocabulary, labels and images that a network is built for."""

    vocabulary: int
    """Number of words, padding included."""
    answers: int
    """Number of answers to choose from."""
    question_types: int
    """Number of question types; 0 if the dataset has none."""
    pixels: bool
    """Whether images are (N, H, W, 3) uint8 pixels; otherwise (N, C, H, W) features."""
    channels: int
    height: int
    width: int
