"""CPRJobs and their pods as a user sees them, asked of the API server with the user's own rights.

`connection` makes the requests, `job` says what an answer means, `logs` follows members through their pods, `tool` runs
commands in a pod, and `client` is all of it by a job's name. The command line, TorchX's scheduler and `cprjob.Client`
stand on it.
"""

from cpr_operator.client.client import Client, Member
from cpr_operator.client.connection import Place
from cpr_operator.client.job import (
    ClientError,
    CommandError,
    Event,
    Job,
    NoObjectError,
    TookTooLongError,
    UnavailableError,
)
from cpr_operator.client.tool import Tool

__all__ = [
    "Client",
    "ClientError",
    "CommandError",
    "Event",
    "Job",
    "Member",
    "NoObjectError",
    "Place",
    "TookTooLongError",
    "Tool",
    "UnavailableError",
]
