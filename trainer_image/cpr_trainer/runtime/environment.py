"""The inputs of a process at its start: environment variables, a command's request on standard input, processors."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO, TypeVar, get_args

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.choices import Encryption
from cpr_contract.codec import ContractError, from_json, unpack
from cpr_contract.reports import RECORDED_HEADER
from cpr_contract.roster import KEY_CHANGED, is_signed, key_digest, unseal
from cpr_contract.spec import JobSpec, description_version
from cpr_contract.trace import STEP_TRACE
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime.tls import Certificates

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

_LAST_PORT_BASE = 65535 - max(env.DATA_PORT, env.HTTP_PORT, env.CONTROL_PORT)
_GROUPS, _OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_START_BY = "The operator or `cprjob run` sets the environment: start the process through one of them."


class BadSpecError(TrainerError):
    """The environment or the spec in it cannot be used."""

    reason = "BadSpec"


class ContractVersionError(TrainerError):
    """The other side uses a version of the contract that this image does not support."""

    reason = "ContractVersion"


class KeyChangedError(TrainerError):
    """The Secret holds another key than the one with which the job's members authenticate."""

    reason = KEY_CHANGED


def check_contract(version: int, what: str) -> None:
    """Raise ContractVersionError unless this image supports `version`: its own, or the one before."""
    if version not in {CONTRACT_VERSION, CONTRACT_VERSION - 1}:
        raise ContractVersionError(
            f"{what} is of contract version {version}; this image speaks {CONTRACT_VERSION}.",
            "Run a trainer image of the operator's release, or of the one before or after.",
        )


class Access(NamedTuple):
    """The credentials of a process for a store, and the authorities that it trusts.

    `credentials_dir` holds the files accessKey, secretKey and perhaps sessionToken, which may change; None takes the
    environment's variables or the workload's identity. `ca_file` (PEM) replaces the public authorities.
    """

    credentials_dir: Path | None = None
    ca_file: Path | None = None


def store_access(environ: Mapping[str, str]) -> Access:
    """Return the access to the job's store."""
    return Access(optional_path(environ, env.CREDENTIALS_DIR), optional_path(environ, env.CA_FILE))


def data_access(environ: Mapping[str, str]) -> Access:
    """Return the access to the data's own store, for jobs that state one."""
    return Access(optional_path(environ, env.DATA_CREDENTIALS_DIR), optional_path(environ, env.DATA_CA_FILE))


@dataclass(frozen=True, slots=True)
class Environment:
    """The settings that the operator passes to a process through its environment.

    `key` is the job's handshake key. `step_trace` is None unless steps are traced. `supervised`: a process that dies is
    replaced by another one in the same pod. `trackers` are named as in docs/trackers.md. `resume_file` is the
    descriptor of the resume state of a trainer's last process, set where its supervisor could not fork. `pod` is the
    pod's name, empty if unknown. `memory_dir` is a folder in memory that outlives the container of a shard; None where
    containers are not restarted. `history_file` has the job's record, once the operator gives one to this pod.
    `certificates` are None if the job's traffic is not encrypted.
    """

    job: JobSpec
    roster_file: Path
    key: bytes
    address: str
    port_base: int
    store_access: Access
    data_access: Access
    scratch_dir: Path
    termination_file: Path
    step_trace: Path | None
    supervised: bool = False
    trackers: str = ""
    resume_file: int | None = None
    pod: str = ""
    memory_dir: Path | None = None
    history_file: Path | None = None
    certificates: Certificates | None = None

    def identify(self, role: str, index: int) -> None:
        """Use this role and index in certificates from now on, if there are any."""
        if self.certificates is not None:
            self.certificates.identify(role, index)

    def roster_receiver(self, offer: Callable[[bytes], None]) -> Callable[[bytes, str], bool] | None:
        """Return a receiver of rosters sent to this pod, which passes signed ones to `offer`; None without a pod."""
        if not self.pod:
            return None

        def receive(roster: bytes, signature: str) -> bool:
            right = is_signed(self.key, self.pod, roster, signature)
            if right:
                offer(roster)
            return right

        return receive

    def recorded_receiver(self, accept: Callable[[str], None]) -> Callable[[str], None]:
        """Return the receiver of the header about the job's status, which passes sealed contents to `accept`."""

        def open_seal(value: str) -> None:
            recorded = unseal(self.key, self.pod, value) if self.pod else None
            if recorded is None:
                _LOG.debug("%s is ignored: its seal is wrong", RECORDED_HEADER)
            else:
                accept(recorded)

        return open_seal

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Environment:
        """Read all variables. Raises BadSpecError naming the variable, ContractVersionError, KeyChangedError."""
        return cls(
            job=read_job(environ),
            roster_file=Path(_required(environ, env.ROSTER_FILE)),
            key=_read_key(Path(_required(environ, env.KEY_FILE)), environ.get(env.KEY_DIGEST, "")),
            address=_required(environ, env.ADDRESS),
            port_base=port_base(environ),
            store_access=store_access(environ),
            data_access=data_access(environ),
            scratch_dir=Path(_required(environ, env.SCRATCH_DIR)),
            termination_file=termination_file(environ),
            step_trace=optional_path(environ, STEP_TRACE),
            supervised=bool(environ.get(env.KEEPER)),
            trackers=environ.get(env.TRACKERS, ""),
            resume_file=int(environ[env.KEPT_FILE]) if environ.get(env.KEPT_FILE) else None,
            pod=environ.get(env.POD, ""),
            memory_dir=optional_path(environ, env.MEMORY_DIR),
            history_file=optional_path(environ, env.HISTORY_FILE),
            # A process has no role and index before its roster.
            certificates=certificates(environ, env.ROLE_SPARE),
        )


