"""`cprjob`: jobs on this machine, and checks of manifests."""

from cpr_operator.cli.app import main

__all__ = ["main"]
