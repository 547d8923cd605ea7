"""Which commands there are, and how a command line is understood.

Only this package knows the argument parser. What a command needs is imported inside it: torch takes
seconds to load, and `--help` needs none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from difflib import get_close_matches
from functools import partial, wraps
from io import StringIO
from itertools import pairwise, takewhile
from typing import Any

import tyro

from macnet.cli.ask import ask
from macnet.cli.datasets import extract, pack
from macnet.cli.evaluate import evaluate
from macnet.cli.explain import explain
from macnet.cli.export import export
from macnet.cli.overrides import Flags
from macnet.cli.train import command, train
from macnet.cli.worlds import compare, generate, render, sheet
from macnet.errors import InputError

COMMANDS: dict[str, Callable[..., None]] = {
    "generate": generate,
    "render": render,
    "sheet": sheet,
    "compare": compare,
    "extract": extract,
    "pack": pack,
    "train": train,
    "evaluate": evaluate,
    "export": export,
    "ask": ask,
    "explain": explain,
}

NUMBERS = {"INT": "a whole number", "FLOAT": "a number"}


def understand(given: Sequence[str]) -> Callable[[], None]:
    """What the command line asks for, ready to be done."""
    if not given:
        raise InputError(f"there is no command; choose one of {', '.join(COMMANDS)}")
    name = given[0]
    if name not in COMMANDS and not name.startswith("-"):
        near = get_close_matches(name, COMMANDS, n=1)
        instead = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(COMMANDS)}"
        raise InputError(f"there is no command {name!r:.40}; {instead}")
    later: dict[str, Callable[..., Any]] = {name: _later(do) for name, do in COMMANDS.items()}
    if name == "train":  # what it takes depends on what it is to train
        chosen = command(given[1:])
        later["train"] = partial(_later(chosen.func), **chosen.keywords)
    told = StringIO()
    try:
        with redirect_stderr(told):
            action: Callable[[], None] = tyro.extras.subcommand_cli_from_dict(
                later,
                prog="macnet",
                description="MAC networks, and the CLEVR world they reason about.",
                args=given,
                registry=Flags(),
            )
    except SystemExit as end:
        if not end.code:  # --help
            sys.stdout.flush()
            raise
        raise InputError(usage_error(told.getvalue(), given)) from None
    sys.stderr.write(told.getvalue())
    return action


def _later(do: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """The same to the parser, which calls what it has understood; but nothing is done yet."""

    @wraps(do)
    def bound(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return partial(do, *args, **kwargs)

    return bound


# --- what the parser does not understand -----------------------------------------------------


def usage_error(box: str, given: Sequence[str]) -> str:
    """In one sentence what the parser tells in a box: a headline, indented options, their help.

    Where it is worded as no version has worded it yet, its headline is the sentence.
    """
    plain = re.sub(r"\x1b\[[\d;]*m", "", box).splitlines()  # without colours
    # A box has sides where stdout knows such signs; else a title and a line, and two blanks.
    framed = [line.strip("│") for line in plain if line.startswith("│")]
    lines = [line.rstrip() for line in framed or [line[1:] for line in plain[2:]]]
    above = takewhile(lambda line: line.strip("─- "), lines)
    headline = " ".join(line.strip() for line in above if not line.startswith(" " * 5))
    # An option, and what it takes: "    --train INT"
    options = [found for line in lines if (found := re.fullmatch(r" {5}(-*[\w.\-]+)( \S+)?", line))]
    kinds = {found[1]: (found[2] or "").strip() for found in options}
    see = f"macnet {given[0]}" if given[0] in COMMANDS else "macnet"
    return f"{_reworded(headline, kinds, given)}; see {see} --help"


def _reworded(headline: str, kinds: Mapping[str, str], given: Sequence[str]) -> str:
    if found := re.match(r"Unrecognized options: (.*)", headline):
        strange = next((word for word in given if found[1].startswith(word)), found[1])
        if not strange.startswith("-"):
            return f"{strange!r:.40} is one argument too many"
        meant = f" (did you mean {next(iter(kinds))}?)" if kinds else ""
        return f"there is no option {strange:.40}{meant}"
    if headline.startswith("Missing from"):
        return f"{' and '.join(kinds)} must be given"
    if found := re.match(r"Missing value for argument '([^']+)'", headline):
        return f"{found[1]} needs a value"
    if found := re.match(r"invalid choice '(.*)' for argument '(.+)'.*one of \((.*)\)", headline):
        choices = ", ".join(re.findall(r"'([^']*)'", found[3]))
        return f"{found[2]} is {found[1]!r:.40}; choose one of {choices}"
    if found := re.match(r"Error parsing (\S+): ", headline):
        flag = found[1]
        values = [b for a, b in pairwise(given) if a == flag]
        if values and flag in kinds:
            return (
                f"{flag} is {values[-1]!r:.40}; it must be {NUMBERS.get(kinds[flag], kinds[flag])}"
            )
    return headline
