"""Kills a function at any of its lines, as SIGKILL kills a process: what it stored until then is there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class KilledError(BaseException):
    """The death of a process. Nothing in it may catch this."""


def killed_at(line: int, work: Callable[[], object], *files: str) -> bool:
    """Run `work` until it is about to run its line number `line` of these files, counted as they run; False if it ends.

    files: ends of paths.
    """
    seen = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise KilledError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KilledError:
        return True
    finally:
        sys.settrace(before)
    return False
