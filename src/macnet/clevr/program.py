"""Functional programs: the meaning of a question, as functions on the objects of a scene.

"How many big things are left of the cube?" is, in the released schema (the root comes last):

    [{"function": "scene",        "inputs": [],  "value_inputs": []},
     {"function": "filter_shape", "inputs": [0], "value_inputs": ["cube"]},
     {"function": "unique",       "inputs": [1], "value_inputs": []},
     {"function": "relate",       "inputs": [2], "value_inputs": ["left"]},
     {"function": "filter_size",  "inputs": [3], "value_inputs": ["large"]},
     {"function": "count",        "inputs": [4], "value_inputs": []}]

and in prefix form `count filter_size[large] relate[left] unique filter_shape[cube] scene`. The
executor here says what the right answer is; the search for questions, which takes a shorter way, is
tested against it.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, Self

from macnet.clevr.scene import ATTRIBUTES, MAX_OBJECTS, RELATIONS, Scene, related_objects

Node = dict[str, Any]
"""A function of a program, in the released schema."""
Program = list[Node]
"""A functional program in the released schema, root last."""
QuestionType = Literal["Count", "Exist", "Compare Numbers", "Query Attribute", "Compare Attribute"]


class NotUniqueError(ValueError):
    """A program applies `unique` to no object, or to several."""


_VALUES = tuple(chain.from_iterable(ATTRIBUTES.values()))


class SceneIndex:
    """A scene indexed for programs; sets of objects are bitmasks, with bit i for object i."""

    __slots__ = ("all_objects", "objects_with", "related", "values")

    def __init__(self, scene: Scene) -> None:
        objects = scene.objects
        values = {
            "size": [o.size for o in objects],
            "color": [o.color for o in objects],
            "material": [o.material for o in objects],
            "shape": [o.shape for o in objects],
        }
        self._set(values, related_objects([(o.x, o.y) for o in objects]))

    @classmethod
    def from_columns(cls, values: dict[str, list[str]], related: dict[str, list[int]]) -> Self:
        """The index of a scene of which only these two attributes are known."""
        index = cls.__new__(cls)
        index._set(values, related)
        return index

    def _set(self, values: dict[str, list[str]], related: dict[str, list[int]]) -> None:
        self.values = values
        """Attribute → its value for each object."""
        self.related = related
        """Relation → for each object, the objects that are in this relation to it."""
        self.all_objects = (1 << len(values["size"])) - 1
        # (No two attributes share a value.)
        self.objects_with = dict.fromkeys(_VALUES, 0)
        """Value → the objects that have it."""
        for column in values.values():
            for i, value in enumerate(column):
                self.objects_with[value] |= 1 << i


# --- the executor ----------------------------------------------------------------------------

Output = int | bool | str
"""The output of a function: a set of objects as a bitmask, the index of an object, or a value."""


def _unique(scene: SceneIndex, objects: int) -> int:
    if objects.bit_count() != 1:
        raise NotUniqueError(f"`unique` got {objects.bit_count()} objects")
    return objects.bit_length() - 1


def _filter(scene: SceneIndex, objects: int, value: str) -> int:
    return objects & scene.objects_with[value]


def _same(attribute: str) -> Callable[[SceneIndex, int], int]:
    """The other objects with the same value, without the object itself."""
    return lambda scene, i: scene.objects_with[scene.values[attribute][i]] & ~(1 << i)


def _query(attribute: str) -> Callable[[SceneIndex, int], str]:
    return lambda scene, i: scene.values[attribute][i]


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[SceneIndex, Any, Any], bool]:
    return lambda scene, a, b: compare(a, b)


# Each takes the scene, the outputs of its inputs, and its value if it has one.
OPERATIONS: Mapping[str, Callable[..., Output]] = {
    "scene": lambda scene: scene.all_objects,
    "unique": _unique,
    "relate": lambda scene, i, relation: scene.related[relation][i],
    "union": lambda scene, a, b: a | b,
    "intersect": lambda scene, a, b: a & b,
    "count": lambda scene, objects: objects.bit_count(),
    "exist": lambda scene, objects: objects != 0,
    "equal_integer": _comparison(operator.eq),
    "less_than": _comparison(operator.lt),
    "greater_than": _comparison(operator.gt),
    **{f"filter_{name}": _filter for name in ATTRIBUTES},
    **{f"same_{name}": _same(name) for name in ATTRIBUTES},
    **{f"query_{name}": _query(name) for name in ATTRIBUTES},
    **{f"equal_{name}": _comparison(operator.eq) for name in ATTRIBUTES},
}


VALUE_INPUTS: Mapping[str, list[tuple[str, ...]]] = {
    **{function: [()] for function in OPERATIONS},
    "relate": [(relation,) for relation in RELATIONS],
    **{f"filter_{name}": [(value,) for value in values] for name, values in ATTRIBUTES.items()},
}
"""All possible `value_inputs` of every function."""


def node_outputs(program: Iterable[Mapping[str, Any]], scene: SceneIndex) -> list[Output]:
    """The output of every node of a program."""
    outputs: list[Output] = []
    for node in program:
        inputs = [outputs[i] for i in node["inputs"]]
        outputs.append(OPERATIONS[node["function"]](scene, *inputs, *node["value_inputs"]))
    return outputs


def execute(program: Iterable[Mapping[str, Any]], scene: SceneIndex) -> str:
    """The answer of a program: "yes", "no", "0" … "10", or an attribute's value."""
    return to_answer(node_outputs(program, scene)[-1])


