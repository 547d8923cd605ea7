"""Whether errors come from what is hidden: accuracy by the most hidden object asked about.

"For CLEVR, we see that many of the errors arise from object occlusions" (the paper's appendix on
errors). Asked about are the objects that a question's program singles out on its way, and those
that it counts, or says that there are any of. Of each, the renderer knows how many pixels it shows
and how many it would show alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from rich.console import Console

from macnet.clevr.program import Facts, PresumptionError, from_prefix
from macnet.clevr.render import hidden_shares
from macnet.clevr.scene import Scene
from macnet.clevr.visits import visits
from macnet.data.dataset import Dataset
from macnet.data.questions import UNKNOWN
from macnet.data.vocab import PROGRAM_TOKENS
from macnet.errors import InputError
from macnet.evaluation.accuracy import Share
from macnet.evaluation.report import start_table, terminal
from macnet.progress import progress

EDGES = (0.05, 0.25, 0.5, 0.75)
NOTHING = "no object"
BINS = (
    f"up to {EDGES[0]:.0%}",
    *(f"{low:.0%} to {high:.0%}" for low, high in pairwise(EDGES)),
    f"over {EDGES[-1]:.0%}",
    NOTHING,
)
AT_ONCE = 50  # scenes, between two looks at the clock


def most_hidden(
    dataset: Dataset, scenes: Mapping[int, Scene], device: torch.device | str = "cpu"
) -> np.ndarray:
    """(q,): of each question that counts, how much is hidden of its most hidden object.

    Not a number where it asks about no object that is there. `scenes` are by the number of their
    image. Pixels are counted in pictures of 480×320, CLEVR's own size, whatever the network sees.
    """
    programs, images = (
        column[dataset.chosen] for column in (dataset.questions.programs, dataset.questions.images)
    )
    if not programs.shape[1] or not programs[:, 0].all():
        raise InputError(
            f"{dataset.name}: its questions come without programs, which would tell what objects "
            "they ask about"
        )
    numbers = np.unique(images).tolist()
    hidden: dict[int, np.ndarray] = {}
    with progress("measuring", "scenes", len(numbers)) as advance:
        for start in range(0, len(numbers), AT_ONCE):
            few = numbers[start : start + AT_ONCE]
            shares = hidden_shares([scenes[number] for number in few], device=device)
            hidden |= zip(few, shares, strict=True)
            advance(len(few))
    facts = {number: Facts(scenes[number]) for number in numbers}
    found = np.full(len(images), np.nan)
    for i, (program, number) in enumerate(zip(programs, images.tolist(), strict=True)):
        steps = from_prefix([PROGRAM_TOKENS[token] for token in program if token])
        try:
            visited = visits(steps, facts[number])
        except PresumptionError as error:
            raise InputError(
                f"{dataset.name}: question {dataset.chosen[i]} does not fit the scene of image "
                f"{number} ({error}); are these the scenes of its images?"
            ) from None
        objects = sorted({*visited.referents, *visited.members})
        if objects:
            found[i] = np.fmax.reduce(
                hidden[number][objects]
            )  # which passes over what is no number
    return found


@dataclass(frozen=True)
class Occlusion:
    """Of the questions whose answer is known."""

    shares: Mapping[str, Share]
    """By `BINS`, how much is hidden of the most hidden object asked about."""

    def to_record(self) -> dict[str, Any]:
        return {name: share.to_record() for name, share in self.shares.items()}


def by_occlusion(dataset: Dataset, predictions: np.ndarray, hidden: np.ndarray) -> Occlusion:
    """Of answers (Q,), one for each question of the set, and of what `most_hidden` gives (q,)."""
    known = dataset.answers != UNKNOWN
    right = (predictions[dataset.chosen] == dataset.answers)[known]
    # Up to and with its edge; what is no number is sorted behind all numbers.
    bins = np.searchsorted((*EDGES, np.inf), hidden[known])
    counts, rights = (np.bincount(b, minlength=len(BINS)).tolist() for b in (bins, bins[right]))
    return Occlusion({name: Share(r, n) for name, r, n in zip(BINS, rights, counts, strict=True)})


def show_occlusion(found: Occlusion, console: Console | None = None) -> None:
    title = "By the most hidden object asked about"
    table = start_table(title, "hidden", "accuracy", "95% interval", "questions")
    for name, share in found.shares.items():
        if share.count:
            low, high = share.interval
            interval = f"{100 * low:.2f} – {100 * high:.2f}"
            table.add_row(name, f"{100 * share.value:.2f}", interval, f"{share.count:,}")
    (console or terminal()).print(table)
