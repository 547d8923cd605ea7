"""Programs as batches: read into trees, written token by token, and learned from rewards.

PG+EE writes CLEVR's programs in prefix form, N2NMN writes layouts in postfix form. Nothing here has
a loop over questions: B programs of at most L tokens are a tensor (B, L), and trees are tensors of
positions in it. All shapes are static and nothing waits for the device, as CUDA graphs need.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from macnet import distributed
from macnet.clevr.program import arity
from macnet.data.vocab import PAD, PROGRAM_TOKENS, SPECIALS

ARITIES = tuple(
    1 if token in SPECIALS else arity(token.partition("[")[0]) for token in PROGRAM_TOKENS
)
"""Number of inputs of each program token. A special token that is written, such as <END> where an
input is missing, is executed as a function of one input."""
SCENE = PROGRAM_TOKENS.index("scene")
PAIRS = tuple(token for token, inputs in enumerate(ARITIES) if inputs == 2)
"""The tokens that take two inputs."""


class Trees(NamedTuple):
    """B programs in prefix form as trees; a node is a position among P."""

    tokens: Tensor
    """(B, P) int64: the token of each node."""
    is_node: Tensor
    """(B, P) bool: whether the position belongs to the program; what follows its end does not."""
    inputs: Tensor
    """(B, P, 2) int64: the nodes of the first and second input; −1 where there is none."""
    parent: Tensor
    """(B, P) int64: the node whose input it is; −1 for the root, which is node 0."""
    height: Tensor
    """(B, P) int64: 0 for `scene`, else one more than that of the highest input; −1 if no node."""
    postfix: Tensor
    """(B, P) int64: its place in postfix form; that of what is no node comes after all nodes."""


@cache
def lookup_table(values: tuple[int, ...], device: torch.device) -> Tensor:
    """The values on a device, copied there once: a CUDA graph cannot copy from the host."""
    with torch.inference_mode(False):  # or nothing that learns could use it later
        return torch.tensor(values, device=device)


def read_prefix(tokens: Tensor) -> Trees:
    """Read programs (B, L) in prefix form; whatever was written is a program.

    The root is the first token, and each token is followed by its inputs. Where an input is missing
    (PAD, or past the end), it is `scene`; what follows a complete program is ignored. P is 2L + 1,
    for L tokens lack L + 1 inputs at most; nodes after the first L are all `scene`.
    """
    batch, length = tokens.shape
    size = 2 * length + 1
    tokens = F.pad(tokens.masked_fill(tokens == PAD, SCENE), (0, size - length), value=SCENE)
    arities = lookup_table(ARITIES, tokens.device)[tokens]  # (B, P)
    after = 1 + (arities - 1).cumsum(1)  # inputs that are still missing after each token
    before = F.pad(after[:, :-1], (1, 0), value=1)
    is_node = before.cummin(1).values > 0  # until none is missing
    # The subtree of i ends at the first j ≥ i after which fewer inputs are missing than before i.
    position = torch.arange(size, device=tokens.device)
    closes = (after[:, None] < before[..., None]) & (position >= position[:, None])  # (B, i, j)
    end = closes.int().argmax(2)  # (B, P)
    # j is within the subtree of i if i ≤ j ≤ end_i.
    within = (position >= position[:, None]) & (position <= end[..., None])  # (B, i, j)
    within &= is_node[..., None] & is_node[:, None]
    depth = within.sum(1) - 1  # ancestors
    height = (within * depth[:, None]).amax(2) - depth
    above = within & (position != position[:, None])
    parent = torch.where(above, position[:, None], -1).amax(1)  # the nearest is the last
    first = (position + 1).expand(batch, -1)
    second = end.roll(-1, 1) + 1
    inputs = torch.stack([first, second], 2)
    missing = torch.stack([arities < 1, arities < 2], 2) | ~is_node[..., None]
    height = height.masked_fill(~is_node, -1)
    # Before a node stand all that precede it in prefix form but its ancestors, and all below it.
    postfix = torch.where(is_node, end - depth, position)
    return Trees(tokens, is_node, inputs.masked_fill(missing, -1), parent, height, postfix)


# --- writing ---------------------------------------------------------------------------------


def lstm_cell(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The state h and the cell c (B, u) after a step, in the precision of the cell before.

    The gates (B, 4u) are in the order i, f, g, o.
    """
    i, f, g, o = gates.to(c.dtype).chunk(4, dim=1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def token_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """(B, T): the log-probability of each token; logits are (B, T, tokens)."""
    log_p = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    return log_p.gather(-1, tokens[..., None]).squeeze(-1)


def choose(logits: Tensor, *, sample: bool) -> Tensor:
    """(B,): tokens by their logits (B, tokens): the most probable, or at random."""
    if not sample:
        return logits.argmax(-1)
    # The largest of logits with Gumbel noise is a sample; unlike `multinomial`, nothing is checked
    # on the host. Logits of −∞ are never chosen, for the noise is finite.
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_().clamp_(min=1e-30).log()
    return (logits.float() - noise).argmax(-1)


# --- rewards ---------------------------------------------------------------------------------


class MovingBaseline(nn.Module):
    """The moving average of the cost of programs, which REINFORCE compares a cost with."""

    mean: Tensor

    def __init__(self, initial: float, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("mean", torch.tensor(initial))

    def update(self, cost: Tensor, known: Tensor) -> Tensor:
        """The average, moved by the costs (B,) of known questions of all processes."""
        sums = torch.stack([cost.masked_fill(~known, 0).sum(), known.sum()]).detach().double()
        total, count = distributed.all_reduce_sum(sums)
        moved = self.mean.lerp((total / count.clamp(min=1)).to(self.mean), 1 - self.decay)
        self.mean.copy_(moved.where(count > 0, self.mean))
        return self.mean.clone()


def reinforce(log_p: Tensor, cost: Tensor, baseline: Tensor, known: Tensor) -> Tensor:
    """The sum over known questions of (cost − baseline) · log p: less of what costs more.

    Its gradient is an estimate of that of the expected cost (Williams, 1992). All are (B,).
    """
    return ((cost.detach() - baseline).masked_fill(~known, 0) * log_p).sum()
