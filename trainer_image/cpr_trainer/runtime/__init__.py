"""Shared by all processes of a job: environment, roster, status server, supervision and termination."""

from cpr_trainer.runtime.acceptor import Acceptor, eviction_candidate
from cpr_trainer.runtime.environment import (
    Access,
    BadSpecError,
    ContractVersionError,
    Environment,
    certificates,
    data_access,
    optional_path,
    processors,
    read_job,
    read_request,
    store_access,
)
from cpr_trainer.runtime.retry import backoff, retry
from cpr_trainer.runtime.roster_file import RosterFile
from cpr_trainer.runtime.sockets import begin_to_connect, connect, listen
from cpr_trainer.runtime.status_server import StatusServer
from cpr_trainer.runtime.termination import end_with, exit_code, problem_of, stop_on_sigterm
from cpr_trainer.runtime.timing import Trace
from cpr_trainer.runtime.tls import Certificates, Stream, TlsConnection

__all__ = [
    "Acceptor",
    "Access",
    "BadSpecError",
    "Certificates",
    "ContractVersionError",
    "Environment",
    "RosterFile",
    "StatusServer",
    "Stream",
    "TlsConnection",
    "Trace",
    "backoff",
    "begin_to_connect",
    "certificates",
    "connect",
    "data_access",
    "end_with",
    "eviction_candidate",
    "exit_code",
    "listen",
    "optional_path",
    "problem_of",
    "processors",
    "read_job",
    "read_request",
    "retry",
    "stop_on_sigterm",
    "store_access",
]
