"""CPRJobs and their pods as a user sees them, asked of the API server with the user's own rights.

`connection` makes the requests, `job` says what an answer means, `logs` follows members through their pods, `tool` runs
commands in a pod, and `client` is all of it by a job's name. The command line, TorchX's scheduler and `cprjob.Client`
stand on it.
"""

from cpr_operator.client.client import Client
from cpr_operator.client.connection import Place
from cpr_operator.client.errors import ClientError, CommandError, NoObjectError, TookTooLongError, UnavailableError
from cpr_operator.client.job import Event, Job
from cpr_operator.client.logs import Member
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
