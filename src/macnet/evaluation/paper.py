"""The paper's tables as data: accuracies in percent on CLEVR and on CLEVR-Humans.

The rows bear the paper's names. In table 1, * uses programs as extra supervision, † augments the
data, ‡ learns from raw pixels; table 2 has the ablations of MAC.
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


class Ablation(NamedTuple):
    full: float
    """Trained on all of CLEVR."""
    tenth: float
    """Trained on 10% of its questions."""


TABLE_2: Mapping[str, Ablation] = {
    "MAC": Ablation(98.9, 84.5),
    "state dimension 256": Ablation(98.4, 76.3),
    "state dimension 128": Ablation(97.6, 77.0),
    "unshared weights": Ablation(97.8, 67.5),
    "attention over word vectors": Ablation(98.3, 61.4),
    "w/o word-attention": Ablation(95.3, 63.2),
    "question vector as control": Ablation(80.7, 65.0),
    "w/o control": Ablation(55.6, 51.5),
    "w/o memory-control separation": Ablation(93.9, 64.7),
    "w/o direct KB elements": Ablation(98.4, 73.4),
    "retrieved → memory": Ablation(98.2, 84.5),
    "W · retrieved + b → memory": Ablation(98.5, 83.7),
    "only memory gate": Ablation(99.3, 83.1),
    "w/ self-attention": Ablation(99.2, 83.2),
    "w/ memory gate": Ablation(99.4, 83.1),
    "w/ self-attention and memory gate": Ablation(99.5, 85.5),
    "gate bias 0": Ablation(98.7, 84.9),
    "gate bias 1": Ablation(99.4, 68.5),
    "gate bias −1": Ablation(99.0, 77.1),
    "prediction w/o question": Ablation(97.8, 64.7),
}
"""On CLEVR's validation set, which is what all of it was measured on."""


class Published(NamedTuple):
    """What the paper has for a network, to stand beside what it reaches here."""

    source: str
    """Which row of which table it is."""
    overall: float
    columns: tuple[float, ...] = ()
    """In the order of `accuracy.COLUMNS`, where the paper has them."""
    humans: tuple[float, float] | None = None
    """On CLEVR-Humans, before and after fine-tuning."""


def find_published(row: str | None, share: float | None) -> Published | None:
    """By the label of a network in either table, and the share of the questions it learned from.

    None where the paper has no such number: of other networks, or of other shares.
    """
    of_system, of_ablation = TABLE_1.get(row or ""), TABLE_2.get(row or "")
    if of_system and share == 1:
        return Published(f"{row} in table 1", *of_system)
    if of_ablation and share == 1:
        return Published(f"{row} in table 2", of_ablation.full)
    if of_ablation and share == 0.1:
        return Published(f"{row} in table 2, trained on 10% of CLEVR", of_ablation.tenth)
    return None
