"""The one exception a command turns into a sentence and exit code 2."""


class InputError(Exception):
    """What the user gave cannot be used; the message says what, where, and what to do."""
