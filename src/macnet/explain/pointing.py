"""What networks attend to while they answer questions about a world whose objects are known.

if __name__ == "__main__":  # workers are spawned, and import this file again
    world = World(seed=1, width=128, height=128)
    tracers = trained_and_untrained(trained, torch.device("cpu"))
    truth, (own, random) = collect_attention(tracers, trained.vocabulary, world, images=500)

A step *points* at an object if the cell of the knowledge base that it attends to most shows at
least one pixel of the object. There is no margin. A cell may show two objects, and a step then
points at both; chance is counted by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from macnet.checkpoint import TrainedNetwork
from macnet.clevr.program import SceneIndex, question_type
from macnet.clevr.questions import IMAGES_PER_BLOCK
from macnet.clevr.references import referenced_objects
from macnet.clevr.scene import MAX_OBJECTS
from macnet.clevr.scene_array import array_to_scenes
from macnet.clevr.stream import Block, Stream
from macnet.clevr.world import World
from macnet.data.block_encoder import BlockEncoder
from macnet.data.endless import to_batch
from macnet.data.question_arrays import UNKNOWN
from macnet.data.vocab import Vocabulary
from macnet.errors import InputError
from macnet.evaluation.predict import BATCH_IMAGES, BATCH_IMAGES_CPU
from macnet.explain.resting import other_questions
from macnet.explain.tracing import Readings, Tracer, trace_attention
from macnet.models.cells import object_cells
from macnet.models.encoders import PixelEncoder
from macnet.progress import progress

SEED = 0  # of untrained weights


@dataclass(frozen=True)
class GroundTruth:
    """Q questions about N images, and the objects that their programs refer to.

    Images have up to ten objects and L cells, those of the networks' knowledge bases.
    """

    images: np.ndarray
    """(Q,): the image that each question is about."""
    cells: np.ndarray
    """(N, 10, L) bool: whether a cell shows a pixel of an object."""
    grid_width: int
    """Number of columns of the grid of cells, which are in row-major order."""
    exists: np.ndarray
    """(N, 10) bool: which objects exist."""
    unique_objects: np.ndarray
    """(Q, 10) bool: objects that a `unique` of the program finds."""
    counted_objects: np.ndarray
    """(Q, 10) bool: objects that a program counts or finds to exist."""
    hops: np.ndarray
    """(K, 3): a question, and two of its unique objects, of which the first leads to the second."""
    groups: np.ndarray
    """(Q,): the group of each question's type, by name."""
    answers: np.ndarray
    """(Q,): ids in the vocabulary."""

    @property
    def other_questions(self) -> np.ndarray:
        """(Q,): for each question the next one about its image, after the last the first."""
        last = np.append(self.images[1:] != self.images[:-1], True)
        following = np.arange(1, len(last) + 1)
        following[last] = np.append(0, following[last][:-1])
        return following

    def with_margin(self) -> GroundTruth:
        """The same as if objects were also visible in the cells next to theirs."""
        grids = torch.from_numpy(self.cells).float().unflatten(2, (-1, self.grid_width))
        around = max_pool2d(grids, 3, stride=1, padding=1).bool()
        return replace(self, cells=around.flatten(2).numpy())


class TracedBatch(NamedTuple):
    """Q questions about N images, and what a network attended to."""

    first_image: int
    """The index of the first image in the split."""
    block: Block
    """The images, and where their objects are."""
    cells: Tensor
    """(N, 10, L) bool: whether a cell shows a pixel of an object."""
    images: np.ndarray
    """(Q,): the image in this batch that each question is about."""
    questions: Tensor
    """(Q, S): tokens."""
    answers: np.ndarray
    """(Q,): ids of the correct answers."""
    readings: Readings


