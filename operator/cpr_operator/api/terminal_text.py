"""Text for a terminal: foreign text without control characters, and the line of an event."""

from __future__ import annotations

import re

#: C0 except tab and line feed, DEL, and C1: a terminal may execute them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: The same without the carriage returns of progress bars and the sequences that set a colour, which logs contain.
_CONTROLS_OF_LOG = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return the text without control characters, so that it cannot move the cursor, colour, or send input."""
    return _CONTROLS.sub("", text)


def printable_log(line: str) -> str:
    """Return a line of a log without control characters other than those of colours."""
    return _CONTROLS_OF_LOG.sub(lambda found: found[1] or "", line)


def event_line(kind: str, reason: str, message: str) -> str:
    """Return an event in one line, which begins with `!` if it is a Warning."""
    return f"{'!' if kind == 'Warning' else '·'} {reason}: {message}"
