"""CPRJobs and their pods on a Kubernetes API server, for the command line, TorchX and `cprjob.Client`.

All requests have the rights of the user's kubeconfig. `kube_connection` makes requests, `job` interprets their
answers, `member_logs` follows a member through its pods, `tool` runs commands in a pod, and `client` offers all of it
by the names of jobs.
"""

from cpr_operator.client.client import Client
from cpr_operator.client.job import Event, Job
from cpr_operator.client.kube_connection import ClientError, NoObjectError, UnavailableError, WaitTimeoutError
from cpr_operator.client.tool import CommandError, Tool

__all__ = [
    "Client",
    "ClientError",
    "CommandError",
    "Event",
    "Job",
    "NoObjectError",
    "Tool",
    "UnavailableError",
    "WaitTimeoutError",
]
