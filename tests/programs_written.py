"""Programs that nobody wrote, for whatever shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from explained import explanation, shares
from macnet.clevr.program import QUESTION_TYPE_OF, from_prefix, to_token
from macnet.data.batches import Batch
from macnet.explain.reply import Explanation, Module
from macnet.models.system import ModuleTrace, ProgramWriting

FIVE = "count filter_shape[cube] filter_color[red] filter_size[large] scene"
TWELVE = (
    "query_material unique filter_color[cyan] filter_shape[sphere] relate[behind] unique "
    "filter_size[small] filter_color[purple] relate[left] unique filter_material[rubber] scene"
)
_FILTERS = "filter_shape[cylinder] filter_material[rubber] filter_color[yellow] filter_size[small]"
_COUNT = f"count {_FILTERS} relate[front] unique {_FILTERS} scene"
LONGEST = f"greater_than {_COUNT} {_COUNT}"
"""25 functions, as many as a program of CLEVR can have."""
QUESTION = (
    "Are there more metal cylinders in front of the small yellow rubber ball than metal "
    "cylinders in front of the tiny yellow matte sphere?"
)


def names_of(prefix: str | Sequence[str]) -> list[str]:
    """The names of the modules of a program, in order of execution."""
    tokens = prefix.split() if isinstance(prefix, str) else prefix
    return [to_token(node["function"], node["value_inputs"]) for node in from_prefix(tokens)]


def written(
    prefix: str = FIVE,
    true: str | None = None,
    *,
    words: bool = True,
    maps: bool = True,
    question: str = QUESTION,
    picture: tuple[int, int] = (60, 40),
    seed: int = 0,
) -> Explanation:
    """An explanation by this program; modules that give an answer or a number have no map."""
    rng = np.random.default_rng(seed)
    plain = explanation(steps=0, question=question, picture=picture, seed=seed)
    grid = len(plain.centers.rows), len(plain.centers.columns)
    modules = tuple(
        Module(
            name=to_token(node["function"], node["value_inputs"]),
            inputs=tuple(node["inputs"]),
            words=shares(rng, len(plain.words)) if words and node["inputs"] else None,
            image=shares(rng, *grid) if maps and node["function"] not in QUESTION_TYPE_OF else None,
        )
        for node in from_prefix(prefix.split())
    )
    return replace(
        plain,
        modules=modules,
        true_modules=None if true is None else tuple(names_of(true)),
        map_title="attention",
    )


def trace(network: Any, images: Tensor, questions: Tensor) -> tuple[Tensor, list[ModuleTrace]]:
    """Logits of a network that writes nothing, with the program FIVE."""
    cells, words = -(-images.shape[1] // 8) * -(-images.shape[2] // 8), questions.shape[1]
    modules = [
        ModuleTrace(
            name=to_token(node["function"], node["value_inputs"]),
            inputs=tuple(node["inputs"]),
            words=torch.full((words,), 1 / words) if node["inputs"] else None,
            map=None if node["function"] == "count" else torch.eye(cells)[place],
        )
        for place, node in enumerate(from_prefix(FIVE.split()))
    ]
    return network(images, questions), modules


def forward(network: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """No program is the true one."""
    logits = network(batch.images, batch.questions)
    return logits, torch.zeros(len(logits), dtype=torch.bool)


WRITING = ProgramWriting(forward=forward, trace=trace, modules=names_of, map_title="attention")
