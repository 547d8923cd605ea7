"""The exception a command turns into a sentence and exit code 2; and errors of no file's making."""

from __future__ import annotations

import errno

LACKS_MEMORY = (
    "allocate memory",
    "not enough memory",
    "out of memory",
    "failed to map segment",  # the loader, of a library
    "could not create a primitive",  # oneDNN, of whatever a layer needs
    "can't start new thread",
)


class InputError(Exception):
    """What the user gave cannot be used; the message says what, where, and what to do."""


class NotFiniteError(InputError):
    """A network cannot be asked, because NaN or infinity is among its numbers."""


def not_finite(network: object, what: str = "its answers") -> NotFiniteError:
    """The refusal, the same wherever such a network is met; it is named by its file."""
    return NotFiniteError(
        f"{network}: {what} are not finite numbers; it diverged in training or was damaged, so "
        "take another checkpoint"
    )


def is_about_memory(error: BaseException) -> bool:
    """Whether there was too little memory, of the host or of a GPU, to go on.

    torch has a name for a GPU's that is full and none for the host's; libraries in C and Rust pass
    on what the system says.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return any(told in str(error).lower() for told in LACKS_MEMORY)


def is_about_resources(error: BaseException) -> bool:
    """Whether memory or open files ran out: no fault of the file that was being read."""
    return is_about_memory(error) or getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)
