"""The commands that measure and simulate: those of the distribution cprjob-bench, or where to get it.

They find their way here by an entry point, so that nothing of the product names their code.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points

import typer

from cpr_operator.cli.console import usage_errors
from cpr_operator.cli.needs import NeedError

#: Entry points of this group are Typer apps, whose commands become commands of `cprjob`.
GROUP = "cprjob.commands"
_ANY_OPTIONS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def laboratory() -> Iterator[typer.Typer]:
    """Yield the apps that are installed; if none is, one whose commands say so."""
    installed = entry_points(group=GROUP)
    yield from (each.load() for each in installed)
    if not installed:
        yield _stand_ins()


def _stand_ins() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)
    for name in ("bench", "simulate"):
        app.command(name, help="Not installed: part of cprjob-bench.", context_settings=_ANY_OPTIONS)(_say_so)
    return app


def _say_so(context: typer.Context) -> None:
    with usage_errors():
        raise NeedError(
            f"cprjob {context.info_name} is not installed: pip install cprjob-bench, "
            "or pip install ./laboratory in a checkout"
        )
