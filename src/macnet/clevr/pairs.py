"""Lists of pairs that may matter: of a ray and a body it may hit, of a point and what may shade it.

Only such lists are processed, never all rays times all bodies: most rays hit only the ground.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from macnet.clevr.columns import columnwise, concatenate
from macnet.clevr.shapes import MAX_GAP, Bodies, Cameras
from macnet.clevr.vector import Vec, dot, take_vec


def expand_counts(counts: Tensor, first: Tensor | int = 0) -> tuple[Tensor, Tensor]:
    """Counts [2, 0, 3] → owners [0, 0, 2, 2, 2] and ranks within each owner [0, 1, 0, 1, 2].

    The ranks of each owner count from `first`.
    """
    owner = torch.repeat_interleave(counts)
    return owner, _rank(counts.cumsum(0) - counts - first, owner)


def _rank(start: Tensor, owner: Tensor) -> Tensor:
    return torch.arange(owner.shape[0], device=owner.device) - start.index_select(0, owner)


class Spans(NamedTuple):
    """Rows of cells that rectangles cover."""

    rectangle: Tensor  # (n,)
    row: Tensor  # (n,)
    first: Tensor  # (n,) column
    length: Tensor  # (n,) number of columns


def rasterize(low: Tensor, high: Tensor, size: tuple[int, int]) -> Spans:
    """Rows of the cells that rectangles cover, given as (2, n) corners."""
    limit = torch.tensor(size, device=low.device)[:, None]
    first = torch.minimum(low.clamp(min=0), limit).floor().long()
    last = torch.minimum(high.clamp(min=0), limit).ceil().long()
    columns, rows = (last - first).clamp(min=0)
    rectangle, row = expand_counts(rows, first[1])
    return Spans(rectangle, row, first[0, rectangle], columns[rectangle])


# Corners i and j of a box, as `box_corners` numbers them, have an edge between them.
EDGES = [(i, i + k) for k in (1, 2, 4) for i in range(8) if not i & k]


def clip_to_boxes(spans: Spans, x: Tensor, y: Tensor, is_clipped: Tensor) -> Spans:
    """Keep of each span the cells whose centers are within the outline of a projected box.

    The boxes are given as the projections of their corners, (8, rectangles), in cells.
    `is_clipped` (rectangles,) is false for those whose spans are left as they are.
    """
    first, last = _clip(x, y, is_clipped, *spans)
    return spans._replace(first=first, length=last - first)


@columnwise(4)
def _clip(
    x: Tensor,
    y: Tensor,
    is_clipped: Tensor,
    rectangle: Tensor,
    row: Tensor,
    first: Tensor,
    length: Tensor,
) -> tuple[Tensor, Tensor]:
    # The outline consists of edges; a row's cells lie between the first and the last that cross it.
    starts, ends = (list(corners) for corners in zip(*EDGES, strict=True))
    x0, x1, y0, y1 = (
        k.index_select(1, rectangle) for k in (x[starts], x[ends], y[starts], y[ends])
    )
    center = row + 0.5
    crosses = (y0 > center) != (y1 > center)
    crossing = x0 + (x1 - x0) * (center - y0) / (y1 - y0) - 0.5
    is_free = ~is_clipped.index_select(0, rectangle)
    low = torch.where(crosses, crossing, torch.inf).amin(0).masked_fill(is_free, -torch.inf)
    high = torch.where(crosses, crossing, -torch.inf).amax(0).masked_fill(is_free, torch.inf)
    low = low.ceil().clamp(first, first + length)
    high = (high.floor() + 1).clamp(low, first + length)
    return low.long(), high.long()


def remove_spans(spans: Spans, k: Tensor, middle: Spans) -> Spans:
    """Spans without `middle`: a part, which may be empty, of each of those with index k."""
    left, end = spans.length.clone(), spans.first[k] + spans.length[k]
    left[k] = middle.first - spans.first[k]
    first = middle.first + middle.length
    right = Spans(middle.rectangle, middle.row, first, end - first)
    return concatenate([spans._replace(length=left), right])


class Neighbors(NamedTuple):
    """All ordered pairs of bodies in the same scene, sorted by body."""

    body: Tensor  # (p,)
    other: Tensor  # (p,)
    num_others: Tensor  # (m,) number of pairs of a body
    first: Tensor  # (m,) index of the first pair of a body


def find_neighbors(bodies: Bodies) -> Neighbors:
    """List the pairs of bodies in the same scene."""
    count = torch.bincount(bodies.scene)
    start = count.cumsum(0) - count
    num_others = count[bodies.scene] - 1
    body, k = expand_counts(num_others)
    other = start[bodies.scene[body]] + k
    return Neighbors(body, other + (other >= body), num_others, num_others.cumsum(0) - num_others)


def _sort_key(t: Tensor) -> Tensor:
    return (t.view(torch.int32).long() << 32) | torch.arange(t.shape[0], device=t.device)


def nearest_hits(t: Tensor, ray: Tensor, rays: int) -> tuple[Tensor, Tensor]:
    """The pair with the smallest t of each ray: (ray, pair) of every ray that hits something.

    Distance and index of a pair share one 64-bit key, so the minimum is exact and has no ties.
    """
    best = torch.full((rays,), torch.iinfo(torch.int64).max, device=t.device)
    best.scatter_reduce_(0, ray, _sort_key(t), "amin")
    infinite = 0x7F800000 << 32
    hit = torch.nonzero(best < infinite)[:, 0]
    return hit, best.index_select(0, hit) & 0xFFFFFFFF


def box_corners(bodies: Bodies, margin: Tensor, facing: Vec | None = None) -> Vec:
    """The 8 corners of a bounding box of each body, (8, ..., m), grown by a margin, (..., m).

    The boxes of round bodies face the points `facing`, (..., m), if these are given: from there,
    they look smallest.
    """
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3).T.to(bodies.radius.device)
    half = bodies.radius + margin  # (..., m)
    x, y, z = (sign.view(8, *[1] * half.dim()) * half for sign in signs)
    center, cos, sin = Vec.unstack(bodies.center), bodies.cos, bodies.sin
    if facing is not None:
        x_to, y_to = facing.x - center.x, facing.y - center.y
        far = (x_to * x_to + y_to * y_to).sqrt()
        is_turned = ~is_cube(bodies) & (far > 1e-2)  # not if the point is above the body
        cos = torch.where(is_turned, x_to / far, cos)
        sin = torch.where(is_turned, y_to / far, sin)
    return Vec(cos * x - sin * y, sin * x + cos * y, z) + center


def is_cube(bodies: Bodies) -> Tensor:
    """(m,): which bodies are cubes."""
    return (bodies.core > 0) & ~bodies.is_cylinder


def pixel_candidates(
    bodies: Bodies, cameras: Cameras, width: int, height: int
) -> tuple[Tensor, Tensor]:
    """(pixel, body) pairs in which the pixel may show the body; pixels count over all scenes.

    That is if a ray within a pixel of its center may hit the body: pixels may be supersampled.
    """
    project = functools.partial(_project_boxes, bodies, cameras, width, height)
    x, y, depth = project(False, torch.zeros_like(bodies.radius))
    low, high = (torch.stack([k(x, 0), k(y, 0)]) for k in (torch.amin, torch.amax))
    spans = rasterize(low - 1, high + 1, (width, height))
    # A pixel is as large as this at a distance of 1:
    sides = cameras.right.norm(dim=0) / (width / 2), cameras.up.norm(dim=0) / (height / 2)
    pixel_size = torch.maximum(*sides)[bodies.scene] * depth.amax(0)
    x, y, _ = project(True, pixel_size + MAX_GAP * bodies.radius)
    is_in_front = depth.amin(0) > 0.5  # or its projection would not be convex
    spans = clip_to_boxes(spans, x, y, is_in_front)
    first = (bodies.scene[spans.rectangle] * height + spans.row) * width + spans.first
    span, pixel = expand_counts(spans.length, first)
    return pixel, spans.rectangle.index_select(0, span)


def _project_boxes(
    bodies: Bodies, cameras: Cameras, width: int, height: int, is_turned: bool, margin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(8, m): x and y in the image, in pixels, and depth of the corners of `box_corners`."""
    origin, right, up, forward = (take_vec(table, bodies.scene) for table in cameras)
    offset = box_corners(bodies, margin, origin if is_turned else None) - origin
    depth = dot(offset, forward).clamp(min=1e-3)
    across = dot(offset, right) / dot(right, right) / depth  # −1 … 1 over the frame
    above = dot(offset, up) / dot(up, up) / depth
    return (0.5 + across / 2) * width, (0.5 - above / 2) * height, depth
