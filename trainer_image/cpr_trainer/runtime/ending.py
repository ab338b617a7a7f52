"""How a process ends: SIGTERM, which asks it to, its exit code, and its last word in the termination file."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from cpr_contract.codec import to_json
from cpr_contract.reports import ExitCode, Problem
from cpr_trainer.errors import TrainerError

# SIGTERM: the request to save what is left and to end.


def stop_on_sigterm() -> threading.Event:
    """Return an event that SIGTERM sets, from now on. Call it on the main thread."""
    stop = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # who forked this process may have blocked it
    return stop


#: The kubelet keeps no more of a termination file.
LIMIT_BYTES = 4096

#: Exit codes by `reason`; any other error may go away by itself and is INTERNAL.
EXIT_CODES: Mapping[str, ExitCode] = MappingProxyType(
    {
        "StoreUnreachable": ExitCode.STORE_UNREACHABLE,
        "StoreBusy": ExitCode.STORE_UNREACHABLE,
        "BadSpec": ExitCode.BAD_SPEC,
        "BadModel": ExitCode.BAD_SPEC,
        "Diverged": ExitCode.BAD_SPEC,
        "LayoutMismatch": ExitCode.BAD_SPEC,
        "BadData": ExitCode.BAD_DATA,
        "DamagedSave": ExitCode.DAMAGED,
        "ContractVersion": ExitCode.CONTRACT,
    }
)


def exit_code(error: TrainerError) -> ExitCode:
    """Return the exit code of a process that `error` ends."""
    return EXIT_CODES.get(error.reason, ExitCode.INTERNAL)


def problem_of(error: TrainerError) -> Problem:
    """Return an error as the contract's document."""
    return Problem(error.reason, error.message, error.remedy)


def end_with(termination_file: Path, document: Any, code: ExitCode) -> ExitCode:
    """Leave `document` (a contract dataclass) in the termination file and return `code`.

    A `Problem` too long for the file is shortened in its message. A file that cannot be written is passed over: the
    exit code speaks for itself.
    """
    text = to_json(document)
    if isinstance(document, Problem):
        text = _shortened(document)
    try:
        termination_file.write_text(text, encoding="utf-8")
    except OSError:
        return code
    return code


def _shortened(problem: Problem) -> str:
    text = to_json(problem)
    while len(text.encode()) > LIMIT_BYTES:
        # A cut character can take up to 12 bytes of JSON (two escapes of six), never less than one.
        over = len(text.encode()) - LIMIT_BYTES
        keep = max(0, len(problem.message) - max(1, over // 12) - len("..."))
        problem = dataclasses.replace(problem, message=problem.message[:keep] + "...")
        text = to_json(problem)
    return text
