"""Functional programs: what a question means, as steps over the objects of a scene.

"How many big things are left of the cube?" is, in the released schema (the root comes last):

    [{"function": "scene",        "inputs": [],  "value_inputs": []},
     {"function": "filter_shape", "inputs": [0], "value_inputs": ["cube"]},
     {"function": "unique",       "inputs": [1], "value_inputs": []},
     {"function": "relate",       "inputs": [2], "value_inputs": ["left"]},
     {"function": "filter_size",  "inputs": [3], "value_inputs": ["large"]},
     {"function": "count",        "inputs": [4], "value_inputs": []}]

and in prefix form `count filter_size[large] relate[left] unique filter_shape[cube] scene`. The
executor here is the only source of answers in the project.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from macnet.clevr.scene import ATTRIBUTES, RELATIONS, Scene

Node = dict[str, Any]
Program = list[Node]
QuestionType = Literal["Count", "Exist", "Compare Numbers", "Query Attribute", "Compare Attribute"]


class PresumptionError(ValueError):
    """The program presumes a single object where the scene has none or several."""


class Facts:
    """A scene as bitmasks: bit i of a set of objects stands for object i."""

    __slots__ = ("everything", "having", "related", "values")

    def __init__(self, scene: Scene) -> None:
        bits = [1 << i for i in range(len(scene.objects))]
        self.everything = sum(bits)
        # Attribute → the value of each object.
        self.values = {name: [getattr(o, name) for o in scene.objects] for name in ATTRIBUTES}
        # Value → the objects having it; no two attributes share a value.
        self.having = {value: 0 for values in ATTRIBUTES.values() for value in values}
        for values in self.values.values():
            for value, bit in zip(values, bits, strict=True):
                self.having[value] |= bit
        # Relation → for each object, the objects that stand in the relation to it.
        self.related = {
            name: [sum([bits[j] for j in others]) for others in scene.relationships[name]]
            for name in RELATIONS
        }


# --- the executor ----------------------------------------------------------------------------

# A set of objects is a bitmask, a single object its index, an attribute's value its name.
Outcome = int | bool | str


def _unique(facts: Facts, objects: int) -> int:
    if objects.bit_count() != 1:
        raise PresumptionError(f"`unique` met {objects.bit_count()} objects")
    return objects.bit_length() - 1


def _filter(facts: Facts, objects: int, value: str) -> int:
    return objects & facts.having[value]


def _same(attribute: str) -> Callable[[Facts, int], int]:
    """The others that share the object's value; never the object itself."""
    return lambda facts, i: facts.having[facts.values[attribute][i]] & ~(1 << i)


def _query(attribute: str) -> Callable[[Facts, int], str]:
    return lambda facts, i: facts.values[attribute][i]


def _comparing(compare: Callable[[Any, Any], bool]) -> Callable[[Facts, Any, Any], bool]:
    return lambda facts, a, b: compare(a, b)


# Each takes the facts, the outcomes of its inputs, and its value where it has one.
OPERATIONS: Mapping[str, Callable[..., Outcome]] = {
    "scene": lambda facts: facts.everything,
    "unique": _unique,
    "relate": lambda facts, i, relation: facts.related[relation][i],
    "union": lambda facts, a, b: a | b,
    "intersect": lambda facts, a, b: a & b,
    "count": lambda facts, objects: objects.bit_count(),
    "exist": lambda facts, objects: objects != 0,
    "equal_integer": _comparing(operator.eq),
    "less_than": _comparing(operator.lt),
    "greater_than": _comparing(operator.gt),
    **{f"filter_{name}": _filter for name in ATTRIBUTES},
    **{f"same_{name}": _same(name) for name in ATTRIBUTES},
    **{f"query_{name}": _query(name) for name in ATTRIBUTES},
    **{f"equal_{name}": _comparing(operator.eq) for name in ATTRIBUTES},
}


VALUES_OF: Mapping[str, list[tuple[str, ...]]] = {
    **{function: [()] for function in OPERATIONS},
    "relate": [(relation,) for relation in RELATIONS],
    **{f"filter_{name}": [(value,) for value in values] for name, values in ATTRIBUTES.items()},
}
"""Of every function, all that its `value_inputs` may be."""


