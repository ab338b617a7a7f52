"""`cprjob`: jobs on this machine, and checks of manifests."""

from __future__ import annotations

import sys

from cpr_operator.cli.needs import missing

__all__ = ["main"]


def main() -> None:
    """The console entry: the commands, or one line that says what they lack."""
    try:
        from cpr_operator.cli.app import app  # noqa: PLC0415 -- a plain install has none of its packages

        app()  # a command imports its own code when it runs
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "cpr_operator":
            raise
        sys.exit(f"cprjob: {missing(package)}")
