"""The paper's tables as data: accuracies in percent on CLEVR and on CLEVR-Humans.

Rows have the paper's names. In table 1, * means programs as extra supervision, † data augmentation,
‡ training from raw pixels; table 2 has the ablations of MAC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from macnet.errors import InputError

COLUMNS = ("Count", "Exist", "Compare Numbers", "Query Attribute", "Compare Attribute")
"""The columns of table 1 by group of question types, in its order."""


class Table1Row(NamedTuple):
    """Accuracies (%) of a system in table 1."""

    overall: float
    columns: tuple[float, float, float, float, float]
    """Accuracies by group of question types, in the order of `COLUMNS`."""
    humans: tuple[float, float] | None = None
    """Accuracies on CLEVR-Humans, before and after fine-tuning."""


TABLE_1: Mapping[str, Table1Row] = {
    "Human": Table1Row(92.6, (86.7, 96.6, 86.5, 95.0, 96.0)),
    "Q-type baseline": Table1Row(41.8, (34.6, 50.2, 51.0, 36.0, 51.3)),
    "LSTM": Table1Row(46.8, (41.7, 61.1, 69.8, 36.8, 51.8), (27.5, 36.5)),
    "CNN+LSTM": Table1Row(52.3, (43.7, 65.2, 67.1, 49.3, 53.0), (37.7, 43.2)),
    "CNN+LSTM+SA+MLP": Table1Row(73.2, (59.7, 77.9, 75.1, 80.9, 70.8), (50.4, 57.6)),
    "N2NMN*": Table1Row(83.7, (68.5, 85.7, 84.9, 90.0, 88.7)),
    "PG+EE (9K prog.)*": Table1Row(88.6, (79.7, 89.7, 79.1, 92.6, 96.0)),
    "PG+EE (18K prog.)*": Table1Row(95.4, (90.1, 97.3, 96.5, 97.4, 98.0), (54.0, 66.6)),
    "PG+EE (700K prog.)*": Table1Row(96.9, (92.7, 97.1, 98.7, 98.1, 98.9)),
    "CNN+LSTM+RN†‡": Table1Row(95.5, (90.1, 97.8, 93.6, 97.9, 97.1)),
    "CNN+GRU+FiLM": Table1Row(97.7, (94.3, 99.1, 96.8, 99.1, 99.1), (56.6, 75.9)),
    "CNN+GRU+FiLM‡": Table1Row(97.6, (94.3, 99.3, 93.4, 99.3, 99.3)),
    "MAC": Table1Row(98.9, (97.1, 99.5, 99.1, 99.5, 99.5), (57.4, 81.5)),
}


class Table2Row(NamedTuple):
    """Accuracies (%) of an ablation in table 2, on CLEVR's validation split."""

    full: float
    """Accuracy after training on all of CLEVR."""
    tenth: float
    """Accuracy after training on 10% of CLEVR's questions."""


TABLE_2: Mapping[str, Table2Row] = {
    "MAC": Table2Row(98.9, 84.5),
    "state dimension 256": Table2Row(98.4, 76.3),
    "state dimension 128": Table2Row(97.6, 77.0),
    "unshared weights": Table2Row(97.8, 67.5),
    "attention over word vectors": Table2Row(98.3, 61.4),
    "w/o word-attention": Table2Row(95.3, 63.2),
    "question vector as control": Table2Row(80.7, 65.0),
    "w/o control": Table2Row(55.6, 51.5),
    "w/o memory-control separation": Table2Row(93.9, 64.7),
    "w/o direct KB elements": Table2Row(98.4, 73.4),
    "retrieved → memory": Table2Row(98.2, 84.5),
    "W · retrieved + b → memory": Table2Row(98.5, 83.7),
    "only memory gate": Table2Row(99.3, 83.1),
    "w/ self-attention": Table2Row(99.2, 83.2),
    "w/ memory gate": Table2Row(99.4, 83.1),
    "w/ self-attention and memory gate": Table2Row(99.5, 85.5),
    "gate bias 0": Table2Row(98.7, 84.9),
    "gate bias 1": Table2Row(99.4, 68.5),
    "gate bias −1": Table2Row(99.0, 77.1),
    "prediction w/o question": Table2Row(97.8, 64.7),
}


class PublishedAccuracy(NamedTuple):
    """The paper's accuracies (%) of a network, to be compared with those measured here."""

    source: str
    """The row and the table."""
    overall: float
    columns: tuple[float, ...] = ()
    """Accuracies in the order of `COLUMNS`; empty where the paper has none."""
    humans: tuple[float, float] | None = None
    """Accuracies on CLEVR-Humans, before and after fine-tuning."""


def find_published(row: str | None, share: float | None) -> PublishedAccuracy | None:
    """The paper's accuracies of a row trained on a share of the questions, or None.

    `row` is its label in either table; the paper has the shares 1 and 0.1.
    """
    system, ablation = TABLE_1.get(row or ""), TABLE_2.get(row or "")
    if system and share == 1:
        return PublishedAccuracy(f"{row} in table 1", *system)
    if ablation and share == 1:
        return PublishedAccuracy(f"{row} in table 2", ablation.full)
    if ablation and share == 0.1:
        return PublishedAccuracy(f"{row} in table 2, trained on 10% of CLEVR", ablation.tenth)
    return None


def find_label(row: str, labels: Iterable[str]) -> str:
    """The label of a row; -, -> and * stand for the paper's −, → and ·."""
    known = {_typed(label): label for label in labels}
    if _typed(row) not in known:
        raise InputError(f"`ablation` is {row!r}; choose one of {', '.join(known.values())}")
    return known[_typed(row)]


def _typed(label: str) -> str:
    return str(label).replace("−", "-").replace("→", "->").replace("·", "*")
