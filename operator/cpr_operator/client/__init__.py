"""CPRJobs and their pods on a Kubernetes API server, for the command line, TorchX and `cprjob.Client`.

`kube_connection` makes requests with the rights of the user's kubeconfig, and `client` offers all by the names of jobs.
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
