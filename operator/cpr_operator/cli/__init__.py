"""`cprjob`: the command line for jobs on this machine and on clusters, and for checks of manifests."""

from __future__ import annotations

import sys

from cpr_operator.cli.command_errors import missing_package

__all__ = ["main"]


def main() -> None:
    """Run a command, or exit with one line that names the package that is missing."""
    try:
        from cpr_operator.cli.app import app  # noqa: PLC0415 -- a plain install has none of its packages

        app()  # a command imports its own code when it runs
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "cpr_operator":
            raise
        sys.exit(f"cprjob: {missing_package(package)}")
