"""Which commands there are, and how a command line is parsed.

Only this package knows the argument parser. A command's own imports are inside it: torch takes
seconds to load, and `--help` needs none.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from difflib import get_close_matches
from functools import partial, wraps
from importlib import import_module
from io import StringIO
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import tyro

from macnet import __version__
from macnet.cli.overrides import Flags
from macnet.errors import InputError


class Command(NamedTuple):
    """A command as `macnet --help` shows it."""

    module: str
    """The module of `macnet.cli` with the function of that name."""
    summary: str
    example: str

    def load(self, name: str) -> Callable[..., None]:
        """The function that carries it out."""
        function: Callable[..., None] = getattr(import_module(f"macnet.cli.{self.module}"), name)
        return function


GROUPS: Mapping[str, Mapping[str, Command]] = {
    "Ask a trained network": {
        "ask": Command(
            "ask", "Ask about an image.", 'macnet ask scene.png "What color is the cube?"'
        ),
        "explain": Command(
            "explain",
            "Show what the network attends to at each step.",
            'macnet explain scene.png "What color is the cube?" --out page.html',
        ),
    },
    "Train and evaluate": {
        "train": Command(
            "train",
            "Train a network on CLEVR or on the generated world.",
            "macnet train CLEVR_v1.0 --recipe fast --out runs/mac",
        ),
        "evaluate": Command(
            "evaluate",
            "Measure accuracy by question type, beside the paper's.",
            "macnet evaluate runs/mac",
        ),
        "export": Command(
            "export",
            "Write the best network of a run as one small file.",
            "macnet export runs/mac mac.safetensors",
        ),
    },
    "Make and prepare data": {
        "generate": Command(
            "generate",
            "Generate a CLEVR dataset.",
            "macnet generate world --train 8000 --val 500",
        ),
        "render": Command(
            "generate", "Render a CLEVR scene file.", "macnet render CLEVR_val_scenes.json images"
        ),
        "sheet": Command(
            "generate", "Make a contact sheet of a dataset.", "macnet sheet world sheet.png"
        ),
        "compare": Command(
            "generate",
            "Compare our renderings with the original images.",
            "macnet compare CLEVR_val_scenes.json images/val compared.png",
        ),
        "extract": Command(
            "pack",
            "Compute ResNet-101 features of images.",
            "macnet extract CLEVR_v1.0 train.h5 --split train",
        ),
        "pack": Command(
            "pack", "Pack a split into arrays.", "macnet pack CLEVR_v1.0 cache --split val"
        ),
    },
}
COMMANDS: Mapping[str, Command] = {
    name: command for group in GROUPS.values() for name, command in group.items()
}

RENAMED = {"start": "from", "recipe_changes": "recipe"}
"""Arguments of the library that have flags of another name."""

NUMBERS = {"INT": "a whole number", "FLOAT": "a number"}


def parse(given: Sequence[str]) -> Callable[[], None]:
    """The command of a command line, with its arguments, ready to be called."""
    if not given:
        raise InputError(f"there is no command; choose one of {', '.join(COMMANDS)}")
    name = given[0]
    if name in ("-h", "--help"):
        return partial(print, overview())
    if name == "--version":
        return partial(print, f"macnet {__version__}")
    if name.startswith("-"):
        raise InputError(f"there is no option {name:.40} before a command; see macnet --help")
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        instead = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(COMMANDS)}"
        raise InputError(f"there is no command {name!r:.40}; {instead}")
    command: Any = _deferred(COMMANDS[name].load(name))
    if name == "train":  # its flags depend on what it is to train
        from macnet.cli.train import command as configure

        command = configure(given[1:], brief=not {"-h", "--help"}.isdisjoint(given))
    arguments = ["--help" if word == "--help-all" else word for word in given[1:]]
    messages = StringIO()
    try:
        with redirect_stderr(messages):
            action: Callable[[], None] = tyro.cli(
                command, prog=f"macnet {name}", args=arguments, registry=Flags()
            )
    except SystemExit as end:
        if not end.code:  # --help
            sys.stdout.flush()
            raise
        raise InputError(usage_error(messages.getvalue(), given)) from None
    sys.stderr.write(messages.getvalue())
    return action


def overview() -> str:
    """What `macnet --help` prints."""
    lines = ["MAC networks, and the CLEVR world they reason about.", ""]
    lines += ["usage: macnet COMMAND …, or macnet COMMAND --help", ""]
    for title, group in GROUPS.items():
        lines += [f"{title}:"]
        for name, (_, summary, example) in group.items():
            lines += [f"  {name:9} {summary}", f"            {example}"]
        lines += [""]
    return "\n".join([*lines, "macnet --version prints the version."])


def flag_of(name: str, argument: str) -> str:
    """How a command's user gives an argument of the library: by a flag, or by its place."""
    parameters = inspect.signature(COMMANDS[name].load(name)).parameters
    found = parameters.get(argument)
    if found is not None and found.kind is inspect.Parameter.POSITIONAL_ONLY:
        return argument.upper()
    return f"--{RENAMED.get(argument, argument).replace('_', '-')}"


def _deferred(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """The same command to the parser, which calls what it has parsed; but nothing is done yet."""

    @wraps(command)
    def bound(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return partial(command, *args, **kwargs)

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
