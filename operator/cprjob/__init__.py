"""CPRJobs from Python: `fit` trains one in the process that calls it, and `Client` works with those on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cprjob.extras import extra
from cprjob.fitting import fit

if TYPE_CHECKING:
    from cpr_operator.client import Client, ClientError, Job

__all__ = ["Client", "ClientError", "Job", "fit"]


def __getattr__(name: str) -> Any:
    """Load the client when somebody asks for it: `fit` does without, and it takes its time."""
    if name not in __all__:
        raise AttributeError(f"cprjob has no {name}")
    with extra("operator", name):
        from cpr_operator import client
    return getattr(client, name)
