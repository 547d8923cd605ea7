"""Batches of N images × G questions."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

UNKNOWN = -1
"""Stands for an answer, a type or a question that there is not; losses and counts pass over it."""


class Batch(NamedTuple):
    """N images and G questions about each, those of an image one after another: B = N·G."""

    images: Tensor
    """(N, H, W, 3) uint8 pictures, or (N, C, H, W) features."""
    questions: Tensor
    """(B, S) int64 words; 0 is padding."""
    lengths: Tensor
    """(B,) int64: words before the padding."""
    answers: Tensor
    """(B,) int64, UNKNOWN in a test split."""
    types: Tensor
    """(B,) int64: which of `questions.TYPES`, UNKNOWN where there is no program."""
    programs: Tensor
    """(B, L) int64: prefix form in ids of `vocab.PROGRAM_TOKENS`; 0 is padding."""
    index: Tensor
    """(B,) int64: which question of its set; UNKNOWN for a filler, which repeats another question
    where a batch would have a hole, and whose answer is UNKNOWN too."""
