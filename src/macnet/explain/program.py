"""Programs of questions: the true one as people give it, and beside it the one that was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain, count, zip_longest
from reprlib import repr as shown  # which no word can make longer than a line
from typing import Any, Literal, NamedTuple, TypeAlias

from macnet.clevr.program import (
    VALUE_INPUTS,
    Program,
    check_node,
    check_tree,
    check_types,
    from_prefix,
    to_prefix,
)
from macnet.data.vocab import PROGRAM_TOKENS, SPECIALS
from macnet.errors import InputError
from macnet.explain.reply import Explanation

ProgramLike: TypeAlias = str | Sequence[str] | Sequence[Mapping[str, Any]]
"""A CLEVR program: in prefix form, as text or as tokens; or as the nodes of the released JSON."""

TOKENS = PROGRAM_TOKENS[len(SPECIALS) :]
MAX_FUNCTIONS = 25
"""Most functions in a program. None of CLEVR's question families makes a longer one."""


def parse_program(given: ProgramLike) -> list[str]:
    """The tokens of a program in prefix form; one that no question of CLEVR has is refused."""
    try:
        steps = given.split() if isinstance(given, str) else list(given)
        if not steps:
            raise ValueError("it is empty")
        if len(steps) > MAX_FUNCTIONS:
            raise ValueError(f"it has {len(steps):,} functions, and {MAX_FUNCTIONS} is the most")
        program = _from_nodes(steps) if isinstance(steps[0], Mapping) else _from_tokens(steps)
        check_types(program)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"`program` is not one of CLEVR's: {error}; give one such as "
            "'count filter_color[red] scene'"
        ) from None
    return to_prefix(program)


def _from_nodes(nodes: Sequence[Any]) -> Program:
    import msgspec  # here, for nothing else about asking needs it

    from macnet.data.clevr_json import Node
    from macnet.data.json_records import describe

    try:
        decoded = msgspec.convert(nodes, list[Node])
    except msgspec.ValidationError as error:
        raise ValueError(describe(error)) from None
    for node in decoded:
        check_node(node.function, node.inputs, node.value_inputs)
    check_tree([node.inputs for node in decoded])
    return [msgspec.structs.asdict(node) for node in decoded]


def _from_tokens(tokens: Sequence[Any]) -> Program:
    for token in tokens:
        if token not in TOKENS:
            function = str(token).partition("[")[0]
            values = ", ".join(chain(*VALUE_INPUTS.get(function, ())))
            hint = f", and {function} takes one of {values}" if values else ""
            raise ValueError(f"it has {shown(token)}, which is no function{hint}")
    return from_prefix(tokens)


# --- what was written, beside what is true ---------------------------------------------------

Sign = Literal["", "≠", "+", "−"]
"""How a row of two programs differs: not at all, another module, one too many, one left out."""

MEANINGS: Mapping[Sign, str] = {"≠": "another module", "+": "not in the true one", "−": "left out"}


class ProgramRow(NamedTuple):
    """A module of the program that was written, and the one of the true program beside it."""

    number: int | None
    """The number of the written module, from 1; None if there is none in this row."""
    written: str | None
    """The name of the written module."""
    true: str | None
    """The name of the true module; None if there is none in this row, or none is known."""
    sign: Sign
    """How they differ."""


def align(written: Sequence[str], true: Sequence[str] | None) -> list[ProgramRow]:
    """Both programs, row by row: modules that are equal beside each other, then those alike."""
    if true is None:
        return [ProgramRow(number, name, None, "") for number, name in enumerate(written, 1)]
    rows, numbers = [], count(1)
    for own, other in _pairs(written, true, str, _function):
        sign: Sign = "" if own == other else "+" if other is None else "−" if own is None else "≠"
        rows.append(ProgramRow(None if own is None else next(numbers), own, other, sign))
    return rows


def _pairs(
    written: Sequence[str], true: Sequence[str], *keys: Callable[[str], str]
) -> Iterator[tuple[str | None, str | None]]:
    """Modules paired where the first key agrees; between them by the other keys, if by any."""
    if not keys:
        yield from zip_longest(written, true)
        return
    ours, theirs = ([keys[0](name) for name in names] for names in (written, true))
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    for tag, start, stop, true_start, true_stop in matcher.get_opcodes():
        # What agrees is paired as it comes.
        others = () if tag == "equal" else keys[1:]
        yield from _pairs(written[start:stop], true[true_start:true_stop], *others)


def _function(name: str) -> str:
    """The name of a module without its value."""
    return name.partition("[")[0]


def compare(explanation: Explanation) -> list[ProgramRow]:
    """The program of an explanation, beside the true one if that is known."""
    return align([module.name for module in explanation.modules], explanation.true_modules)


def verdict(explanation: Explanation) -> str | None:
    """Whether the program that was written is the true one, as a verb; None if it is not known."""
    if explanation.true_modules is None:
        return None
    places = sum(row.sign != "" for row in compare(explanation))
    if not places:
        return "is the true one"
    return f"differs from the true one in {places} place{'s' * (places > 1)}"


def title(explanation: Explanation) -> str:
    """The title of the program that was written, with the verdict on it."""
    return f"The program that it wrote {verdict(explanation) or ''}".rstrip()


def legend(rows: Sequence[ProgramRow]) -> dict[Sign, str]:
    """What the signs in some rows mean."""
    signs = {row.sign for row in rows}
    return {sign: meaning for sign, meaning in MEANINGS.items() if sign in signs}