def outcomes(program: Iterable[Mapping[str, Any]], facts: Facts) -> list[Outcome]:
    """What each step of a program comes to."""
    found: list[Outcome] = []
    for node in program:
        inputs = [found[i] for i in node["inputs"]]
        found.append(OPERATIONS[node["function"]](facts, *inputs, *node["value_inputs"]))
    return found


def execute(program: Iterable[Mapping[str, Any]], facts: Facts) -> str:
    """The answer, in the released words: "yes", "no", "0" … "10", or an attribute's value."""
    return spoken(outcomes(program, facts)[-1])


def spoken(outcome: Outcome) -> str:
    if isinstance(outcome, bool):
        return "yes" if outcome else "no"
    return str(outcome)


def answer(program: Iterable[Mapping[str, Any]], scene: Scene) -> str:
    """Answer one program about one scene; raise `PresumptionError` where it presumes too much."""
    return execute(program, Facts(scene))


# --- what kind of question, and which answers it may have ------------------------------------

_NUMBERS = tuple(str(n) for n in range(11))

# The functions a program may end in, which its type is named after, and where the paper counts it.
COLUMN_OF: Mapping[str, QuestionType] = {
    "count": "Count",
    "exist": "Exist",
    "equal_integer": "Compare Numbers",
    "less_than": "Compare Numbers",
    "greater_than": "Compare Numbers",
    **{f"query_{name}": "Query Attribute" for name in ATTRIBUTES},
    **{f"equal_{name}": "Compare Attribute" for name in ATTRIBUTES},
}


def question_type(program: Sequence[Mapping[str, Any]]) -> QuestionType:
    """The column of the paper's tables: it depends on the last function alone."""
    return COLUMN_OF[program[-1]["function"]]


def possible_answers(last_function: str) -> tuple[str, ...]:
    kind = COLUMN_OF[last_function]
    if kind == "Count":
        return _NUMBERS
    if kind == "Query Attribute":
        return ATTRIBUTES[last_function.removeprefix("query_")]
    return "yes", "no"


# --- linear forms ----------------------------------------------------------------------------


def arity(function: str) -> int:
    if function == "scene":
        return 0
    pairs = function in ("union", "intersect", "less_than", "greater_than")
    return 2 if pairs or function.startswith("equal_") else 1


def to_prefix(program: Sequence[Mapping[str, Any]]) -> list[str]:
    """Root first, then each input's tokens in turn."""

    def walk(node: Mapping[str, Any]) -> Iterable[str]:
        yield token_of(node["function"], node["value_inputs"])
        for i in node["inputs"]:
            yield from walk(program[i])

    return list(walk(program[-1]))


def to_postfix(program: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each input's tokens in turn, then the root: the order in which a stack machine runs."""

    def walk(node: Mapping[str, Any]) -> Iterable[str]:
        for i in node["inputs"]:
            yield from walk(program[i])
        yield token_of(node["function"], node["value_inputs"])

    return list(walk(program[-1]))


def from_postfix(tokens: Sequence[str]) -> Program:
    program: Program = []
    stack: list[int] = []
    for token in tokens:
        function, _, value = token.rstrip("]").partition("[")
        if function not in OPERATIONS:
            raise ValueError(f"unknown function {function!r} in {' '.join(tokens)!r}")
        wanted = arity(function)
        if len(stack) < wanted:
            raise ValueError(f"{token!r} lacks an input in {' '.join(tokens)!r}")
        inputs = stack[len(stack) - wanted :]
        del stack[len(stack) - wanted :]
        stack.append(len(program))
        program.append(node(function, inputs, [value] if value else []))
    if len(stack) != 1:
        raise ValueError(f"{' '.join(tokens)!r} makes {len(stack)} programs, not one")
    return program


def from_prefix(tokens: Sequence[str]) -> Program:
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


def node(function: str, inputs: list[int], values: list[str]) -> Node:
    return {"function": function, "inputs": inputs, "value_inputs": values}


def token_of(function: str, values: Sequence[str]) -> str:
    return f"{function}[{values[0]}]" if values else function
