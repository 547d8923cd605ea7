"""Where networks look while they answer questions about a world that knows where its objects are.

if __name__ == "__main__":  # workers are spawned, and import this file again
    world = World(seed=1, width=128, height=128)
    networks = watchable(trained), with_random_weights(trained)
    truth, (own, random) = observe(networks, trained.vocabulary, world, images=500, workers=2)

A step *points* at an object if the one place of the knowledge base that it attends to most shows at
least a pixel of it. There is no margin around: whoever looks beside an object does not point at it.
A place may show two objects, and a step then points at both; chance is counted by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from macnet.clevr.program import Facts, question_type
from macnet.clevr.questions import BLOCK, Question
from macnet.clevr.scene import MAX_OBJECTS
from macnet.clevr.table import to_scenes
from macnet.clevr.visits import visits
from macnet.clevr.world import Block, Stream, World
from macnet.data.questions import UNKNOWN
from macnet.data.stream import Encoder
from macnet.data.vocab import PAD, Vocabulary
from macnet.errors import InputError, not_finite
from macnet.evaluation.answering import AT_ONCE, AT_ONCE_ON_CPU
from macnet.models.encoders import PixelTrunk
from macnet.models.mac import MACNetwork
from macnet.progress import progress
from macnet.training.checkpoint import Trained

SEED = 0  # of random weights


@dataclass(frozen=True)
class Truth:
    """Q questions about N pictures, and what their programs visit: the same for every network.

    Pictures have up to ten objects and L places, those of the networks' knowledge bases.
    """

    pictures: np.ndarray
    """(Q,): the picture that each is about."""
    shows: np.ndarray
    """(N, 10, L) bool: whether a place shows a pixel of an object."""
    columns: int
    """Of the grid that the places make, row by row."""
    there: np.ndarray
    """(N, 10) bool: which objects there are."""
    referents: np.ndarray
    """(Q, 10) bool"""
    members: np.ndarray
    """(Q, 10) bool"""
    links: np.ndarray
    """(K, 3): a question, and two of its referents, of which the first leads to the second."""
    kinds: np.ndarray
    """(Q,): the column of the paper's tables, by name."""
    answers: np.ndarray
    """(Q,): by their id in the vocabulary."""

    @property
    def others(self) -> np.ndarray:
        """(Q,): for each question the next about its picture, after the last the first."""
        last = np.append(self.pictures[1:] != self.pictures[:-1], True)
        first = np.append(0, np.flatnonzero(last)[:-1] + 1)
        following = np.arange(1, len(last) + 1)
        following[last] = first
        return following

    def with_margin(self) -> Truth:
        """As if objects were seen at the places around theirs too."""
        grids = self.shows.reshape(*self.shows.shape[:2], -1, self.columns)
        padded = np.pad(grids, [(0, 0), (0, 0), (1, 1), (1, 1)])
        around = sliding_window_view(padded, (3, 3), axis=(2, 3)).max((4, 5))
        return replace(self, shows=around.reshape(self.shows.shape))


class Watched(NamedTuple):
    """What a network of p steps attended to, and answered."""

    peaks: np.ndarray
    """(Q, p): the place that a step attends to most."""
    attention: np.ndarray
    """(Q, p, 10): the share of a step's attention that is on the places of each object."""
    positions: np.ndarray
    """(Q, p): where in the question it reads on average, from 0, the first word, to 1, the last.

    Not a number where it does not attend to words.
    """
    answers: np.ndarray
    """(Q,)"""


def watchable(trained: Trained) -> MACNetwork:
    """Its network, which must attend to places of a picture."""
    network = trained.network()
    if not isinstance(network, MACNetwork):
        raise InputError(
            f"{trained.path}: it is of the system {trained.system.name}, which attends to nothing; "
            "only a MAC can be watched"
        )
    if not trained.fit.pixels:
        raise InputError(
            f"{trained.path}: it learned from features, and cannot see pictures; only one that "
            "learned from pictures can be watched"
        )
    return network


