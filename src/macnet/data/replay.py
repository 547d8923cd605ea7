"""Two sources of batches mixed into one: new questions, and old ones replayed against forgetting.

    share = 0.5
    humans, clevr = source_positions(position, share)  # where an earlier run stopped
    source = ReplayMixture(Batches(…, position=humans), Batches(…, position=clevr), share)

So a network trained on CLEVR is fine-tuned on CLEVR-Humans; both datasets have one vocabulary.
"""

from __future__ import annotations

from fractions import Fraction

from torch import Tensor
from torch.nn.functional import pad

from macnet.data.batches import Batch, BatchSource
from macnet.errors import InputError


def source_positions(position: int, share: float) -> tuple[int, int]:
    """The numbers of batches from the main and from the replayed source, up to a position."""
    replayed = int(position * _as_fraction(share))
    return position - replayed, replayed


def _as_fraction(share: float) -> Fraction:
    """The simplest fraction near a float: 0.29 is 29 of 100, where the float is a little less."""
    if 0 < share < 1 and 0 < (fraction := Fraction(share).limit_denominator()) < 1:
        return fraction
    raise InputError(f"the share of replayed batches is {share}; it must lie in (0, 1)")


class ReplayMixture(BatchSource):
    """Batches of two sources, evenly spread: of the first n, floor(n · share) are replayed.

    All have one shape, as a captured CUDA graph needs: words and programs are padded to the wider
    of the two.
    """

    def __init__(self, main: BatchSource, replay: BatchSource, share: float) -> None:
        self.position = main.position + replay.position
        """Number of batches sampled so far; each source is one ahead of `source_positions`."""
        if (main.position, replay.position) != source_positions(self.position, share):
            raise ValueError(
                f"no mixture with a share of {share} is at {main.position} and {replay.position}"
            )
        self._sources, self._share = (main, replay), share
        self.steps = None if main.steps is None else -(-main.steps // (1 - _as_fraction(share)))
        """Number of batches in which an epoch of the main source comes."""
        # The next batch of each is ready: the first ones give the shape of all.
        self._next = [next(main), next(replay)]
        shapes = [(tuple(batch.images.shape), len(batch.question_index)) for batch in self._next]
        if shapes[0] != shapes[1] or len({batch.images.dtype for batch in self._next}) > 1:
            ours, others = (
                f"{asked} questions about images {shape} of {batch.images.dtype}"
                for (shape, asked), batch in zip(shapes, self._next, strict=True)
            )
            raise InputError(
                f"batches of {ours} cannot be mixed with batches of {others}; pack both datasets "
                "in one size, and take as many images and questions of each"
            )
        self._words = max(batch.questions.shape[1] for batch in self._next)
        self._steps = max(batch.programs.shape[1] for batch in self._next)

    def sample(self) -> Batch:
        """The next batch: nothing is left to be gathered."""
        _, replayed = source_positions(self.position, self._share)
        source = int(source_positions(self.position + 1, self._share)[1] > replayed)
        batch, self._next[source] = self._next[source], next(self._sources[source])
        self.position += 1
        return batch._replace(
            questions=_widened(batch.questions, self._words),
            programs=_widened(batch.programs, self._steps),
        )

    def close(self) -> None:
        """Close both sources."""
        for source in self._sources:
            source.close()


def _widened(ids: Tensor, width: int) -> Tensor:
    return pad(ids, (0, width - ids.shape[1]))