def to_answer(output: Output) -> str:
    """The output of a program's last function as the release writes it."""
    if isinstance(output, bool):
        return "yes" if output else "no"
    return str(output)


def answer(program: Iterable[Mapping[str, Any]], scene: Scene) -> str:
    """The answer of a program for a scene; raises `NotUniqueError` if it is ill-posed."""
    return execute(program, SceneIndex(scene))


# --- question types and possible answers -----------------------------------------------------

# Last function of a program → question type, as in the paper's tables.
QUESTION_TYPE_OF: Mapping[str, QuestionType] = {
    "count": "Count",
    "exist": "Exist",
    "equal_integer": "Compare Numbers",
    "less_than": "Compare Numbers",
    "greater_than": "Compare Numbers",
    **{f"query_{name}": "Query Attribute" for name in ATTRIBUTES},
    **{f"equal_{name}": "Compare Attribute" for name in ATTRIBUTES},
}


def question_type(program: Sequence[Mapping[str, Any]]) -> QuestionType:
    """The question type of a program, which depends on its last function alone."""
    return QUESTION_TYPE_OF[program[-1]["function"]]


def possible_outputs(last_function: str) -> tuple[Output, ...]:
    """All outputs of programs that end in this function."""
    type_ = QUESTION_TYPE_OF[last_function]
    if type_ == "Count":
        return tuple(range(MAX_OBJECTS + 1))
    if type_ == "Query Attribute":
        return ATTRIBUTES[last_function.removeprefix("query_")]
    return True, False


def possible_answers(last_function: str) -> tuple[str, ...]:
    """All answers of programs that end in this function."""
    return tuple(map(to_answer, possible_outputs(last_function)))


# --- well-formed programs --------------------------------------------------------------------

_OBJECTS, _OBJECT, _NUMBER, _TRUTH = "a set of objects", "one object", "a number", "yes or no"

# Function → what each of its inputs must be, and what it outputs.
_SIGNATURES: Mapping[str, tuple[str, str]] = {
    "scene": ("", _OBJECTS),
    "unique": (_OBJECTS, _OBJECT),
    "relate": (_OBJECT, _OBJECTS),
    "union": (_OBJECTS, _OBJECTS),
    "intersect": (_OBJECTS, _OBJECTS),
    "count": (_OBJECTS, _NUMBER),
    "exist": (_OBJECTS, _TRUTH),
    "equal_integer": (_NUMBER, _TRUTH),
    "less_than": (_NUMBER, _TRUTH),
    "greater_than": (_NUMBER, _TRUTH),
    **{f"filter_{name}": (_OBJECTS, _OBJECTS) for name in ATTRIBUTES},
    **{f"same_{name}": (_OBJECT, _OBJECTS) for name in ATTRIBUTES},
    **{f"query_{name}": (_OBJECT, f"a {name}") for name in ATTRIBUTES},
    **{f"equal_{name}": (f"a {name}", _TRUTH) for name in ATTRIBUTES},
}


def check_node(function: str, inputs: Sequence[int], values: Sequence[str]) -> None:
    """Check that a function has as many inputs, and the value, that it takes."""
    if len(inputs) != arity(function):
        raise ValueError(f'"{function}" takes {arity(function)} inputs, not {len(inputs)}')
    if tuple(values) not in VALUE_INPUTS[function]:
        possible = ", ".join(chain(*VALUE_INPUTS[function]))
        wanted = f"one of {possible}" if possible else "no value"
        raise ValueError(f'"{function}" takes {wanted}; it was given {", ".join(values) or "none"}')