def with_random_weights(trained: Trained) -> MACNetwork:
    """The same network before it had learned anything; each time the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        fresh: Any = trained.system.build(trained.config, trained.fit)
    network: MACNetwork = fresh.eval()
    return network


def observe(
    networks: Sequence[MACNetwork],
    vocabulary: Vocabulary,
    world: World,
    *,
    images: int,
    split: str = "val",
    device: torch.device | str = "cpu",
    workers: int = 0,
    name: object = "the network",
) -> tuple[Truth, list[Watched]]:
    """Ask all of them the questions about the first images of a split, and watch.

    Their pictures have the same places: they look at pixels through trunks of one kind. One whose
    answers are not finite is refused, by that name.
    """
    if images < 1:
        raise InputError(f"{images} images of {split!r} are asked for; one is the least")
    encoder = Encoder.of(world, vocabulary)
    place = nearest_places(world.height, world.width).to(device)
    columns = len(PixelTrunk.centres(world.height, world.width)[1])
    pictures: list[tuple[Tensor, int]] = []
    questions: list[_Visiting] = []
    seen: list[list[Watched]] = [[] for _ in networks]
    with (
        progress("watching", "images", images) as advance,
        Stream(world, split=split, device=device, workers=workers) as stream,
    ):
        for part in in_parts(stream, images):
            shows = shown_at(part.objects, place)
            tokens, real = side_by_side(part, encoder)
            for parts, network in zip(seen, networks, strict=True):
                all_of_it = watch(network, part.images, tokens, shows, name)
                parts.append(Watched(*(column[real] for column in all_of_it)))
            for scene, of_scene, asked in zip(
                to_scenes(part.scenes), shows.cpu(), part.questions, strict=True
            ):
                facts = Facts(scene)
                questions += (_visiting(len(pictures), q, facts, vocabulary) for q in asked)
                pictures.append((of_scene, len(scene.objects)))
            advance(len(part.images))
    watched = [Watched(*map(np.concatenate, zip(*parts, strict=True))) for parts in seen]
    return _collected(pictures, columns, questions), watched


@torch.inference_mode()
def watch(
    network: MACNetwork,
    images: Tensor,
    questions: Tensor,
    shows: Tensor,
    name: object = "the network",
) -> Watched:
    """Of N images and B questions, as a network takes them; shows: (N, 10, L)."""
    logits, steps = network.trace(images, questions)
    if not logits.isfinite().all():  # the columns below are waited for as well
        raise not_finite(name)
    attention = torch.stack([step.knowledge for step in steps], 1).float()  # (B, p, L)
    each = len(questions) // len(images)
    on_objects = torch.einsum("ngpl,nol->ngpo", attention.unflatten(0, (-1, each)), shows.float())
    words = [step.words for step in steps if step.words is not None]
    if words:
        length = (questions != PAD).sum(1).clamp(min=2)[:, None]
        place = torch.arange(questions.shape[1], device=questions.device)
        positions = (torch.stack(words, 1).float() @ place.float()) / (length - 1)  # (B, p)
    else:
        positions = torch.full(attention.shape[:2], torch.nan)
    found = attention.argmax(2), on_objects.flatten(0, 1), positions, logits.argmax(1)
    return Watched(*(column.cpu().numpy() for column in found))


def nearest_places(height: int, width: int) -> Tensor:
    """(height·width,): the place of K that each pixel is nearest to; of two, the first."""
    down, across = PixelTrunk.centres(height, width)
    row = np.abs(np.arange(height)[:, None] - np.array(down)).argmin(1)
    column = np.abs(np.arange(width)[:, None] - np.array(across)).argmin(1)
    return torch.from_numpy(row[:, None] * len(across) + column).flatten()


def shown_at(objects: Tensor, place: Tensor) -> Tensor:
    """(N, 10, L) bool, of masks (N, height, width): which places show a pixel of each object."""
    rows, places = MAX_OBJECTS + 1, int(place.max()) + 1
    shows = torch.zeros(len(objects), rows * places, dtype=torch.bool, device=objects.device)
    which = objects.flatten(1).long() % rows  # the ground, −1, is the last
    shows.scatter_(1, which * places + place, True)
    return shows.view(-1, rows, places)[:, :MAX_OBJECTS]


# --- questions -------------------------------------------------------------------------------


class _Visiting(NamedTuple):
    """A question, of which picture, and what it visits."""

    picture: int
    referents: tuple[int, ...]
    members: tuple[int, ...]
    links: tuple[tuple[int, int], ...]
    kind: str
    answer: int


def _visiting(picture: int, question: Question, facts: Facts, vocabulary: Vocabulary) -> _Visiting:
    program = question.program
    answer = vocabulary.answers.index(question.answer)
    return _Visiting(picture, *visits(program, facts), question_type(program), answer)


def _collected(
    pictures: list[tuple[Tensor, int]], columns: int, questions: list[_Visiting]
) -> Truth:
    shows, counts = zip(*pictures, strict=True)
    links = [(q, *link) for q, question in enumerate(questions) for link in question.links]
    return Truth(
        pictures=np.array([question.picture for question in questions]),
        shows=torch.stack(shows).numpy(),
        columns=columns,
        there=np.arange(MAX_OBJECTS) < np.array(counts)[:, None],
        referents=_marked([question.referents for question in questions]),
        members=_marked([question.members for question in questions]),
        links=np.array(links, int).reshape(-1, 3),
        kinds=np.array([question.kind for question in questions]),
        answers=np.array([question.answer for question in questions]),
    )


def _marked(objects: Sequence[Sequence[int]]) -> np.ndarray:
    marked = np.zeros((len(objects), MAX_OBJECTS), bool)
    for row, indices in zip(marked, objects, strict=True):
        row[list(indices)] = True
    return marked


def side_by_side(part: Block, encoder: Encoder) -> tuple[Tensor, np.ndarray]:
    """(B, S): as many questions to each image, and which of them are no fillers."""
    batch = encoder.batch(part._replace(questions=encoder(part.questions)))
    return batch.questions, (batch.which != UNKNOWN).cpu().numpy()


def in_parts(stream: Stream, images: int) -> Iterator[Block]:
    """So many images of a stream, in blocks of few enough to be asked about at once."""
    few = AT_ONCE_ON_CPU if stream.device.type == "cpu" else AT_ONCE
    for block in islice(stream, -(-images // BLOCK)):
        wanted = min(BLOCK, images - BLOCK * block.number)
        for start in range(0, wanted, few):
            some = slice(start, min(start + few, wanted))
            columns: Iterator[Any] = (column[some] for column in block[1:])
            yield Block(block.number, *columns)
