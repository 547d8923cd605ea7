"""The paper's table 1 as data: accuracies in percent on CLEVR and on CLEVR-Humans.

The rows bear the paper's names: * uses programs as extra supervision, † augments the data, ‡ learns
from raw pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Row(NamedTuple):
    overall: float
    columns: tuple[float, float, float, float, float]
    """In the order of `accuracy.COLUMNS`."""
    humans: tuple[float, float] | None = None
    """On CLEVR-Humans, before and after fine-tuning."""


TABLE_1: Mapping[str, Row] = {
    "Human": Row(92.6, (86.7, 96.6, 86.5, 95.0, 96.0)),
    "Q-type baseline": Row(41.8, (34.6, 50.2, 51.0, 36.0, 51.3)),
    "LSTM": Row(46.8, (41.7, 61.1, 69.8, 36.8, 51.8), (27.5, 36.5)),
    "CNN+LSTM": Row(52.3, (43.7, 65.2, 67.1, 49.3, 53.0), (37.7, 43.2)),
    "CNN+LSTM+SA+MLP": Row(73.2, (59.7, 77.9, 75.1, 80.9, 70.8), (50.4, 57.6)),
    "N2NMN*": Row(83.7, (68.5, 85.7, 84.9, 90.0, 88.7)),
    "PG+EE (9K prog.)*": Row(88.6, (79.7, 89.7, 79.1, 92.6, 96.0)),
    "PG+EE (18K prog.)*": Row(95.4, (90.1, 97.3, 96.5, 97.4, 98.0), (54.0, 66.6)),
    "PG+EE (700K prog.)*": Row(96.9, (92.7, 97.1, 98.7, 98.1, 98.9)),
    "CNN+LSTM+RN†‡": Row(95.5, (90.1, 97.8, 93.6, 97.9, 97.1)),
    "CNN+GRU+FiLM": Row(97.7, (94.3, 99.1, 96.8, 99.1, 99.1), (56.6, 75.9)),
    "CNN+GRU+FiLM‡": Row(97.6, (94.3, 99.3, 93.4, 99.3, 99.3)),
    "MAC": Row(98.9, (97.1, 99.5, 99.1, 99.5, 99.5), (57.4, 81.5)),
}
