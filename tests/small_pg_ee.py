"""A small PG+EE, and questions with programs for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from macnet.data.batches import Batch
from macnet.data.question_arrays import program_ids
from macnet.data.spec import DataSpec
from macnet.data.vocab import END, PAD
from macnet.models.systems.pg_ee import (
    PGEE,
    PGEEConfig,
)
from system_checks import (
    data_spec,
    padded,
    with_random_state,
)

SMALL = PGEEConfig(embedding=5, units=6, layers=2, program_length=9, channels=4, pooled=5, hidden=7)
FEATURES = data_spec(False, 3, 5)
SEED = 29
"""Of generators that write different tokens, and of whose programs some end and some do not."""
TEXTS = [
    "exist filter_color[red] scene",
    "count relate[left] unique filter_shape[cube] scene",
    "equal_integer count filter_color[red] scene count scene",
    "count union filter_size[small] scene intersect scene scene",
]


def network_for(sizes: DataSpec = FEATURES, **changes: Any) -> PGEE:
    network = with_random_state(PGEE(replace(SMALL, **changes), sizes), training=False)
    torch.manual_seed(SEED)
    for weight in network.generator.parameters():
        nn.init.normal_(weight)
    nn.init.normal_(network.generator.output.weight, std=10)
    nn.init.constant_(network.generator.output.bias[END], 3)
    return network


def undecided(network: PGEE) -> PGEE:
    """The network, with a generator to which many tokens are probable."""
    nn.init.normal_(network.generator.output.weight, std=0.3)
    nn.init.constant_(network.generator.output.bias[END], 1)
    return network


def ids_of(texts: list[str], width: int = 9) -> Tensor:
    """The ids (B, width) of programs in prefix form."""
    rows = [[*program_ids(text.split())] for text in texts]
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def batch_of(images: Tensor, answers: list[int] | None = None) -> Batch:
    """Four questions about each image, which are the same for all images."""
    n = len(images)
    questions = padded([[5, 1, 6], [5, 2, 6, 7], [5, 3], [5, 4, 6]]).repeat(n, 1)
    index = torch.arange(4 * n)
    lengths = (questions != 0).sum(1)
    given = index % 4 if answers is None else torch.tensor(answers)
    return Batch(images, questions, lengths, given, index, ids_of(TEXTS, 8).repeat(n, 1), index)


def words_of(batch: Batch) -> list[list[int]]:
    return [[word for word in row if word] for row in batch.questions.tolist()]
