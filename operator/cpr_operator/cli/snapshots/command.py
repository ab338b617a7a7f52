"""The commands: have the trainer image's own code read the store, and print the result."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TypeVar

from rich.console import Console

from cpr_contract.codec import from_json, to_dict
from cpr_contract.requests import Listing, Pruning, Request, Verification
from cpr_operator.api.status import TERMINAL_PHASES
from cpr_operator.cli.options import OptionError
from cpr_operator.cli.snapshots.show import show_damage, show_points, show_pruning, show_verification
from cpr_operator.cli.snapshots.source import Source
from cpr_operator.cli.trials import Ask

Answer = TypeVar("Answer", Listing, Verification, Pruning)

#: Exit code where something is damaged.
DAMAGED = 1


def list_points(source: Source, console: Console, ask: Ask, *, as_json: bool) -> int:
    """Show all points; returns the exit code. Raises TrialError if the store cannot be read."""
    request = Request("List", source.store, source.job_uid)
    found = _ask(request, Listing, ask)
    if as_json:
        console.print_json(json.dumps(to_dict(found)))
    else:
        show_points(console, found.points)
        show_damage(console, found.damaged)
    return DAMAGED if found.damaged else 0


def verify_saves(source: Source, console: Console, ask: Ask, *, as_json: bool) -> int:
    """Read all saves and show what is damaged; returns the exit code. Raises TrialError as above."""
    request = Request("Verify", source.store, source.job_uid, model=source.model)
    found = _ask(request, Verification, ask)
    if as_json:
        console.print_json(json.dumps(to_dict(found)))
    else:
        show_verification(console, found)
    return DAMAGED if found.damaged else 0


def prune_saves(  # noqa: PLR0913 -- one parameter per option
    source: Source,
    keep: int | None,
    console: Console,
    ask: Ask,
    *,
    delete: bool,
    as_json: bool,
) -> None:
    """Show what would be deleted, and delete it if `delete`.

    keep: the number of anchors to keep; 0 keeps nothing, None stands for the job's own number.
    Check the job's phase before (`check_phase`). Raises TrialError as above.
    """
    request = Request(
        action="Prune",
        store=source.store,
        job_uid=source.job_uid,
        keep=source.keep if keep is None else keep,
        forks=source.forks,
        delete=delete,
    )
    found = _ask(request, Pruning, ask)
    if as_json:
        console.print_json(json.dumps(to_dict(found)))
    else:
        show_pruning(console, found)


def check_phase(source: Source, *, everything: bool) -> None:
    """Raise OptionError if the job's phase says that it uses its saves, or will use them."""
    if source.phase is None or source.phase in TERMINAL_PHASES:
        return
    if source.phase != "Suspended":
        raise OptionError(f"the job is {source.phase}; its leader already prunes after every anchor")
    if everything:
        raise OptionError("the job is Suspended and could not be resumed without its saves; delete the job first")


def _ask(request: Request, kind: type[Answer], ask: Ask) -> Answer:
    with closing(ask("inventory", None, request)) as lines:
        (line,) = lines
    return from_json(kind, line)
