"""Untrusted text on a terminal: exceptions of scripts, names and lines of logs may contain terminal commands."""

from __future__ import annotations

import re
import sys

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except newline and tab, marks that change the direction of text, and surrogates."""


def printable(text: str) -> str:
    r"""Return a text with control characters as escapes, such as `\x1b`. Newlines and tabs stay."""
    return _COMMANDS.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\u0100" else ascii(found[0])[1:-1], text
    )


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print a text at once, without control characters. err: on stderr."""
    print(printable(text), file=sys.stderr if err else sys.stdout, end=end, flush=True)
