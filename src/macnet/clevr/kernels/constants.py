"""The numbers of the renderer's formulas, as kernels can read them.

Every one is taken from the module that defines it. A kernel may only read globals that are
`tl.constexpr`; Triton's interpreter, which runs kernels as plain Python, needs plain numbers.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from macnet.clevr import light, scene, shapes, surface

INTERPRETED = bool(triton.knobs.runtime.interpret)


def constant(value: float) -> Any:
    """A number that kernels may read as a global."""
    return value if INTERPRETED else tl.constexpr(value)


# One compilation for images of all sizes, and for any part of an array: programs read and write
# single numbers, which do not get faster where a size or an address is a multiple of 16.
_SIZES = ["width", "height", "resolution", "patch", "tiles", "programs"]
_SIZES += ["filter_width", "is_outline"]
_ARRAYS = ["table", "bounds", "shadows", "smooth", "blurred", "bleed", "objects", "visible"]
_ARRAYS += ["images", "list", "counts"]
ANY_SIZE: dict[str, Any] = {
    "do_not_specialize": _SIZES,
    "do_not_specialize_on_alignment": [f"{name}_ptr" for name in _ARRAYS],
}

PI = constant(math.pi)
INFINITY = constant(math.inf)

MAX_OBJECTS = constant(scene.MAX_OBJECTS)
LANES = constant(1 << (scene.MAX_OBJECTS - 1).bit_length())  # that hold all objects of a scene
BEHIND_X = constant(scene.DIRECTIONS["behind"][0])
BEHIND_Y = constant(scene.DIRECTIONS["behind"][1])

NEWTON_STEPS = constant(shapes.NEWTON_STEPS)
MAX_GAP = constant(shapes.MAX_GAP)
BISECTIONS = constant(shapes.BISECTIONS)

NUM_LIGHTS = constant(len(light.WATTS))
MAP_HALF = constant(light.MAP_HALF)
BLUR_SIZE = constant(light.BLUR_SIZE)
SHADOW_MARGIN = constant(light.SHADOW_MARGIN)

GROUND_ALBEDO = constant(surface.GROUND_ALBEDO)
COVE_X = constant(surface.COVE[0])
COVE_Y = constant(surface.COVE[1])
COVE_RADIANCE = constant(surface.COVE_RADIANCE)
COVE_ON_GROUND = constant(surface.COVE_ON_GROUND)
COVE_AT_BEND = constant(surface.COVE_AT_BEND)
BEND = constant(surface.BEND)
BEND_WIDTH = constant(surface.BEND_WIDTH)
COVE_ON_BODIES = constant(surface.COVE_ON_BODIES)
COVE_BEHIND = constant(surface.COVE_BEHIND)
COVE_ABOVE = constant(surface.COVE_ABOVE)
HORIZON = constant(surface.HORIZON)
FACED_GROUND = constant(surface.FACED_GROUND)
BLEED_CUTOFF = constant(surface.BLEED_CUTOFF)
BLEED_STRENGTH = constant(surface.BLEED_STRENGTH)
BLEED_SIZE = constant(surface.BLEED_SIZE)

RUBBER_ROUGHNESS = constant(surface.RUBBER_ROUGHNESS)
RUBBER_GLOSS = constant(surface.RUBBER_GLOSS)
COAT_INDEX = constant(surface.COAT_INDEX)
SHEEN_INDEX = constant(surface.SHEEN_INDEX)
MIN_COS = constant(surface.MIN_COS)
BRUSHED = constant(surface.BRUSHED)
ALPHA_ALONG = constant(surface.ALPHA_ALONG)
ALPHA_ACROSS = constant(surface.ALPHA_ACROSS)
ALPHA_MIRROR = constant(surface.ALPHA_MIRROR)
