"""Text from elsewhere on its way to a terminal: messages of pods, events, file headers, logs."""

from __future__ import annotations

import re

#: C0 but for tab and line feed, DEL, and C1: a terminal may take them for commands.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: The same but for what logs of training have: carriage returns of progress bars, and sequences that set a colour.
_CONTROLS_OF_LOG = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text without control characters: nothing in it moves the cursor, colours, or answers for the terminal."""
    return _CONTROLS.sub("", text)


def printable_log(line: str) -> str:
    """A line of a log for a terminal, with its colours."""
    return _CONTROLS_OF_LOG.sub(lambda found: found[1] or "", line)
