"""CPRJobs from Python: `fit` trains a job in the calling process, and `Client` manages jobs on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cprjob.fitting import extra, fit

if TYPE_CHECKING:
    from cpr_operator.client import Client, ClientError, Job

__all__ = ["Client", "ClientError", "Job", "fit"]


def __getattr__(name: str) -> Any:
    """Import the client on first use: the import is slow, and `fit` does not need it."""
    if name not in __all__:
        raise AttributeError(f"cprjob has no {name}")
    with extra("operator", name):
        from cpr_operator import client
    return getattr(client, name)