def read_job(environ: Mapping[str, str]) -> JobSpec:
    """Read the job's spec only. Raises as `Environment.read` does."""
    path = optional_path(environ, env.SPEC_FILE)
    name = env.SPEC if path is None else env.SPEC_FILE
    try:
        text = _required(environ, env.SPEC) if path is None else path.read_text(encoding="utf-8")
        job = from_json(JobSpec, unpack(text))
    except (ContractError, OSError, UnicodeDecodeError) as error:
        raise BadSpecError(f"{name} cannot be read: {error}.", _START_BY) from error
    if job.contract != description_version(CONTRACT_VERSION, job):
        check_contract(job.contract, name)
    return job


def certificates(environ: Mapping[str, str], role: str) -> Certificates | None:
    """Return the certificates of a process if the job's traffic is encrypted, else None. Raises BadSpecError."""
    encryption = environ.get(env.ENCRYPTION) or "None"
    if encryption not in get_args(Encryption):
        raise BadSpecError(f"{env.ENCRYPTION} is {encryption!r}, not one of {get_args(Encryption)}.", _START_BY)
    if encryption == "None":
        return None
    folder = Path(_required(environ, env.KEY_FILE)).parent
    try:
        issued = optional_path(environ, env.ISSUED_CA_FILE)
        return Certificates(folder, read_job(environ).job_uid, role, issued=issued)
    except (OSError, ValueError) as error:
        raise BadSpecError(f"the certificates in {folder} cannot be read: {error}.", _START_BY) from error


def termination_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the termination file; needs no required variable."""
    return Path(environ.get(env.TERMINATION_FILE) or env.TERMINATION_MOUNT)


def optional_path(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the path in a variable; None if it is not set or empty."""
    value = environ.get(name)
    return Path(value) if value else None


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise BadSpecError(f"{name} is not set.", _START_BY)
    return value


def port_base(environ: Mapping[str, str]) -> int:
    """Return the first of the ports of this process. Raises BadSpecError."""
    text = environ.get(env.PORT_BASE) or str(env.DEFAULT_PORT_BASE)
    if not text.isdecimal() or not 0 < int(text) <= _LAST_PORT_BASE:
        raise BadSpecError(f"{env.PORT_BASE} is {text!r}, not a port number.", _START_BY)
    return int(text)


def _read_key(path: Path, digest: str) -> bytes:
    try:
        key = path.read_bytes()
    except OSError as error:
        raise BadSpecError(f"{env.KEY_FILE} cannot be read: {error}.", _START_BY) from error
    if not key:
        raise BadSpecError(f"{env.KEY_FILE} names an empty file.", _START_BY)
    if digest and key_digest(key) != digest:
        raise KeyChangedError(
            f"the job's key is not the one that its members have: its digest is {key_digest(key)}, not {digest}.",
            "The operator gives all members a new one; leave the Secrets of jobs alone.",
        )
    return key


def read_request(cls: type[T], source: TextIO, command: str) -> T:
    """Read the request of `cprjob COMMAND`: one document on one line. Raises BadSpecError.

    Does not wait for the end of the input, which may never come in a pod.
    """
    try:
        return from_json(cls, source.readline())
    except ContractError as error:
        raise BadSpecError(f"The request cannot be read: {error}.", f"Start it by `cprjob {command}`.") from error


def processors(own_group: Path = _OWN_GROUP, groups: Path = _GROUPS) -> int:
    """Return the number of processors in this process's affinity mask, or its CPU quota rounded up if that is less.

    The quota is that of its control group (version 2) or of a parent group; a container's CPU limit sets it.
    `own_group` is the file that names the group, and `groups` the folder of all groups.
    """
    most = len(os.sched_getaffinity(0))
    return min((most, *_quotas(own_group, groups)))


def _quotas(own_group: Path, groups: Path) -> Iterator[int]:
    try:
        lines = own_group.read_text().splitlines()
    except OSError:
        return
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if own is None:
        return
    for group in (groups / own, *(groups / own).parents):
        if not group.is_relative_to(groups):
            return
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except (OSError, ValueError):  # the root of all groups has none
            continue
        if quota != "max":
            yield max(1, -(-int(quota) // int(period)))
