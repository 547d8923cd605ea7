"""Which commands there are, and how each ends: well, or with one sentence and an exit code.

Only this package knows the argument parser. What a command needs is imported inside it: torch takes
seconds to load, and `--help` needs none.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default that of the command line; returns its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # What `train` takes depends on what it is to train.
        commands = {**COMMANDS, "train": command(given[1:])} if given[:1] == ["train"] else COMMANDS
        tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="macnet",
            description="MAC networks, and the CLEVR world they reason about.",
            args=given,
            registry=Flags(),
        )
        sys.stdout.flush()
    except InputError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt as stopped:  # who stops in good order says how to go on
        return _complain(str(stopped) or "stopped; the same command goes on from here", 130)
    except BrokenProcessPool:
        return _complain("a worker was killed, perhaps for memory; try with fewer --workers", 2)
    except (MemoryError, RuntimeError) as error:
        if not _is_about_memory(error) or not _speaks():  # one alone may lack it, and must be heard
            raise
        return _complain(f"there is not enough memory; try smaller batches ({error})", 2)
    except BrokenPipeError:  # whoever read the output wants no more of it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is unsaid yet
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = "no space left; make room, and the same command goes on from here"
        elif error.filename is not None:
            why = error.strerror or str(error)
        else:
            raise
        return _complain(f"{error.filename}: {why}", 2)
    return 0


def _is_about_memory(error: MemoryError | RuntimeError) -> bool:
    """torch has a name for a GPU's that is full, and none for the host's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "can't allocate memory" in str(error)


def _speaks() -> bool:
    """Of several processes on a machine, one says what all would."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _complain(sentence: str, code: int) -> int:
    if not _speaks():
        return code
    # It may quote a damaged file, and must not break the line nor command the terminal.
    shown = "".join(c if c.isprintable() else "?" for c in sentence)
    print(f"macnet: {shown}", file=sys.stderr)
    return code
