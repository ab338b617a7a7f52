"""Ends a process: SIGTERM, exit codes, and the termination message."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cpr_contract.codec import to_utf8, within_limits
from cpr_contract.limits import MAX_SENTENCE, united
from cpr_contract.reports import Deleted, ExitCode, Problem, Result
from cpr_trainer.errors import TrainerError

#: The kubelet keeps no more of a termination file.
LIMIT_BYTES = 4096

#: Exit codes by `reason`. Any other error may be temporary and is INTERNAL.
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


def stop_on_sigterm() -> threading.Event:
    """Return an event that SIGTERM sets from now on. Call this on the main thread."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stop.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the parent may have blocked it
    return stop


def exit_code(error: TrainerError) -> ExitCode:
    """Return the exit code of a process that `error` ends."""
    return EXIT_CODES.get(error.reason, ExitCode.INTERNAL)


def problem_of(error: TrainerError) -> Problem:
    """Return an error as the contract's document, with texts cut to the length that a report takes."""
    return Problem(error.reason, error.message[:MAX_SENTENCE], error.remedy[:MAX_SENTENCE])


def end_with(termination_file: Path, document: Any, code: ExitCode) -> ExitCode:
    """Write `document` (a contract dataclass) to the termination file and return `code`.

    A document that is too long for the file is shortened; the kubelet would cut it and leave unreadable JSON. A file
    that cannot be written is ignored.
    """
    document = within_limits(document)
    forms: Iterator[Any] = iter((document,))  # the longest first
    match document:
        case Problem():
            forms = iter((_cut(_cut(document, "message"), "remedy"),))
        case Result():
            forms = _results(document)
        case Deleted():
            every = range(len(document.unreadable), -1, -1)
            forms = (dataclasses.replace(document, unreadable=document.unreadable[:most]) for most in every)
    text = next((text for text in map(to_utf8, forms) if len(text) <= LIMIT_BYTES), b"")
    with contextlib.suppress(OSError):
        termination_file.write_bytes(text)
    return code


def _results(result: Result) -> Iterator[Result]:
    """Yield a result, then shorter forms of it: the anchor stays, and reports have the rest.

    The last forms unite lost ranges into fewer that hold all of them.
    """
    yield result
    yield (result := dataclasses.replace(result, metrics=()))
    yield (result := dataclasses.replace(result, evaluation=None, segment=None))
    while len(result.lost) > 1:
        yield (result := dataclasses.replace(result, lost=united(result.lost, len(result.lost) * 9 // 10)))


def _cut(problem: Problem, field: str) -> Problem:
    """Return a problem with the text of this field cut to fit the file, if necessary."""
    text = getattr(problem, field)

    def shortened(most: int) -> Problem:
        return dataclasses.replace(problem, **{field: text[:most] + "..."})

    if len(to_utf8(problem)) <= LIMIT_BYTES:
        return problem
    too_long = bisect_left(range(len(text)), x=True, key=lambda most: len(to_utf8(shortened(most))) > LIMIT_BYTES)
    return shortened(max(0, too_long - 1))
