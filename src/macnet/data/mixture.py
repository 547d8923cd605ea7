"""Two sources of batches as one: new questions to learn from, and old ones, not to be forgotten.

    share = 0.5
    humans, clevr = positions(position, share)  # where an earlier run stopped
    source = Mixture(Batches(…, position=humans), Batches(…, position=clevr), share)

So a network that knows CLEVR learns CLEVR-Humans; both sets are in the words of one vocabulary.
"""

from __future__ import annotations

from fractions import Fraction

from torch import Tensor
from torch.nn.functional import pad

from macnet.data.batches import Batch, Source
from macnet.errors import InputError


def positions(position: int, share: float) -> tuple[int, int]:
    """How many of a mixture's first batches are of its main source, and how many of the other."""
    of_other = int(position * _exactly(share))
    return position - of_other, of_other


def _exactly(share: float) -> Fraction:
    """The fraction that is meant: 0.29 is 29 of 100, where the float is a little less."""
    if 0 < share < 1 and 0 < (meant := Fraction(share).limit_denominator()) < 1:
        return meant
    raise InputError(f"the share of batches to be mixed in is {share}; it must lie in (0, 1)")


class Mixture:
    """Batches of two sources, evenly in turn: of any first n, floor(n · share) are of the other.

    All have one shape, so that one captured graph takes them: words and programs are padded to the
    wider of the two.
    """

    def __init__(self, main: Source, other: Source, share: float) -> None:
        self.position = main.position + other.position
        """Batches drawn so far; `positions` tells how many of each source, which is one ahead."""
        if (main.position, other.position) != positions(self.position, share):
            raise ValueError(
                f"no mixture with a share of {share} is at {main.position} and {other.position}"
            )
        self._sources, self._share = (main, other), share
        self.steps = None if main.steps is None else -(-main.steps // (1 - _exactly(share)))
        """Batches in which the main source's epoch is gone through."""
        # The next of each lies ready: a first one tells the shape of all.
        self._next = [_gathered(main), _gathered(other)]
        shapes = [(tuple(batch.images.shape), len(batch.which)) for batch in self._next]
        if shapes[0] != shapes[1] or len({batch.images.dtype for batch in self._next}) > 1:
            ours, others = (
                f"{asked} questions about images {shape} of {batch.images.dtype}"
                for (shape, asked), batch in zip(shapes, self._next, strict=True)
            )
            raise InputError(
                f"batches of {ours} cannot be mixed with batches of {others}; pack both sets in "
                "one size, and take as many images and questions of each"
            )
        self._words = max(batch.questions.shape[1] for batch in self._next)
        self._functions = max(batch.programs.shape[1] for batch in self._next)

    def draw(self) -> Batch:
        """The next batch: nothing is left to be gathered."""
        _, others = positions(self.position, self._share)
        is_other = positions(self.position + 1, self._share)[1] > others
        batch, self._next[is_other] = self._next[is_other], _gathered(self._sources[is_other])
        self.position += 1
        return batch._replace(
            questions=_widened(batch.questions, self._words),
            programs=_widened(batch.programs, self._functions),
        )

    def gather(self, drawn: tuple[Tensor, ...]) -> Batch:
        return Batch(*drawn)

    def close(self) -> None:
        for source in self._sources:
            source.close()


def _gathered(source: Source) -> Batch:
    return source.gather(source.draw())


def _widened(ids: Tensor, width: int) -> Tensor:
    return pad(ids, (0, width - ids.shape[1]))