def check_tree(inputs_of: Sequence[Sequence[int]]) -> None:
    """Check that the inputs of each step make one tree, root last."""
    if not inputs_of:
        raise ValueError("its program is empty")
    for step, inputs in enumerate(inputs_of):
        for i in inputs:
            if not 0 <= i < step:
                raise ValueError(f"step {step} takes step {i}, which does not come before it")
    takers = Counter(chain(*inputs_of))
    for step in range(len(inputs_of) - 1):
        if takers[step] != 1:
            raise ValueError(f"step {step} is taken by {takers[step]} steps; it must be one")


def check_types(program: Sequence[Mapping[str, Any]]) -> None:
    """Check that a tree answers something, and that each function can take what it is given."""
    for node in program:
        wanted, _ = _SIGNATURES[node["function"]]
        for given in (program[i]["function"] for i in node["inputs"]):
            if _SIGNATURES[given][1] != wanted:
                raise ValueError(
                    f'"{node["function"]}" takes {wanted}, but "{given}" gives '
                    f"{_SIGNATURES[given][1]}"
                )
    if (last := program[-1]["function"]) not in QUESTION_TYPE_OF:
        raise ValueError(f'"{last}" is its last function, which answers nothing')


# --- linear forms ----------------------------------------------------------------------------


def arity(function: str) -> int:
    """Number of inputs of a function."""
    if function == "scene":
        return 0
    pairs = function in ("union", "intersect", "less_than", "greater_than")
    return 2 if pairs or function.startswith("equal_") else 1


def to_prefix(program: Sequence[Mapping[str, Any]], root: int = -1) -> list[str]:
    """Tokens of the program that ends at a node, in prefix order: the node, then its inputs."""
    node = program[root]
    inputs = [token for i in node["inputs"] for token in to_prefix(program, i)]
    return [to_token(node["function"], node["value_inputs"]), *inputs]


def to_postfix(program: Sequence[Mapping[str, Any]], root: int = -1) -> list[str]:
    """Tokens of the program that ends at a node, in postfix order: its inputs, then the node."""
    node = program[root]
    inputs = [token for i in node["inputs"] for token in to_postfix(program, i)]
    return [*inputs, to_token(node["function"], node["value_inputs"])]


def from_postfix(tokens: Sequence[str]) -> Program:
    """The program with these tokens in postfix order."""
    program: Program = []
    stack: list[int] = []
    for token in tokens:
        function, _, value = token.rstrip("]").partition("[")
        if function not in OPERATIONS:
            raise ValueError(f"unknown function {function!r} in {' '.join(tokens)!r}")
        first = len(stack) - arity(function)
        if first < 0:
            raise ValueError(f"{token!r} lacks an input in {' '.join(tokens)!r}")
        inputs, stack[first:] = stack[first:], [len(program)]
        program.append(make_node(function, inputs, [value] if value else []))
    if len(stack) != 1:
        raise ValueError(f"{' '.join(tokens)!r} makes {len(stack)} programs, not one")
    return program


def from_prefix(tokens: Sequence[str]) -> Program:
    """The program with these tokens in prefix order."""
    # Read from the right, a prefix form is a postfix form with every pair of inputs swapped;
    # so build the tree from the right and let each node take its inputs in reading order.
    stack: list[list[str]] = []
    for token in reversed(tokens):
        wanted = arity(token.partition("[")[0])
        if len(stack) < wanted:
            raise ValueError(f"{token!r} lacks an input in {' '.join(tokens)!r}")
        inputs = [word for _ in range(wanted) for word in stack.pop()]
        stack.append([*inputs, token])
    if len(stack) != 1:
        raise ValueError(f"{' '.join(tokens)!r} makes {len(stack)} programs, not one")
    return from_postfix(stack[0])


def make_node(function: str, inputs: list[int], values: list[str]) -> Node:
    """A node in the released schema."""
    return {"function": function, "inputs": inputs, "value_inputs": values}


def to_token(function: str, values: Sequence[str]) -> str:
    """A function with its value as one token, such as "filter_color[red]"."""
    return f"{function}[{values[0]}]" if values else function
