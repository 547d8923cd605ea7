"""Replies to many questions."""

from __future__ import annotations

from macnet.explain.reply import Reply


class Replies(list[Reply]):
    """Replies in the order of the questions."""
