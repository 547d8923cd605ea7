"""The exceptions a command turns into one sentence and exit code 2, and what counts as such."""

from __future__ import annotations

import errno

OUT_OF_MEMORY_MESSAGES = (
    "allocate memory",
    "not enough memory",
    "out of memory",
    "failed to map segment",  # the loader, of a library
    "could not create a primitive",  # oneDNN, of whatever a layer needs
    "can't start new thread",
)


class InputError(Exception):
    """An input cannot be used; the message says what is wrong, where, and what to do.

    Arguments are named in backticks, which the command line turns into flags.
    """


class NotFiniteError(InputError):
    """A network has NaN or infinity among its weights or outputs."""


def not_finite_error(network: object, what: str = "its answers") -> NotFiniteError:
    """The error for such a network, which is named by its file."""
    return NotFiniteError(
        f"{network}: {what} are not finite numbers; it diverged in training or was damaged, so "
        "take another checkpoint"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether host or GPU memory ran out.

    torch has an exception for GPU memory and none for host memory; libraries in C and Rust pass on
    the system's message.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return any(told in str(error).lower() for told in OUT_OF_MEMORY_MESSAGES)


def is_out_of_resources(error: BaseException) -> bool:
    """Whether memory or file handles ran out, which is no fault of the file being read."""
    return is_out_of_memory(error) or getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)
