"""How a command ends: well, or with one sentence and an exit code."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool

from macnet.cli.streams import CtrlC, is_failing, prepare_streams
from macnet.errors import InputError, is_out_of_memory

GOES_ON = "stopped; the same command goes on from here"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default that of the command line; returns its exit code."""
    if arguments is not None:
        return _run(arguments)
    ctrl_c = CtrlC()  # before what takes long to import
    try:
        return _run(sys.argv[1:])
    finally:
        ctrl_c.close()


def _run(given: Sequence[str]) -> int:
    try:
        prepare_streams()
        from macnet.cli.commands import parse

        command = parse(given)
        try:
            command()
        except SystemExit:  # so rich ends where nobody reads its tables
            raise BrokenPipeError from None
        sys.stdout.flush()
    except InputError as error:
        return _complain(with_flags(str(error), given), 2)
    except KeyboardInterrupt as stopped:  # who stops in good order says how to go on
        said = with_flags(str(stopped), given) if str(stopped) else GOES_ON
        return _complain(said, 130)
    except BrokenProcessPool:
        return _complain("a worker was killed, perhaps for memory; try with fewer --workers", 2)
    except BrokenPipeError:  # whoever read the output wants no more of it, as `head` does
        is_failing(sys.stdout)
        return _complain("", 128 + signal.SIGPIPE)
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        sentence = _sentence(error)
        if sentence is None or not _speaks():  # one alone may lack memory, and must be heard
            raise
        return _complain(sentence, 2)
    return 0


def with_flags(message: str, given: Sequence[str]) -> str:
    """A message of the library, which names `arguments`, in the words of the command line."""
    from macnet.cli.commands import COMMANDS, flag_of

    if not given or given[0] not in COMMANDS:
        return message
    return re.sub(r"`([a-z][a-z0-9_.]*)`", lambda found: flag_of(given[0], found[1]), message)


def _sentence(error: Exception) -> str | None:
    """What to say of an error that the system has made, if there is anything to say."""
    if is_out_of_memory(error):
        told = f" ({error})" if str(error) else ""
        return f"there is not enough memory; try smaller batches{told}"
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
        return f"{error}; name another path"  # Python's own, before 3.13
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open at once; allow more (ulimit -n), or try fewer --workers"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        if error.filename is None:  # whoever writes to a file names it
            is_failing(sys.stdout)
            return "standard output: no space left; make room where it goes"
        return f"{error.filename}: no space left; make room, and the same command goes on from here"
    return error.filename and f"{error.filename}: {error.strerror or error}"


def _speaks() -> bool:
    """Of several processes on a machine, one says what all would."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _complain(sentence: str, code: int) -> int:
    """On stderr, unless it takes nothing any more."""
    try:
        if sentence and _speaks():
            # It may quote a damaged file, and must not break the line nor command the terminal.
            shown = "".join(c if c.isprintable() else "?" for c in sentence)
            print(f"macnet: {shown}", file=sys.stderr)
    except OSError:
        pass
    is_failing(sys.stderr)
    return code
