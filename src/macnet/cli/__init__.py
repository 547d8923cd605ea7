"""The commands."""

from macnet.cli.main import main

__all__ = ["main"]
