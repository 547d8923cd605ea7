"""Accuracy by occlusion: by how much is hidden of the most hidden object asked about.

"For CLEVR, we see that many of the errors arise from object occlusions" (the paper's appendix on
errors). Asked about are the objects that a question's program refers to on its way, and those that
it counts or finds to exist. The renderer knows how many pixels an object shows, and would alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch
from rich.console import Console

from macnet.clevr.program import NotUniqueError, SceneIndex, from_prefix
from macnet.clevr.references import referenced_objects
from macnet.clevr.render import occluded_fractions
from macnet.clevr.scene import Scene
from macnet.data.dataset import Dataset
from macnet.data.question_arrays import UNKNOWN
from macnet.errors import InputError
from macnet.evaluation.accuracy import Proportion, by_kind
from macnet.evaluation.report import new_table, terminal
from macnet.progress import progress

EDGES = (0.05, 0.25, 0.5, 0.75)
NO_OBJECT = "no object"
BINS = (
    f"up to {EDGES[0]:.0%}",
    *(f"{low:.0%} to {high:.0%}" for low, high in pairwise(EDGES)),
    f"over {EDGES[-1]:.0%}",
    NO_OBJECT,
)
SCENES_PER_STEP = 50  # between two updates of the progress bar


def max_occlusion(
    dataset: Dataset, scenes: Mapping[int, Scene], device: torch.device | str = "cpu"
) -> np.ndarray:
    """(q,): for each chosen question, the hidden share of its most hidden object.

    NaN if it asks about no object that is there. `scenes` are by the number of their image. Pixels
    are counted in images of 480×320, CLEVR's own size, whatever the network's input size is.
    """
    programs = dataset.questions.programs[dataset.selected]
    images = dataset.questions.images[dataset.selected]
    if not programs.shape[1] or not programs[:, 0].all():
        raise InputError(
            f"{dataset.name}: its questions come without programs, so it is not known which "
            "objects they ask about"
        )
    numbers = np.unique(images).tolist()
    hidden: dict[int, np.ndarray] = {}
    with progress("measuring", "scenes", len(numbers)) as advance:
        for start in range(0, len(numbers), SCENES_PER_STEP):
            few = numbers[start : start + SCENES_PER_STEP]
            shares = occluded_fractions([scenes[number] for number in few], device=device)
            hidden |= zip(few, shares, strict=True)
            advance(len(few))
    facts = {number: SceneIndex(scenes[number]) for number in numbers}
    found = np.full(len(images), np.nan)
    for i, (program, number) in enumerate(zip(programs, images.tolist(), strict=True)):
        steps = from_prefix([dataset.format.program_tokens[token] for token in program if token])
        try:
            references = referenced_objects(steps, facts[number])
        except NotUniqueError as error:
            raise InputError(
                f"{dataset.name}: question {dataset.selected[i]} does not fit the scene of image "
                f"{number} ({error}); are these the scenes of its images?"
            ) from None
        if objects := sorted({*references.unique_objects, *references.counted_objects}):
            found[i] = np.fmax.reduce(hidden[number][objects])  # which ignores NaN
    return found


def measure_occlusion(
    dataset: Dataset, predictions: np.ndarray, hidden: np.ndarray
) -> dict[str, Proportion]:
    """Accuracy by `BINS`, of predictions (Q,) and of what `max_occlusion` gives (q,).

    Only questions whose answer is known are counted.
    """
    known = dataset.answers != UNKNOWN
    correct = (predictions[dataset.selected] == dataset.answers)[known]
    # A bin includes its upper edge; NaN is sorted behind all numbers.
    bins = np.searchsorted((*EDGES, np.inf), hidden[known])
    return dict(zip(BINS, by_kind(bins, correct, len(BINS)), strict=True))


def show_occlusion(found: Mapping[str, Proportion], console: Console | None = None) -> None:
    """Print what `measure_occlusion` gives, as a table."""
    title = "By the most hidden object asked about"
    table = new_table(title, "hidden", "accuracy", "95% interval", "questions")
    for name, part in found.items():
        if part.total:
            table.add_row(name, part.percent(), part.percent_interval(), f"{part.total:,}")
    (console or terminal()).print(table)
