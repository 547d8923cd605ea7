"""A second executor of programs, written for clarity, and scenes for hypothesis."""

import random
from typing import Any

from hypothesis import strategies as st

from macnet.clevr.program import NotUniqueError
from macnet.clevr.scene import Object, Scene, place_objects

# From the specification again: the direction of each relation on the floor.
DIRECTION = {
    "right": (0.6563112736, 0.7544902563),
    "left": (-0.6563112736, -0.7544902563),
    "behind": (-0.7544903159, 0.6563112736),
    "front": (0.7544903159, -0.6563112736),
}


def naive_output(program: list[dict[str, Any]], i: int, objects: tuple[Object, ...]) -> Any:
    """Run node i by the book: plain sets of indices, no caching, no bitmasks."""
    node = program[i]
    inputs = [naive_output(program, j, objects) for j in node["inputs"]]
    value = node["value_inputs"][0] if node["value_inputs"] else None
    function, _, attribute = node["function"].partition("_")
    match function:
        case "scene":
            return set(range(len(objects)))
        case "filter":
            return {j for j in inputs[0] if getattr(objects[j], attribute) == value}
        case "unique":
            if len(inputs[0]) != 1:
                raise NotUniqueError
            return min(inputs[0])
        case "relate":
            dx, dy = DIRECTION[str(value)]
            here = objects[inputs[0]]
            return {
                j
                for j, o in enumerate(objects)
                if j != inputs[0] and (o.x - here.x) * dx + (o.y - here.y) * dy > 0.2
            }
        case "union":
            return inputs[0] | inputs[1]
        case "intersect":
            return inputs[0] & inputs[1]
        case "count":
            return len(inputs[0])
        case "exist":
            return bool(inputs[0])
        case "query":
            return getattr(objects[inputs[0]], attribute)
        case "same":
            wanted = getattr(objects[inputs[0]], attribute)
            alike = {j for j, o in enumerate(objects) if getattr(o, attribute) == wanted}
            return alike - {inputs[0]}
        case "equal":
            return inputs[0] == inputs[1]
        case "less":
            return inputs[0] < inputs[1]
        case "greater":
            return inputs[0] > inputs[1]
    raise AssertionError(node)


def naive_answer(program: list[dict[str, Any]], scene: Scene) -> str:
    output = naive_output(program, len(program) - 1, scene.objects)
    return {True: "yes", False: "no"}[output] if isinstance(output, bool) else str(output)


@st.composite
def scenes(draw: st.DrawFn, fewest: int = 3, most: int = 10) -> Scene:
    rng = random.Random(draw(st.integers(0, 10**9)))
    return Scene(place_objects(rng, draw(st.integers(fewest, most))))