def trained_and_untrained(trained: TrainedNetwork, device: torch.device) -> tuple[Tracer, Tracer]:
    """The network, and the same with random weights, which are the same each time."""
    own = trained.network()
    trace_own = trained.tracer(own)
    if not trained.data_spec.pixels:
        raise InputError(
            f"{trained.path}: it was trained on features, and cannot take images; take a network "
            "that was trained on images"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        untrained = trained.system.build(trained.config, trained.data_spec).eval()
    own.to(device)
    return trace_own, trained.tracer(untrained.to(device))


def collect_attention(
    tracers: Sequence[Tracer],
    vocabulary: Vocabulary,
    world: World,
    *,
    images: int,
    split: str = "val",
    device: torch.device | str = "cpu",
    workers: int = 0,
    name: object = "the network",
    on_batch: Callable[[TracedBatch], None] = lambda batch: None,
) -> tuple[GroundTruth, list[Readings]]:
    """Trace networks on the questions about the first images of a split.

    Their grids of cells must be the same. `on_batch` is called with each batch of the first one.
    Raises NotFiniteError, which names the network by `name`, if logits are not finite.
    """
    if images < 1:
        raise InputError(f"`world_images` is {images}; it must be at least 1")
    encoder, others = BlockEncoder.for_world(world, vocabulary), other_questions(vocabulary)
    grid_width = len(PixelEncoder.cell_centers(world.height, world.width)[1])
    shown: list[Tensor] = []
    counts: list[int] = []  # of objects in each image
    asked: list[tuple[Any, ...]] = []
    found: list[list[Readings]] = [[] for _ in tracers]
    with (
        progress("tracing", "images", images) as advance,
        Stream(world, split=split, device=device, workers=workers) as stream,
    ):
        for block in split_blocks(stream, images):
            cells = object_cells(block.objects)
            first_image, first_question = len(counts), len(asked)
            shown.append(cells.cpu())
            for scene, of_scene in zip(array_to_scenes(block.scenes), block.questions, strict=True):
                facts = SceneIndex(scene)
                for question in of_scene:
                    objects = referenced_objects(question.program, facts)
                    answer = vocabulary.answers.index(question.answer)
                    asked.append((len(counts), *objects, question_type(question.program), answer))
                counts.append(len(scene.objects))
            if own := asked[first_question:]:  # in an easier world, nothing may fit a few scenes
                tokens, real = pad_block(block, encoder)
                for parts, trace in zip(found, tracers, strict=True):
                    padded = trace_attention(trace, block.images, tokens, cells, name, others)
                    parts.append(padded.select(real))
                batch = TracedBatch(
                    first_image=first_image,
                    block=block,
                    cells=cells,
                    images=np.array([image for image, *_ in own]) - first_image,
                    questions=tokens[torch.from_numpy(real).to(tokens.device)],
                    answers=np.array([answer for *_, answer in own]),
                    readings=found[0][-1],
                )
                on_batch(batch)
            advance(len(block.images))
    if not asked:
        raise InputError(
            f"no question of the chosen families fits any of the {images:,} images; choose "
            "others, or more objects"
        )
    of, unique, counted, hops, groups, answers = zip(*asked, strict=True)
    truth = GroundTruth(
        images=np.array(of),
        cells=torch.cat(shown).numpy(),
        grid_width=grid_width,
        exists=np.arange(MAX_OBJECTS) < np.array(counts)[:, None],
        unique_objects=_to_mask(unique),
        counted_objects=_to_mask(counted),
        hops=np.array([(q, *hop) for q, own in enumerate(hops) for hop in own], int).reshape(-1, 3),
        groups=np.array(groups),
        answers=np.array(answers),
    )
    return truth, [Readings.concatenate(parts) for parts in found]


def _to_mask(objects: Sequence[Sequence[int]]) -> np.ndarray:
    mask = np.zeros((len(objects), MAX_OBJECTS), bool)
    for row, indices in zip(mask, objects, strict=True):
        row[list(indices)] = True
    return mask


def pad_block(block: Block, encoder: BlockEncoder) -> tuple[Tensor, np.ndarray]:
    """Tokens (B, S), with as many questions for each image; and (B,) which are no fillers."""
    encoded = block._replace(questions=encoder.encode_texts(block.questions))
    batch = to_batch(encoded, encoder.words)
    return batch.questions, (batch.question_index != UNKNOWN).cpu().numpy()


def split_blocks(stream: Stream, images: int) -> Iterator[Block]:
    """The first images of a stream, in blocks small enough for one batch."""
    few = BATCH_IMAGES_CPU if stream.device.type == "cpu" else BATCH_IMAGES
    for block in islice(stream, -(-images // IMAGES_PER_BLOCK)):
        wanted = min(IMAGES_PER_BLOCK, images - IMAGES_PER_BLOCK * block.number)
        for start in range(0, wanted, few):
            some = slice(start, min(start + few, wanted))
            columns: Iterator[Any] = (column[some] for column in block[1:])
            yield Block(block.number, *columns)
