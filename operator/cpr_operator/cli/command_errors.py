"""The errors of commands. Their messages have the remedy, and are printed without a traceback."""

from __future__ import annotations


class CommandLineError(Exception):
    """A command that failed. `exit_code` is that of the program."""

    exit_code = 1


class MissingPackageError(CommandLineError):
    """A package that the command needs is not installed."""


class ClusterRequestError(CommandLineError):
    """The cluster refused a request, or is unreachable."""


class TrialError(CommandLineError):
    """A process of the trainer image, or a run that was measured, failed."""


class MissingOutputError(CommandLineError):
    """The store has no such output of a process."""


class UsageError(CommandLineError):
    """The command line cannot be used."""

    exit_code = 2


class OptionError(UsageError):
    """An option with a value that the command cannot use."""


class DocumentError(UsageError):
    """A file that cannot be read, or a change that does not fit it."""


def missing_package(package: str) -> str:
    """Return one line that names a missing package, with the remedy."""
    return f"the package {package} is not installed: pip install 'cprjob[local]' installs all that cprjob needs"
